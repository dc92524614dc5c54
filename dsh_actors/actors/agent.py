"""The agent actor: feeds its turn machine, commits what it decides, and hands its effects on.

It never waits. Whatever takes time runs elsewhere and returns as a message with its ticket.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from dsh_actors.actors import protocol as p
from dsh_actors.actors.boundary import check_fact, check_message, let_exits_pass
from dsh_actors.actors.chains import Answer
from dsh_actors.actors.effects import EffectRunner
from dsh_actors.actors.wiring import AgentParts, Wiring
from dsh_actors.core import turn_io as io
from dsh_actors.core.events import Event
from dsh_actors.core.inbox import TARGETS
from dsh_actors.core.repair import Closers
from dsh_actors.core.snapshot import dump
from dsh_actors.core.text import require_lossless
from dsh_actors.core.turn import TurnMachine
from dsh_actors.core.turn_env import Phase
from dsh_actors.errors import EventRefused, ProtocolError
from dsh_actors.ports import Checkpoint
from dsh_actors.runtime.actor import BaseActor
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.ref import Ref

__all__ = ["AgentActor"]


class AgentActor(BaseActor):
    """Owns: one session's state, through its turn machine; the only writer of its log.
    Receives: the machine's inputs, WhenIdle, GetStatus, GetSnapshot, ApprovalAnswered.
    Sends: AppendEvents, SaveCheckpoint and FlushSession to the store, work to gateway, pool and approvals.
    Waits for: nothing.
    Dies when: a transition fails, told or asked, unless it was refused with nothing changed; it is
    rebuilt from its log.
    """

    def __init__(
        self,
        *,
        name: str,
        parent: Ref[Any] | None,
        generation: int,
        opened: p.Opened,
        wiring: Wiring,
        parts: AgentParts,
    ) -> None:
        super().__init__(name=name, parent=parent, generation=generation)
        self.machine = TurnMachine(opened.state, parts.env)
        self._id = opened.header.id
        self._parent = opened.header.parent_session if opened.header.origin == "subagent" else None
        self._wiring = wiring
        # A machine starts between turns, where nothing is left to close.
        self._closers = Closers()
        self._checkpoint_below = opened.checkpoint_below
        self._gate = parts.gate
        # A list: it is short, and a deque would be the largest part of an idle agent.
        self._todo: list[io.Input] = []
        self._effects = EffectRunner(self._id, wiring, parts, self.ref, self._todo.extend)
        # Weak: an asker that stopped waiting is forgotten.
        self._waiters: WeakKeyDictionary[GeventFuture, bool] | None = None
        """Who waits for it to be idle; True: and for no title to be written."""

    def receive(self, message: Any) -> Any:
        match message:
            case p.WhenIdle():
                return self._when_idle(settled=message.settled)
            case p.GetStatus():
                return self._status()
            case p.GetSnapshot():
                return self._snapshot()
            case Answer():
                self._effects.on_answer(message)
            case p.ApprovalAnswered():
                self._todo.extend(self._gate.answered(message))
            case io.ToolRan():
                self._effects.tool_ended(message.ticket)
                self._todo.append(message)
            case _:
                self._todo.append(_checked(message))
        self._advance()
        return None

    def may_park(self) -> bool:
        return self.machine.phase is Phase.IDLE

    def stopped(self) -> None:
        self._effects.close()
        self.machine.requests.let_go()

    @property
    def condition(self) -> str:
        machine, state = self.machine, self.machine.state
        place = f" turn={state.last_turn} step={state.open_step or 0}" if machine.running else ""
        tools = "+".join(call.name for call in state.open_calls.values() if call.seq is not None)
        queued = sum(len(state.inbox.pending(target)) for target in TARGETS)
        return f"{machine.phase.value}{place}{tools and f' tool={tools}'} queued={queued}"

    @property
    def belongs_to(self) -> str | None:
        return self._parent

    def _advance(self) -> None:
        """Feed the machine until it waits for somebody else."""
        todo, machine = self._todo, self.machine
        is_taken = False
        while todo:
            before = self._standing()
            try:
                effects = self._take(todo.pop(0))
                is_taken = True
                for effect in effects:
                    self._effects.carry_out(effect)
            except BaseException as error:
                # What was folded and not committed makes each later write fail: only the log is right now.
                refused = isinstance(error, EventRefused | ProtocolError) and before == self._standing()
                if is_taken or not refused or todo:
                    todo.clear()
                    self.die(error)
                if is_taken:
                    let_exits_pass(error)
                    return  # what the sender asked for was done
                raise
        if machine.phase is Phase.IDLE:
            self._tell_waiters()

    def _tell_waiters(self) -> None:
        waiting, is_settled = self._waiters, self._is_settled()
        if waiting is None:
            return
        self._waiters = None
        for waiter, settled in tuple(waiting.items()):
            if is_settled or not settled:
                waiter.set(None)
            else:
                self._await_rest(waiter, settled)

    def _standing(self) -> tuple[object, ...]:
        """Changes with everything that a transition changes."""
        machine = self.machine
        return machine.state.next_seq, machine.phase, machine.ticket

    def _take(self, message: io.Input) -> tuple[io.Effect, ...]:
        transition = self.machine.advance(message, self._wiring.clock.now_ms())
        if transition.events:
            self._commit(transition.events)
        return transition.effects

    def _commit(self, events: tuple[Event, ...]) -> None:
        self._wiring.store.tell(p.AppendEvents(self._id, events))
        for event in events:
            self._closers.observe(event)
        if self._is_checkpoint_due(events):
            checkpoint = self._snapshot()
            self._checkpoint_below = checkpoint.next_seq
            self._wiring.store.tell(p.SaveCheckpoint(self._id, checkpoint))
        self._effects.observe("session/event", *events)

    def _is_checkpoint_due(self, events: tuple[Event, ...]) -> bool:
        since = self.machine.state.next_seq - self._checkpoint_below
        if since < self._wiring.checkpoint_events:
            return False
        return since >= self._wiring.checkpoint_max_events or any(e.type == "turn/end" for e in events)

    def _snapshot(self) -> Checkpoint:
        state = self.machine.state
        return Checkpoint(state.next_seq, dump(state, self._closers))

    def _when_idle(self, *, settled: bool) -> GeventFuture | None:
        if self._is_settled() if settled else self.machine.phase is Phase.IDLE:
            return None
        promise = self.promise()
        self._await_rest(promise, settled)
        return promise

    def _await_rest(self, promise: GeventFuture, settled: bool) -> None:
        if self._waiters is None:
            self._waiters = WeakKeyDictionary()
        self._waiters[promise] = settled

    def _is_settled(self) -> bool:
        return self.machine.phase is Phase.IDLE and not self.machine.titles.is_under_way

    def _status(self) -> p.AgentStatus:
        machine, state = self.machine, self.machine.state
        running = [call.name for call in state.open_calls.values() if call.seq is not None]
        return p.AgentStatus(
            "running" if machine.running else "idle",
            machine.phase.value,
            state.last_turn,
            state.open_step,
            running[0] if running else None,
            len(state.inbox.pending("next-turn")),
            len(state.inbox.pending("next-step")),
            state.next_seq,
            machine.requests.context(),
            (state.request_context or {}).get("contextWindow"),
            state.turn_seq,
        )


def _checked(message: Any) -> io.Input:
    """Refuse what cannot be taken, before anything changes. Raises `EventRefused` or `ProtocolError`."""
    match message:
        case io.Deliver():
            if message.target not in TARGETS:
                raise ProtocolError(f"there is no inbox list {message.target!r}")
            check_message(message.message, "a delivered message")
        case io.EditInbox(message=replacement) if replacement is not None:
            check_message(replacement, "a delivered message")
        case io.Record() if not message.is_checked:
            if check_fact(message.type, message.data) and not message.ignorable:
                return replace(message, ignorable=True)
        case io.Cancel():
            _check_cause(message.cause)
        case _ if not isinstance(message, io.Input):
            raise ProtocolError(f"not a message for an agent: {message!r}")
    return message  # type: ignore[no-any-return]  # it is an `io.Input` by now


def _check_cause(cause: Any) -> None:
    require_lossless(cause, "a cancel cause")
    kind = cause.get("kind") if type(cause) is dict else None
    if kind not in ("user", "parent", "hook", "disposed"):
        raise EventRefused(f"unknown cancel cause {cause!r}")
    if kind == "hook" and type(cause.get("reason")) is not str:
        raise EventRefused("a hook that cancels needs a reason")
