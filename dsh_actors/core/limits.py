"""The limits of a run: checked before a step, a repeated request and a call; nothing beyond them starts."""

from __future__ import annotations

from dsh_actors.core.chunks import Usage
from dsh_actors.core.loop_guard import NOTE_AT, STOP_AT, LoopGuard
from dsh_actors.core.options import LimitBase, Limits
from dsh_actors.core.state import Counters
from dsh_actors.core.text import JsonObject

__all__ = ["LimitWatch"]


class LimitWatch:
    """Counts from ``base``, or else from where the session stood when this run took it over."""

    def __init__(self, limits: Limits, counters: Counters, base: LimitBase | None = None) -> None:
        self.limits = limits
        base = base or LimitBase(counters.steps, counters.tool_calls, counters.tokens)
        self._steps, self._calls, self._tokens = base.steps, base.tool_calls, base.tokens
        self.cost = base.cost

    def spend(self, cost: float | None) -> None:
        """Add the cost of one reply; an unknown cost makes the total unknown."""
        self.cost = None if cost is None or self.cost is None else self.cost + cost

    def before_step(self, counters: Counters, guard: LoopGuard) -> JsonObject | None:
        """``{"kind", "value"}`` of the limit that forbids one more step, if any.

        ``unknown`` marks a limit whose use is not known any more.
        """
        limits = self.limits
        checks = (
            ("stuck", STOP_AT, guard.count),
            ("max_steps", limits.max_steps, counters.steps - self._steps),
            # A call beyond the limit is logged and refused, so "more than" means one was refused.
            ("max_tool_calls", limits.max_tool_calls, counters.tool_calls - self._calls - 1),
        )
        for kind, limit, used in checks:
            if limit is not None and used >= limit:
                return {"kind": kind, "value": limit}
        return self.before_retry(counters)

    def before_retry(self, counters: Counters, unsettled: Usage | None = None) -> JsonObject | None:
        """As `before_step`, for one more request of a step that has begun: what attempts spend is limited.

        ``unsettled`` is what the last attempt reported, where the counters do not hold it yet.
        """
        limits = self.limits
        latest = 0 if unsettled is None else unsettled.total
        checks = (
            ("max_tokens", limits.max_tokens, counters.tokens + latest - self._tokens),
            ("max_cost", limits.max_cost, self.cost),
        )
        for kind, limit, used in checks:
            if limit is not None and used is not None and used >= limit:
                return {"kind": kind, "value": limit}
        if limits.max_cost is not None and self.cost is None:
            # A limit that can no longer be watched is kept by stopping.
            return {"kind": "max_cost", "value": limits.max_cost, "unknown": True}
        return None

    def before_call(self, counters: Counters, guard: LoopGuard) -> JsonObject | None:
        """The cause that keeps one more call of a step from starting, if any."""
        limit = self.limits.max_tool_calls
        if limit is not None and counters.tool_calls - self._calls >= limit:
            return {"kind": "hook", "reason": "max_tool_calls"}
        if guard.count >= STOP_AT:
            return {"kind": "hook", "reason": "stuck"}
        return None

    def repeat_note(self, guard: LoopGuard, name: str) -> str | None:
        """What the model is told when a call has just repeated often enough."""
        if guard.count != NOTE_AT:
            return None
        return (
            f"The last calls of {name} repeat earlier ones with the same results. Repeating them again "
            f"changes nothing; at {STOP_AT} repetitions the run is stopped. Try another way, or answer "
            "with what you have."
        )
