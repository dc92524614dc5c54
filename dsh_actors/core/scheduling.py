"""Runs the tool calls of one step: barriers, a rolling pool, results in the model's order.

A parallel-safe call may overlap its neighbours up to a cap; any other call runs alone. Policy
stages never overlap. A call is classified again just before it starts. On abort nothing more is
started, what runs is waited for, and every call still gets exactly one result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from dsh_actors.core.events import KNOWN_TYPES, OWN_TYPES
from dsh_actors.core.ids import Ticket, derived_message_id
from dsh_actors.core.inbox import splice
from dsh_actors.core.messages import (
    Message,
    PluginSource,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    user_message,
)
from dsh_actors.core.text import JsonObject, json_fault, shorten
from dsh_actors.core.turn_env import TurnSink
from dsh_actors.core.turn_io import (
    Call,
    CancelWork,
    Effect,
    FinaliseTool,
    Flush,
    Flushed,
    Notify,
    PrepareTool,
    RunTool,
    ToolFinalised,
    ToolPrepared,
    ToolRan,
    ToolResult,
)

__all__ = ["ToolBatch", "parse_call"]


class _Status(Enum):
    WAITING = auto()
    PREPARING = auto()
    FLUSHING = auto()
    RUNNING = auto()
    RAN = auto()
    FINALISING = auto()
    DONE = auto()


@dataclass(slots=True)
class _Slot:
    index: int
    call: Call
    raw: str
    status: _Status = _Status.WAITING
    ticket: Ticket | None = None
    call_seq: int = -1
    result: ToolResult | None = None


_IN_FLIGHT = {_Status.PREPARING, _Status.FLUSHING, _Status.RUNNING}


class ToolBatch:
    """``is_parallel`` and ``needs_flush`` classify a call now; ``admit`` says why one may not start."""

    def __init__(
        self,
        blocks: Sequence[ToolCallBlock],
        sink: TurnSink,
        *,
        place: JsonObject,
        max_parallel: int,
        is_parallel: Callable[[Call], bool],
        needs_flush: Callable[[Call], bool],
        admit: Callable[[], JsonObject | None],
    ) -> None:
        self._slots = [_Slot(i, parse_call(block), block.arguments) for i, block in enumerate(blocks)]
        self._sink = sink
        self._place = place
        self._max_parallel = max_parallel
        self._is_parallel = is_parallel
        self._needs_flush = needs_flush
        self._admit = admit
        self._next = 0
        self._committed = 0
        self._barrier = False
        self._refusal: JsonObject | None = None
        self._abort_cause: JsonObject | None = None
        self.concluded = False

    @property
    def done(self) -> bool:
        return self._committed == len(self._slots)

    def handle(self, message: ToolPrepared | ToolRan | ToolFinalised | Flushed) -> None:
        """Take one reply (an outdated one is ignored), then start and commit what is possible."""
        slot = next(
            (s for s in self._slots if s.ticket == message.ticket and s.status is not _Status.DONE), None
        )
        if slot is None:
            return
        match message:
            case ToolPrepared(refusal=None) if self._needs_flush(slot.call):
                self._ask(slot, _Status.FLUSHING, Flush)
            case ToolPrepared(refusal=None):
                self._run(slot)
            case ToolPrepared(refusal=ToolResult() as refusal):
                self._ran(slot, refusal)
            case Flushed(failure=None):
                self._run(slot)
            case Flushed():
                return  # the turn is told by `StorageBroken` and aborts this batch
            case ToolRan():
                self._ran(slot, message.result)
            case ToolFinalised():
                self._commit(slot, message.result)
        self.pump()

    def pump(self) -> None:
        """Finalise the next result in the model's order and fill the pool."""
        while True:
            if self._committed < self._next:
                slot = self._slots[self._committed]
                if slot.status is _Status.RAN and slot.result is not None:
                    if self._abort_cause is not None:
                        self._commit(slot, slot.result)
                        continue
                    slot.status, slot.ticket = _Status.FINALISING, self._sink.new_ticket()
                    self._sink.do(FinaliseTool(slot.ticket, slot.index, slot.call, slot.result))
            if not self._start_next():
                break
        cause = self._abort_cause or self._refusal
        if cause is not None and self._committed == self._next:
            self._answer_unstarted(cause)

    def abort(self, cause: JsonObject) -> None:
        """Start nothing more and wait for no stage but the bodies that run, which are told to end.

        A call that did not reach its body is answered at once; a result is committed as the tool gave it.
        """
        if self._abort_cause is not None:
            return
        self._abort_cause = cause
        for slot in self._slots:
            if slot.ticket is None:
                continue
            self._sink.do(CancelWork(slot.ticket, cause))
            if slot.status in (_Status.PREPARING, _Status.FLUSHING):
                self._ran(slot, _not_started(cause))
            elif slot.status is _Status.FINALISING and slot.result is not None:
                self._commit(slot, slot.result)
        self.pump()

    def _start_next(self) -> bool:
        """Start one call if the barriers, the pool and the policy stage allow it now."""
        if self._abort_cause or self._refusal or self._next == len(self._slots) or self._barrier:
            return False
        slot = self._slots[self._next]
        open_slots = self._slots[self._committed : self._next]
        if any(s.status is _Status.PREPARING for s in open_slots):
            return False
        parallel = slot.call.problem is None and self._is_parallel(slot.call)
        if open_slots:
            in_flight = sum(s.status in _IN_FLIGHT for s in open_slots)
            if not parallel or in_flight >= self._max_parallel:
                return False
        self._refusal = self._admit()
        if self._refusal is not None:
            return False
        self._barrier = not parallel
        self._next += 1
        self._log_call(slot)
        slot.status, slot.ticket = _Status.PREPARING, self._sink.new_ticket()
        self._sink.do(PrepareTool(slot.ticket, slot.index, slot.call))
        return True

    def _log_call(self, slot: _Slot) -> None:
        data = self._place | {"callId": slot.call.id, "name": slot.call.name, "arguments": slot.raw}
        slot.call_seq = self._sink.emit("tool/call", data).seq

    def _ask(self, slot: _Slot, status: _Status, effect: Callable[[Ticket], Effect]) -> None:
        slot.status, slot.ticket = status, self._sink.new_ticket()
        self._sink.do(effect(slot.ticket))

    def _run(self, slot: _Slot) -> None:
        self._ask(slot, _Status.RUNNING, lambda ticket: RunTool(ticket, slot.index, slot.call))

    def _ran(self, slot: _Slot, result: ToolResult) -> None:
        slot.status, slot.ticket, slot.result = _Status.RAN, None, result

    def _commit(self, slot: _Slot, result: ToolResult) -> None:
        slot.status, slot.ticket = _Status.DONE, None
        self._committed += 1
        self._barrier = False
        self.concluded |= result.concludes and not result.is_error
        _log_result(self._sink, slot.call, slot.call_seq, result)

    def _answer_unstarted(self, cause: JsonObject) -> None:
        for slot in self._slots[self._next :]:
            self._next += 1
            self._log_call(slot)
            self._commit(slot, _not_started(cause))


def _log_result(turn: TurnSink, call: Call, call_seq: int, result: ToolResult) -> None:
    """Log one result; what it adds to the conversation waits for the next step."""
    for kind, fact in result.events:
        # A fact that only its tool knows must not keep others from reading the session.
        turn.emit(kind, fact, ignorable=kind in OWN_TYPES or kind not in KNOWN_TYPES)
    state = turn.state
    block = ToolResultBlock(call.id, (TextBlock(result.text), *result.images), result.is_error)
    message_id = derived_message_id(state.header.id, state.next_seq)
    message = Message(message_id, "user", (block,), ToolSource(call.id))
    data: JsonObject = {**turn.place, "message": message.to_json()}
    if result.is_error and result.code is not None:
        data["error"] = {"name": result.name or "ToolError", "code": result.code}
    if result.meta is not None:
        data["meta"] = result.meta
    turn.emit("tool/result", data, surface="append", sources=(call_seq,))
    turn.do(Notify("tools/result", {"call": call, "result": result}))
    contexts = result.contexts
    note = turn.env.watch.repeat_note(state.guard, call.name)
    if note is not None:
        source = PluginSource("repeat-guard", "notice", {"summary": f"{call.name} repeated"})
        contexts = (
            user_message(derived_message_id(state.header.id, state.next_seq), note, source),
            *contexts,
        )
    if contexts:
        end = len(state.inbox.pending("next-step"))
        turn.emit("agent/inbox/spliced", splice("next-step", end, inserted=contexts))


def parse_call(block: ToolCallBlock) -> Call:
    """Read the arguments strictly: a JSON object, ``""`` for none, or a JSON string that holds an object."""
    text = block.arguments
    if not text.strip():
        return Call(block.id, block.name, {})
    try:
        value: Any = json.loads(text, parse_constant=_refuse_constant)
        if isinstance(value, str):
            value = json.loads(value, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return Call(
            block.id, block.name, None, f"the arguments are not valid JSON: {shorten(json_fault(error), 200)}"
        )
    if not isinstance(value, dict):
        return Call(
            block.id, block.name, None, f"the arguments must be a JSON object, not {type(value).__name__}"
        )
    return Call(block.id, block.name, value)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _not_started(cause: JsonObject) -> ToolResult:
    match cause:
        case {"kind": "user" | "parent"}:
            why = "the turn was interrupted"
        case {"kind": "hook", "reason": str(reason)}:
            why = f"the turn ended early ({reason})"
        case _:
            why = "the agent is stopping"
    return ToolResult(
        f"Error: this call was not started: {why}. Nothing was changed by it.",
        is_error=True,
        code="ABORTED_BEFORE_DISPATCH",
        name="AbortError",
    )
