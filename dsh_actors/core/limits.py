"""The limits of a run: checked before a step, a repeated request and a call; nothing beyond them starts."""

from __future__ import annotations

from dsh_actors.core.budget import Budget
from dsh_actors.core.chunks import Usage
from dsh_actors.core.loop_guard import NOTE_AT, STOP_AT, LoopGuard
from dsh_actors.core.options import LimitBase, Limits
from dsh_actors.core.state import Counters
from dsh_actors.core.text import JsonObject

__all__ = ["LimitWatch"]


class LimitWatch:
    """Counts from ``base``, or else from where the session stood when this run took it over, into a pool
    that may be shared.
    """

    def __init__(
        self,
        limits: Limits,
        counters: Counters,
        budget: Budget | None = None,
        base: LimitBase | None = None,
    ) -> None:
        self.limits = limits
        self.budget = Budget(limits) if budget is None else budget
        base = base or LimitBase(counters.steps, counters.tool_calls, counters.tokens)
        self._steps, self._calls, self._tokens = base.steps, base.tool_calls, base.tokens

    def base(self) -> LimitBase:
        """From where to count on when the agent is resumed: what it and all below it have used is behind."""
        pool = self.budget
        return LimitBase(
            self._steps - pool.steps,
            self._calls - pool.tool_calls,
            self._tokens - pool.tokens,
            pool.cost,
            pool.agents,
        )

    @property
    def cost(self) -> float | None:
        """What the agent and everything below it cost so far, None where that is not known."""
        return self.budget.cost

    def spend(self, cost: float | None) -> None:
        """Add the cost of one reply; an unknown cost makes the total unknown."""
        self.budget.pay(cost)

    def claim_step(self, counters: Counters, guard: LoopGuard) -> JsonObject | None:
        """As `before_step`; where nothing forbids it, the step is counted before it begins.

        So agents that share a pool cannot begin more steps than it has. What is not begun is given back
        the next time anything is asked.
        """
        reached = self.before_step(counters, guard)
        if reached is None:
            self._steps += 1
            self.budget.spend(1, 0, 0)
        return reached

    def before_step(self, counters: Counters, guard: LoopGuard) -> JsonObject | None:
        """``{"kind", "value"}`` of the limit that forbids one more step, if any.

        ``unknown`` marks a limit whose use is not known any more.
        """
        self.settle(counters)
        if guard.count >= STOP_AT:
            return {"kind": "stuck", "value": STOP_AT}
        return self.budget.steps_reached() or self.budget.spending_reached()

    def before_retry(self, counters: Counters, unsettled: Usage | None = None) -> JsonObject | None:
        """As `before_step`, for one more request of a step that has begun: what attempts spend is limited.

        ``unsettled`` is what the last attempt reported, where the counters do not hold it yet.
        """
        self.settle(counters)
        return self.budget.spending_reached(0 if unsettled is None else unsettled.total)

    def before_call(self, counters: Counters, guard: LoopGuard) -> JsonObject | None:
        """The cause that keeps one more call of a step from starting, if any; one that may is counted."""
        self.settle(counters)
        if self.budget.calls_used_up():
            return {"kind": "hook", "reason": "max_tool_calls"}
        if guard.count >= STOP_AT:
            return {"kind": "hook", "reason": "stuck"}
        self._calls += 1
        self.budget.spend(0, 1, 0)
        return None

    def settle(self, counters: Counters) -> None:
        """Bring the pool up to date with the session's own counters: a turn's end leaves it exact."""
        tokens = counters.tokens
        steps, calls = counters.steps - self._steps, counters.tool_calls - self._calls
        if steps or calls or tokens != self._tokens:
            self.budget.spend(steps, calls, tokens - self._tokens)
            self._steps, self._calls, self._tokens = counters.steps, counters.tool_calls, tokens

    def repeat_note(self, guard: LoopGuard, name: str) -> str | None:
        """What the model is told when a call has just repeated often enough."""
        if guard.count != NOTE_AT:
            return None
        return (
            f"The last calls of {name} repeat earlier ones with the same results. Repeating them again "
            f"changes nothing; at {STOP_AT} repetitions the run is stopped. Try another way, or answer "
            "with what you have."
        )
