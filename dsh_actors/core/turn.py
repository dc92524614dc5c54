r"""The turn machine: everything that decides what an agent does next is here.

``advance(input, now)`` returns the events to append and the work to start. There is no I/O, no
clock and no greenlet. The durable part of what the machine knows is a `SessionState`, changed by
folding the very events it emits, so replaying the log gives the same state. Two parts have files
of their own: the model half of a step (`request_cycle`) and its tool calls (`scheduling`).

    idle -> assembling -> deciding -> calling -> flushing -> streaming -> tools -> (next step)
                                         ^                       |           \-> stopping -> idle
                                         +---- backoff <- recovering
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import Failure
from dsh_actors.core.events import Event, SurfaceOp
from dsh_actors.core.ids import Ticket, derived_message_id
from dsh_actors.core.inbox import TARGETS, Target, splice
from dsh_actors.core.loop_guard import LoopGuard
from dsh_actors.core.messages import Message, PluginSource, ToolCallBlock, require_input, user_message
from dsh_actors.core.prompt import NO_CONTEXT, is_context, last_context
from dsh_actors.core.request_cycle import RequestCycle
from dsh_actors.core.scheduling import ToolBatch
from dsh_actors.core.state import SessionState
from dsh_actors.core.text import JsonObject
from dsh_actors.core.turn_env import Environment, Phase
from dsh_actors.errors import ProtocolError

__all__ = ["TurnMachine"]


class TurnMachine:
    """One agent's turns. Build it over a state whose log is balanced (see `core/repair.py`)."""

    def __init__(self, state: SessionState, env: Environment) -> None:
        self.state = state
        self.env = env
        self.phase = Phase.IDLE
        self.ticket: Ticket | None = None
        self._tickets = self._now = self._steps_in_turn = 0
        self._events: list[Event] = []
        self._effects: list[io.Effect] = []
        self.requests = RequestCycle(self)
        self.titles = self.requests.titles
        self._batch: ToolBatch | None = None
        self._prompt: io.PromptReady | None = None
        self._claimed: tuple[Message, ...] = ()
        self._reason: JsonObject | None = None
        self._ending: JsonObject | None = None
        self._told_running = self._latched = self._disposed = False
        self._context: tuple[int, str | None] | None = None

    def advance(self, message: io.Input, now: int) -> io.Transition:
        """Take one input at ``now`` (ms since the epoch). Raises `EventRefused` or `ProtocolError`, with
        nothing changed, for input that cannot be taken."""
        self._now = max(now, self.state.last_time)
        self._events, self._effects = [], []
        self._dispatch(message)
        return io.Transition(tuple(self._events), tuple(self._effects))

    def _dispatch(self, message: io.Input) -> None:
        match message:
            case io.Deliver():
                self._deliver(message)
            case io.Wake():
                if self.state.inbox.has_pending():
                    self._wake()
            case io.Cancel():
                if not message.keep_title:
                    self.titles.cancel(message.cause)
                self._cancel(message.cause, message.keep_inbox)
            case io.EditInbox():
                self._edit_inbox(message)
            case io.ClearInbox():
                self._clear_inbox()
            case io.Record():
                self.emit(message.type, message.data, ignorable=message.ignorable)
            case io.TitleWritten():
                self.titles.on_written(message)
            case io.StorageBroken():
                self._storage_broke(message.failure)
            case io.BeginMaintenance():
                self._begin_maintenance(message.ticket)
            case io.ToolPrepared() | io.ToolRan() | io.ToolFinalised():
                self._on_tool(message)
            case io.Flushed() if self.phase is Phase.TOOLS:
                self._on_tool(message)
            case _ if message.ticket == self.ticket:
                self._on_reply(message)

    def _on_reply(self, message: io.Reply) -> None:
        """A reply to the work of the present phase; others belong to an attempt that is over."""
        match message:
            case io.Chunks():
                self.requests.on_chunks(message)
            case io.Flushed():
                self.requests.on_flushed(message)
            case io.PromptReady():
                self._on_prompt(message)
            case io.PreStepDecided():
                self._on_decision(message.decision)
            case io.CallReady():
                self.requests.on_call(message)
            case io.WorkFailed():
                self.fail(message.failure)
            case io.ErrorDecided():
                self.requests.on_error_decided(message)
            case io.TimerFired():
                self.requests.on_timer()
            case io.StoppingDone():
                self._after_stopping()
            case io.EndMaintenance():
                self._go_idle()
            case _:
                assert_never(message)

    # --- events, effects, tickets ------------------------------------------------------------

    def emit(
        self,
        kind: str,
        data: JsonObject,
        *,
        surface: SurfaceOp | None = None,
        sources: tuple[int, ...] | None = None,
        ignorable: bool = False,
    ) -> Event:
        """Append one fact: it is folded into the state at once."""
        event = Event(kind, self.state.next_seq, self._now, data, surface, sources, ignorable)
        self.state.apply(event)
        self._events.append(event)
        return event

    def do(self, effect: io.Effect) -> None:
        self._effects.append(effect)

    def new_ticket(self) -> Ticket:
        self._tickets += 1
        return Ticket(self._tickets)

    def start(self, phase: Phase, effect: Callable[[Ticket], io.Effect]) -> None:
        """Enter a phase that waits for the outside world."""
        self.phase, self.ticket = phase, self.new_ticket()
        self.do(effect(self.ticket))

    @property
    def place(self) -> JsonObject:
        return {"turn": self.state.open_turn, "step": self.state.open_step}

    @property
    def running(self) -> bool:
        return self.phase not in (Phase.IDLE, Phase.MAINTENANCE)

    # --- inbox -------------------------------------------------------------------------------

    def _deliver(self, message: io.Deliver) -> None:
        require_input(message.message)
        # After a cancel, what wakes the agent belongs to a turn of its own.
        late = message.wake and self._ending is not None
        target: Target = "next-turn" if late else message.target
        end = len(self.state.inbox.pending(target))
        self.emit("agent/inbox/spliced", splice(target, end, inserted=(message.message,)))
        self.do(io.Notify("agent/inbox/inserted", {"message": message.message}))
        if message.wake:
            self._wake()

    def _edit_inbox(self, edit: io.EditInbox) -> None:
        found = self.state.inbox.find(edit.message_id)
        if found is None:
            raise ProtocolError(f"message {edit.message_id!r} is not pending", code="NOT_PENDING")
        if edit.message is not None:
            require_input(edit.message)
        target, index = found
        old = self.state.inbox.pending(target)[index]
        new = () if edit.message is None else (edit.message,)
        self.emit("agent/inbox/spliced", splice(target, index, 1, new))
        self.do(io.Notify("agent/inbox/discarded", {"message": old}))
        for message in new:
            self.do(io.Notify("agent/inbox/inserted", {"message": message}))

    def _clear_inbox(self) -> None:
        for target in TARGETS:
            pending = self.state.inbox.pending(target)
            if pending:
                self.emit("agent/inbox/spliced", splice(target, 0, len(pending)))
                for message in pending:
                    self.do(io.Notify("agent/inbox/discarded", {"message": message}))

    def _claim(self, target: Target) -> None:
        """Take all next-step input, then one next-turn message if a turn begins."""
        inbox = self.state.inbox
        steering = tuple(inbox.pending("next-step"))
        queued = tuple(inbox.pending("next-turn")[:1]) if target == "next-turn" else ()
        if steering:
            self.emit("agent/inbox/spliced", splice("next-step", 0, len(steering), claim=True))
        if queued:
            self.emit("agent/inbox/spliced", splice("next-turn", 0, 1, claim=True))
        self._claimed = steering + queued
        for message in self._claimed:
            self.do(io.Notify("agent/inbox/claimed", {"message": message, "turn": self.state.open_turn}))

    # --- waking and idleness -----------------------------------------------------------------

    def _wake(self) -> None:
        if self._disposed:
            return
        if self.phase is Phase.IDLE:
            self._told_running = True
            self.do(io.Notify("agent/status", {"status": "running"}))
            self._open_turn()
        elif self.phase is Phase.MAINTENANCE or self._ending is not None:
            self._latched = True

    def _go_idle(self) -> None:
        # Not by the phase: a turn that a limit forbids is over before it has one.
        was_running, self._told_running = self._told_running, False
        self.phase, self.ticket, self._ending = Phase.IDLE, None, None
        latched, self._latched = self._latched, False
        if was_running:
            self.do(io.Notify("agent/status", {"status": "idle"}))
        if latched and self.state.inbox.has_pending():
            self._wake()

    def _begin_maintenance(self, ticket: Ticket) -> None:
        if self.phase is not Phase.IDLE:
            raise ProtocolError("the agent is not idle", code="BUSY")
        self.phase, self.ticket = Phase.MAINTENANCE, ticket

    # --- one turn ----------------------------------------------------------------------------

    def _open_turn(self) -> None:
        self._reason = None
        self._steps_in_turn = 0
        self.emit("turn/start", {"turn": self.state.last_turn + 1})
        self._propose("next-turn")

    def _propose(self, target: Target) -> None:
        """Claim input for one more step, unless a limit of the run is reached."""
        guard = self.state.guard if target == "next-step" else LoopGuard()
        if (reached := self.env.watch.claim_step(self.state.counters, guard)) is not None:
            self.stop_at(reached)
            return
        self._claim(target)
        turn, step = self.state.last_turn, self._steps_in_turn + 1
        self.start(Phase.ASSEMBLING, lambda ticket: io.AssemblePrompt(ticket, turn, step))

    def _on_prompt(self, ready: io.PromptReady) -> None:
        self._prompt = ready
        messages = self._claimed
        # Context alone starts no step: only a first batch with input carries it.
        last = self._last_context()
        context = ready.context or (NO_CONTEXT if last is not None else None)
        if (messages or self._steps_in_turn) and context is not None and context != last:
            source = PluginSource("context", "snapshot")
            message_id = derived_message_id(self.state.header.id, self.state.next_seq)
            messages = (*messages, user_message(message_id, context, source))
        turn, step, claimed = self.state.last_turn, self._steps_in_turn + 1, self._claimed
        self.start(
            Phase.DECIDING, lambda ticket: io.AskPreStep(ticket, turn, step, claimed, io.Enter(messages))
        )

    def _last_context(self) -> str | None:
        """The context snapshot on the surface; read back from it after a resume or a replacement."""
        surface = self.state.surface
        if self._context is None or self._context[0] != surface.replace_generation:
            self._context = (surface.replace_generation, last_context(surface.messages()))
        return self._context[1]

    def _on_decision(self, decision: io.Enter | io.Reject) -> None:
        prompt = self._prompt
        if isinstance(decision, io.Reject) or prompt is None:
            self._end_turn({"kind": "blocked"})
        elif not decision.messages and self._reason is not None:
            self._end_turn(self._reason, drive_on=True)
        elif not decision.messages and self._steps_in_turn == 0:
            self._end_turn({"kind": "completed"})
        else:
            self._steps_in_turn += 1
            self.emit("step/start", {"turn": self.state.last_turn, "step": self._steps_in_turn})
            for message in decision.messages:
                self.log_user_message(message)
            self.requests.begin_step(
                self._steps_in_turn, prompt.system, prompt.tools, series=decision.series
            )

    def log_user_message(self, message: Message) -> None:
        self.titles.on_user_message(self.emit("user/message", message.to_json(), surface="append"))
        if is_context(message):
            self._context = None

    def stop_at(self, reached: JsonObject) -> None:
        """Close the turn because of a limit of the run."""
        self.emit("limit/reached", reached, ignorable=True)
        self._end_turn({"kind": "aborted", "reason": {"kind": "hook", "reason": reached["kind"]}})

    def fail(self, failure: Failure) -> None:
        """Close the turn with an error; what is queued waits for the next wake."""
        self.do(io.Notify("agent/error", {**self.place, "error": failure.to_json()}))
        self._end_turn({"kind": "error", "error": failure.to_json()})

    # --- tools -------------------------------------------------------------------------------

    def run_tools(self, calls: list[ToolCallBlock]) -> None:
        self.phase, self.ticket = Phase.TOOLS, None
        self._batch = ToolBatch(
            calls,
            self,
            place=self.place,
            max_parallel=self.env.max_parallel,
            is_parallel=self.env.is_parallel,
            needs_flush=self.env.needs_flush,
            admit=lambda: self.env.watch.before_call(self.state.counters, self.state.guard),
        )
        self._batch.pump()
        self._after_batch()

    def _on_tool(self, message: io.ToolPrepared | io.ToolRan | io.ToolFinalised | io.Flushed) -> None:
        if self._batch is not None:
            self._batch.handle(message)
            self._after_batch()

    def _after_batch(self) -> None:
        batch = self._batch
        if batch is None or not batch.done:
            return
        self._batch = None
        if self._ending is not None:
            self._end_turn(self._ending)
        else:
            self.end_step({"kind": "completed"} if batch.concluded else None)

    def end_step(self, result: JsonObject | None) -> None:
        """Close the step. ``result`` None: its tool results are still owed to the model."""
        self.emit("step/end", self.place)
        if self._reason is None or self._reason["kind"] != "max-tokens":
            self._reason = result
        if self._reason is not None and not self.state.inbox.has_pending("next-step"):
            turn, reason = self.state.last_turn, self._reason
            self.start(Phase.STOPPING, lambda ticket: io.AskStopping(ticket, turn, reason))
        else:
            self._propose("next-step")

    def _after_stopping(self) -> None:
        if self._reason is not None and not self.state.inbox.has_pending("next-step"):
            self._end_turn(self._reason, drive_on=True)
        else:
            self._propose("next-step")

    def _end_turn(self, reason: JsonObject, *, drive_on: bool = False) -> None:
        """Close what is open. ``drive_on``: a turn that ended by itself goes on with what is queued."""
        if self.state.open_step is not None:
            self.emit("step/end", self.place)
        self.emit("turn/end", {"turn": self.state.last_turn, "reason": reason})
        self.do(io.Flush(None))
        self.requests.drop()
        self._batch, self._prompt, self._claimed = None, None, ()
        self.env.watch.settle(self.state.counters)
        may_go_on = drive_on and self.env.watch.before_step(self.state.counters, LoopGuard()) is None
        if may_go_on and self.state.inbox.has_pending():
            self._latched = False
            self._open_turn()
        else:
            self._go_idle()

    def _storage_broke(self, failure: Failure) -> None:
        if self.running:
            self._stop_turn({"kind": "error", "error": failure.to_json()})
        else:
            # No turn can say so any more, and what was promised is not on the disk.
            self.do(io.Notify("agent/error", {"turn": None, "step": None, "error": failure.to_json()}))

    def _cancel(self, cause: JsonObject, keep_inbox: bool) -> None:
        self._disposed |= cause["kind"] == "disposed"
        if not keep_inbox:
            self._clear_inbox()
            self._latched = False
        if self.phase is Phase.MAINTENANCE and self.ticket is not None:
            self.do(io.CancelWork(self.ticket, cause))
        else:
            self._stop_turn({"kind": "aborted", "reason": cause})

    def _stop_turn(self, reason: JsonObject) -> None:
        """End the turn early with ``reason``; the first reason stays. Running tools are waited for."""
        if not self.running or self._ending is not None:
            return
        self._ending = reason
        cause = reason.get("reason", {"kind": "hook", "reason": "storage_full"})
        if self._batch is not None:
            self._batch.abort(cause)
            self._after_batch()
            return
        if self.ticket is not None:
            self.do(io.CancelWork(self.ticket, cause))
        if self.phase is Phase.STREAMING:
            self.requests.log_interrupted()
        self._end_turn(reason)
