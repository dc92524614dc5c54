"""A sub-agent in a process of its own, as one of its parent's: its place, its part of the budget, its end."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace

from dsh_actors.core.answers import rejection_summary
from dsh_actors.core.budget import Budget
from dsh_actors.core.events import Event
from dsh_actors.core.exit_codes import exit_code_of
from dsh_actors.core.messages import Message
from dsh_actors.core.outcome import Circumstances, RunEnd
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import HarnessError, SubagentError
from dsh_actors.subagents.child import ChildRun, Plan
from dsh_actors.subagents.outside import ChildResult, OutsideRequest, run_child
from dsh_actors.subagents.outside_call import OutsideCall

__all__ = ["OutsideRun"]


class OutsideRun(ChildRun):
    """Nobody can speak to it while it works. What it uses counts in ``budget`` as it is told of, and where
    that is used up before, it is stopped.
    """

    def __init__(
        self,
        call: OutsideCall,
        budget: Budget,
        plan: Plan,
        message: str | Message,
        released: Callable[[ChildRun], None],
    ) -> None:
        super().__init__(plan, message, released)
        self._call = call
        self._budget = budget
        self._spent = (0, 0, 0, 0.0)
        self._reached: JsonObject | None = None
        self._result: ChildResult | None = None

    @property
    def state(self) -> str:
        if self._is_over:
            return "over"
        return "running" if self.plan.seat.is_held else "queued"

    def tell(self, message: Message) -> bool:
        return False

    def interrupt(self) -> None:
        self.stop()

    def _work(self) -> None:
        self._begin()
        reached = self._budget.reached()
        if reached is not None:
            limit = f"--{reached['kind'].replace('_', '-')} {reached['value']}"
            raise SubagentError(f"{limit} is used up", code="BUDGET_SPENT")
        call, folder = self._call, tempfile.mkdtemp(prefix="dsh-agent-")
        try:
            request = OutsideRequest(
                name=call.agent.name,
                session_id=self.id,
                argv=call.argv(self._budget, folder),
                cwd=call.options.cwd,
                env=call.env,
                prompt=call.prompt,
                idle_s=call.agent.idle_timeout_s,
                on_event=self._on_line,
            )
            self._result = run_child(call.processes, request, self.stopped)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _let_go(self) -> None:
        self.plan.seat.close()

    # --- what it uses ------------------------------------------------------------------------

    def _on_line(self, data: JsonObject) -> None:
        """In the hub. What is no event of ours says nothing about what is used: the outcome will."""
        try:
            event = Event.from_json(data)
            if event.type == "step/start":
                self._stop_at(self._budget.reached())
            self._on_event(event)
        except (HarnessError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError):
            return
        if event.type == "subagent/started":
            self._stop_at(self._budget.take_agent())
        if event.type in ("step/start", "tool/call", "assistant/message", "subagent/ended"):
            self._count()

    def _stop_at(self, reached: JsonObject | None) -> None:
        if reached is not None and self._reached is None:
            self._reached = reached
            self.stop("limit")

    def _count(self, end: RunEnd | None = None) -> None:
        """Bring the pools up to date with the events so far, or with the outcome."""
        known = end or self.plan.fold.end(Circumstances())
        cost = known.cost if known.cost is not None else (self._spent[3] if end is None else None)
        now = (known.steps, known.tool_calls, _tokens(known), cost)
        steps, calls, tokens, paid = self._spent
        self._budget.spend(max(0, now[0] - steps), max(0, now[1] - calls), max(0, now[2] - tokens))
        if cost is None:
            # Nothing asked for is nothing to pay, whatever the price.
            self._budget.pay(None if now[2] else 0.0)
        elif cost > paid:
            self._budget.pay(cost - paid)
        self._spent = (
            max(steps, now[0]),
            max(calls, now[1]),
            max(tokens, now[2]),
            max(paid, cost or 0.0),
        )

    # --- the end -----------------------------------------------------------------------------

    def _outcome(self) -> RunEnd:
        end, result, why = super()._outcome(), self._result, self.stopped.reason
        if result is not None and result.end is not None:
            told = replace(result.end, duration_ms=end.duration_ms)
            is_cut = why is not None and not told.completed and told.limit is None
            if is_cut:
                told = replace(told, reason=end.reason, message=end.message, exit_code=end.exit_code)
            end = self._fitting(told)
        elif result is not None and why is None:
            code = exit_code_of(result.reason, None)
            end = replace(end, reason=result.reason, message=result.problem, exit_code=code)
        if self._reached is not None and not end.completed:
            kind = self._reached["kind"]
            message = f"--{kind.replace('_', '-')} {self._reached['value']} reached"
            end = replace(
                end, reason=kind, message=message, exit_code=exit_code_of(kind, None), limit=self._reached
            )
        if self.end is None:
            self._count(end)
        return end

    def _fitting(self, end: RunEnd) -> RunEnd:
        """What was asked for as a value is looked at here too, whatever the process says of it."""
        schema = self._call.options.schema
        if schema is None or not end.completed:
            return end
        from dsh_actors.adapters.json_schema import AnswerSchema  # most answer in words

        told = end.structured
        errors = ["$: it told no value"] if told is None else AnswerSchema.of(schema).errors(told)
        if not errors:
            return end
        code, message = exit_code_of("schema", None), rejection_summary(errors)
        return replace(end, reason="schema", message=message, exit_code=code, schema={"errors": errors})


def _tokens(end: RunEnd) -> int:
    """As the limits count them."""
    kinds = ("input", "output", "cache_read", "cache_write")
    return sum(part[kind] for part in end.usage.values() for kind in kinds)
