"""Closing what a crash left open: a fold over a log and the events that balance it.

Only an open last turn is closed. Nothing here reads a clock: the closing events carry the time of
the last event, so two readers of the same log close it in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dsh_actors.core.events import Event, Replace, wrong_payload
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import EventRefused

__all__ = ["Closers"]

NOT_STARTED = "TOOL_NOT_STARTED"
OUTCOME_UNKNOWN = "TOOL_OUTCOME_UNKNOWN"

_NOT_STARTED_TEXT = (
    "This call was not started: the run was interrupted before the tool began. "
    "It has had no effect, and it may be made again."
)
_OUTCOME_UNKNOWN_TEXT = (
    "The run was interrupted while this call was under way, and its outcome is unknown: it may have "
    "had no effect, a part of its effect, or all of it. Make the call again only if it just reads or is "
    "safe to repeat; otherwise find out first what it did, or ask the user."
)


@dataclass(slots=True)
class _PendingCall:
    call_id: str
    call_seq: int | None = None
    question: str | None = None  # the approval without whose yes it does not begin

    @property
    def may_have_run(self) -> bool:
        return self.call_seq is not None and self.question is None


class Closers:
    """Folds the events of one log in order; `closing_events` tells what is missing at its end."""

    def __init__(self) -> None:
        self._turn: int | None = None
        self._step: int | None = None
        # A list, as a provider may give the same id to two calls: each is owed its own result.
        self._pending: list[_PendingCall] = []
        self._time = 0

    @property
    def is_open(self) -> bool:
        """Whether the last turn was started and not ended."""
        return self._turn is not None

    def observe(self, event: Event) -> None:
        """Take in the next event of the log. Raises `EventRefused` where a payload has the wrong shape."""
        self._time = event.time
        observer = _OBSERVERS.get(event.type)
        if observer is None:
            return
        try:
            observer(self, event)
        except (KeyError, IndexError, TypeError) as error:
            raise wrong_payload(event, error) from error

    def snapshot(self) -> JsonObject:
        """What `restore` needs to go on from here, as JSON. The time is not in it: the state has it."""
        pending = [
            [call.call_id, call.call_seq, *([] if call.question is None else [call.question])]
            for call in self._pending
        ]
        return {"turn": self._turn, "step": self._step, "pending": pending}

    @staticmethod
    def restore(snapshot: JsonObject, time: int) -> Closers:
        """The fold of a `snapshot` whose last event was at ``time``.

        Raises `EventRefused`, `KeyError` or `TypeError` for another shape.
        """
        closers = Closers()
        closers._turn, closers._step, closers._time = snapshot["turn"], snapshot["step"], time
        for call_id, call_seq, *question in snapshot["pending"]:
            closers._pending.append(_PendingCall(call_id, call_seq, *question))
        numbers = [closers._turn, closers._step, *(call.call_seq for call in closers._pending)]
        names = [name for call in closers._pending for name in (call.call_id, call.question or "")]
        if any(type(n) not in (int, type(None)) for n in numbers) or any(type(n) is not str for n in names):
            raise EventRefused("not the snapshot of an open turn")
        return closers

    def closing_events(self, next_seq: int) -> tuple[Event, ...]:
        """The events, numbered from ``next_seq``, that close the open turn; none if none is open.

        A result for each unanswered call in the order the model asked, the end of the step, and the
        end of the turn as ``interrupted``. Does not change the fold.
        """
        if self._turn is None:
            return ()
        events: list[Event] = []
        if self._step is not None:
            where = {"turn": self._turn, "step": self._step}
            for call in self._pending:
                events.append(self._result(call, where, next_seq + len(events)))
            events.append(Event("step/end", next_seq + len(events), self._time, where))
        end: JsonObject = {"turn": self._turn, "reason": {"kind": "interrupted"}}
        events.append(Event("turn/end", next_seq + len(events), self._time, end))
        return tuple(events)

    def _result(self, call: _PendingCall, where: JsonObject, seq: int) -> Event:
        started = call.may_have_run
        block = {
            "type": "tool-result",
            "toolCallId": call.call_id,
            "content": [{"type": "text", "text": _OUTCOME_UNKNOWN_TEXT if started else _NOT_STARTED_TEXT}],
            "isError": True,
        }
        message = {
            "id": f"interrupted-tool-result-{call.call_id}-{seq}",
            "role": "user",
            "content": [block],
            "source": {"kind": "tool", "callId": call.call_id},
        }
        error = (
            {"name": "ToolOutcomeUnknownError", "code": OUTCOME_UNKNOWN}
            if started
            else {"name": "ToolNotStartedError", "code": NOT_STARTED}
        )
        sources = None if call.call_seq is None else (call.call_seq,)
        data = {**where, "message": message, "error": error}
        return Event("tool/result", seq, self._time, data, "append", sources)

    def _on_turn_start(self, event: Event) -> None:
        self._turn, self._step = event.data["turn"], None

    def _on_turn_end(self, _event: Event) -> None:
        self._turn = self._step = None

    def _on_step_start(self, event: Event) -> None:
        self._step = event.data["step"]
        self._pending.clear()

    def _on_step_end(self, _event: Event) -> None:
        self._step = None  # what is still pending is nobody's debt any more

    def _on_assistant_message(self, event: Event) -> None:
        if self._step is None:
            return
        for block in event.data["message"]["content"]:
            if block["type"] == "tool-call":
                self._pending.append(_PendingCall(block["id"]))

    def _on_tool_call(self, event: Event) -> None:
        for call in self._pending:
            if call.call_id == event.data["callId"] and call.call_seq is None:
                call.call_seq = event.seq
                return

    def _on_asked(self, event: Event) -> None:
        calls = [c for c in self._pending if c.call_id == event.data.get("callId") and c.call_seq is not None]
        if len(calls) == 1:  # of two with one id nobody can tell which of them waits
            calls[0].question = event.data["id"]

    def _on_decided(self, event: Event) -> None:
        # A call that changes something begins only when the log with this event is durable.
        for call in self._pending:
            if call.question == event.data["id"] and event.data.get("outcome") == "allowed-once":
                call.question = None

    def _on_tool_result(self, event: Event) -> None:
        if isinstance(event.surface_op, Replace):
            return  # a pruned result stands in for one that was given before
        answered = event.data["message"]["content"][0]["toolCallId"]
        for position, call in enumerate(self._pending):
            if call.call_id == answered:
                del self._pending[position]
                return


_OBSERVERS: dict[str, Callable[[Closers, Event], None]] = {
    "turn/start": Closers._on_turn_start,
    "turn/end": Closers._on_turn_end,
    "step/start": Closers._on_step_start,
    "step/end": Closers._on_step_end,
    "assistant/message": Closers._on_assistant_message,
    "tool/call": Closers._on_tool_call,
    "approval/asked": Closers._on_asked,
    "approval/decided": Closers._on_decided,
    "tool/result": Closers._on_tool_result,
}
