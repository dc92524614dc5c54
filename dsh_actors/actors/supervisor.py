"""The supervisor actor: agents are created, resumed and disposed of here, as transactions, and restarted.

What can wait (files, setup functions, observers, draining) runs in tasks; the supervisor itself only
keeps the books, so it answers at once and never waits for an agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.actors.agent import AgentActor
from dsh_actors.actors.lifecycle import CLOSE_TIMEOUT_S, AgentEntry, BringUp, Lifecycle, crash_report, meant
from dsh_actors.actors.replies import fail, presentable, settle, succeed
from dsh_actors.actors.restarts import Restarts
from dsh_actors.core import turn_io as io
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import ActorGone, HarnessError, SessionBusy, SessionExists, error_chain
from dsh_actors.runtime.actor import BaseActor, Died, start_actor
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.tasks import Task, TaskEnd, start_task

__all__ = ["SupervisorActor", "WorkerSpec"]

GIVE_UP_TIMEOUT_S = 5.0
"""How long an agent may take to come to rest when a worker it needs has failed."""

KILL_GRACE_S = 1.0

WorkerSpec = Callable[[int, Ref[Any]], BaseActor]
"""Builds one shared worker actor for a generation, with the supervisor as its parent."""


@dataclass(frozen=True, slots=True)
class _BroughtUp:
    session_id: SessionId
    promise: GeventFuture
    source: str
    end: TaskEnd[tuple[AgentEntry, p.Opened]]


@dataclass(frozen=True, slots=True)
class _Announced:
    entry: AgentEntry
    promise: GeventFuture
    end: TaskEnd[None]


@dataclass(frozen=True, slots=True)
class _Undone:
    session_id: SessionId
    promise: GeventFuture


@dataclass(frozen=True, slots=True)
class _Recovered:
    """``generation`` is that of the incarnation that died."""

    entry: AgentEntry
    generation: int
    end: TaskEnd[p.Opened]


@dataclass(frozen=True, slots=True)
class _Disposed:
    entry: AgentEntry
    end: TaskEnd[None]


class SupervisorActor(BaseActor):
    """Owns: the table of agents and the shared workers.
    Receives: Create/Resume/Fork/Dispose/Get/AwaitAgent, Shutdown, the ends of its tasks, and Died of
    its children.
    Sends: replies; to an agent Cancel when it is disposed of and Wake after a crash.
    Waits for: nothing; transactions, and all foreign code, run in tasks that ask downwards.
    Dies when: its own books are wrong. Its agents work on then, without restarts; nothing new can be
    started, and the harness closes without it: ``agents`` is the harness's. ``dispensable`` workers
    are done without when they keep failing. ``count`` hears of every restart.
    """

    def __init__(
        self,
        *,
        name: str,
        lifecycle: Lifecycle,
        workers: Mapping[str, tuple[Address, WorkerSpec]],
        agents: dict[SessionId, AgentEntry],
        dispensable: frozenset[str] = frozenset(),
        count: Callable[..., None] = lambda *_series: None,
    ) -> None:
        super().__init__(name=name)
        self._life = lifecycle
        self._clock = lifecycle.wiring.clock
        self._workers = workers
        self._worker_restarts = {name: Restarts() for name in workers}
        self._generations: dict[str, int] = {}
        self._failed: dict[str, str] = {}
        self._agents = agents
        self._dispensable = dispensable
        self._count = count
        self._coming: dict[SessionId, Task] = {}
        self._closing: list[GeventFuture] | None = None

    def started(self) -> None:
        for name in self._workers:
            self._start_worker(name)

    @property
    def condition(self) -> str:
        restarting = sum(entry.restarting for entry in self._agents.values())
        words = f"agents={len(self._agents)} coming={len(self._coming)} restarting={restarting}"
        failed = "; ".join(self._failed.values())
        return f"{words} failed: {failed}" if failed else words

    def stopped(self) -> None:
        if self.failure is None:
            return
        addresses = [address for address, _ in self._workers.values()]
        for address in (*addresses, *(entry.address for entry in self._agents.values())):
            address.give_up(f"{address.name} has died, and so has the supervisor")

    def receive(self, message: Any) -> Any:
        match message:
            case p.CreateAgent():
                return self._bring_up(message.header.id, message)
            case p.ResumeAgent():
                return self._bring_up(message.session_id, message)
            case p.ForkAgent():
                return self._fork(message)
            case _BroughtUp():
                self._brought_up(message)
            case _Announced():
                self._announced(message)
            case _Undone():
                self._coming.pop(message.session_id, None)
                fail(message.promise, self._refusal())
                self._check_closed()
            case p.DisposeAgent():
                return self._dispose_asked(message)
            case _Disposed():
                self._disposed(message)
            case p.GetAgents():
                return list(self._agents.values())
            case p.AwaitAgent():
                return self._await(message)
            case Died():
                self._died(message)
            case _Recovered():
                self._recovered(message)
            case p.Shutdown():
                return self._shutdown(message.timeout_s)
            case _:
                # The only actor that nobody restarts does not die of a stray message.
                LOGGER.error("the supervisor cannot use a %s", type(message).__name__)

    # --- creating and resuming ---------------------------------------------------------------

    def _refusal(self) -> ActorGone | None:
        """Why no agent can be brought up any more."""
        if self._closing is not None:
            return ActorGone("the harness is closing")
        for reason in self._failed.values():
            return ActorGone(f"the harness has failed: {reason}", hint="close it and open another")
        return None

    def _bring_up(self, session_id: SessionId, message: BringUp) -> GeventFuture:
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        if session_id in self._agents or session_id in self._coming:
            raise SessionBusy(f"session {session_id} is live in this process")
        promise = self.promise()
        source = "resume" if isinstance(message, p.ResumeAgent) else "startup"
        self._coming[session_id] = start_task(
            lambda _token: self._life.prepare(session_id, message),
            lambda end: self.ref.tell(_BroughtUp(session_id, promise, source, end)),
            name=f"{source} {session_id}",
        )
        return promise

    def _fork(self, message: p.ForkAgent) -> GeventFuture:
        if message.child_id in self._agents or message.child_id in self._coming:
            raise SessionExists(
                f"session {message.child_id!r} is live in this process", hint="choose another id"
            )
        parent = self._agents.get(message.session_id)
        is_coming = message.session_id in self._coming and parent is None
        if is_coming or (parent is not None and parent.disposing is not None):
            raise SessionBusy(
                f"session {message.session_id} is just coming or going",
                code="SESSION_NOT_LIVE",
                hint="try again",
            )
        return self._bring_up(message.child_id, message)

    def _brought_up(self, message: _BroughtUp) -> None:
        end, session_id, promise = message.end, message.session_id, message.promise
        if end.error is not None or end.value is None:
            self._coming.pop(session_id, None)
            fail(promise, presentable(end.error, self._refusal()))
            self._check_closed()
            return
        entry, opened = end.value
        if self._refusal() is not None:
            # It was on its way when the end began: nobody gets to see it.
            self._coming[session_id] = start_task(
                lambda _token: self._life.undo(entry),
                lambda _end: self.ref.tell(_Undone(session_id, promise)),
                name=f"undo {session_id}",
            )
            return
        self._agents[session_id] = entry
        self._start_agent(entry, opened)
        self._coming[session_id] = start_task(
            lambda _token: self._life.announce(entry, message.source),
            lambda end: self.ref.tell(_Announced(entry, promise, end)),
            name=f"announce {session_id}",
        )

    def _announced(self, message: _Announced) -> None:
        entry, promise, error = message.entry, message.promise, message.end.error
        self._coming.pop(entry.id, None)
        if entry.disposing is not None or self._agents.get(entry.id) is not entry:
            fail(promise, self._refusal() or _gone(entry))
        elif error is not None:
            # A creation observer may veto; the caller sees its error once nothing stays.
            self._dispose(entry, CLOSE_TIMEOUT_S, lambda _: fail(promise, presentable(error)))
        else:
            succeed(promise, entry)
        self._check_closed()

    def _start_agent(self, entry: AgentEntry, opened: p.Opened, *, wake: bool = False) -> None:
        actor = AgentActor(
            name=entry.id,
            parent=self.ref,
            generation=entry.generation,
            opened=opened,
            wiring=self._life.wiring,
            parts=entry.parts,
        )
        entry.restarting = False
        ref = start_actor(actor)
        if wake:
            ref.tell(io.Wake())  # before anybody can ask whether it is idle
        entry.address.move_to(ref)
        waiting, entry.waiting = entry.waiting, []
        for promise in waiting:
            succeed(promise, None)

    # --- disposing ---------------------------------------------------------------------------

    def _dispose_asked(self, message: p.DisposeAgent) -> GeventFuture | None:
        entry = meant(self._agents, message)
        if entry is None:
            return None
        promise = self.promise()
        self._dispose(entry, message.timeout_s, partial(settle, promise), keep_inbox=message.keep_inbox)
        return promise

    def _dispose(
        self,
        entry: AgentEntry,
        timeout_s: float,
        settled: Callable[[BaseException | None], None] | None = None,
        crash: dict[str, Any] | None = None, *, keep_inbox: bool = False,
    ) -> None:
        """``settled`` hears of the end; ``crash`` is reported to the observers before."""
        waiting = [settled] if settled is not None else []
        if entry.disposing is not None:
            entry.disposing.extend(waiting)
            return
        entry.disposing = waiting
        for promise in entry.waiting:  # what they wait with may be what has to end first
            fail(promise, _gone(entry))
        entry.address.tell(io.Cancel({"kind": "disposed"}, keep_inbox=keep_inbox, keep_title=True))
        announcement = self._coming.get(entry.id)
        if announcement is not None:
            announcement.kill(KILL_GRACE_S, "disposed")

        def work(_token: Any) -> None:
            if crash is not None:
                self._life.report_crash(entry, crash)
            self._life.drain(entry, timeout_s)

        start_task(work, lambda end: self.ref.tell(_Disposed(entry, end)), name=f"dispose {entry.id}")

    def _disposed(self, message: _Disposed) -> None:
        entry, error = message.entry, message.end.error
        if self._agents.get(entry.id) is not entry:
            return
        del self._agents[entry.id]
        for settled in entry.disposing or ():
            settled(None if error is None else presentable(error))
        self._check_closed()

    def _await(self, message: p.AwaitAgent) -> GeventFuture | None:
        entry = meant(self._agents, message)
        if entry is None or entry.disposing is not None:
            raise ActorGone(f"there is no agent {message.session_id}") if entry is None else _gone(entry)
        if not entry.restarting:
            return None
        promise = self.promise()
        entry.waiting.append(promise)
        return promise

    def _shutdown(self, timeout_s: float) -> GeventFuture:
        promise = self.promise()
        if self._closing is None:
            self._closing = []
        self._closing.append(promise)
        for session_id, task in tuple(self._coming.items()):
            if session_id not in self._agents:
                task.kill(timeout_s, "the harness is closing")
        for entry in tuple(self._agents.values()):
            self._dispose(entry, timeout_s)
        self._check_closed()
        return promise

    def _check_closed(self) -> None:
        if self._closing is not None and not self._agents and not self._coming:
            closing, self._closing = self._closing, []
            for promise in closing:
                succeed(promise, None)

    # --- children that died ------------------------------------------------------------------

    def _died(self, message: Died) -> None:
        if message.name in self._workers:
            if message.generation == self._generations.get(message.name):
                self._worker_died(message)
            return
        entry = self._agents.get(SessionId(message.name))
        if entry is None or entry.generation != message.generation or entry.disposing is not None:
            return
        entry.last_error = error_chain(message.error)
        entry.restarting = True
        report, generation = crash_report(entry, message.error), entry.generation
        if not entry.restarts.may_restart(self._clock.monotonic()):
            self._dispose(entry, CLOSE_TIMEOUT_S, crash=report)
            return

        def recover(_token: Any) -> p.Opened:
            self._life.report_crash(entry, report)
            return self._life.recover(entry)

        entry.recovery = start_task(
            recover,
            lambda end: self.ref.tell(_Recovered(entry, generation, end)),
            name=f"recover {entry.id}",
        )

    def _recovered(self, message: _Recovered) -> None:
        entry, opened = message.entry, message.end.value
        is_current = self._agents.get(entry.id) is entry and entry.generation == message.generation
        if not is_current or not entry.restarting or entry.disposing is not None:
            return
        if opened is None:
            entry.last_error = error_chain(message.end.error or HarnessError("the log could not be read"))
            self._dispose(entry, CLOSE_TIMEOUT_S)
            return
        entry.generation += 1
        entry.last_error = None
        self._count("dsh_agent_restarts_total")
        # What was queued behind the turn that the crash ended would have been its successor.
        self._start_agent(entry, opened, wake=bool(opened.closers) and opened.state.inbox.has_pending())

    def _worker_died(self, message: Died) -> None:
        name = message.name
        if self._worker_restarts[name].may_restart(self._clock.monotonic()):
            self._start_worker(name, message.unread)
            return
        reason = f"{name} keeps failing: {error_chain(message.error)}"
        LOGGER.error("%s", reason)
        if name in self._failed or name in self._dispensable:
            self._workers[name][0].give_up(reason)
            return
        # Once more, so that what is under way can be wound down in order; then it is over.
        self._failed[name] = reason
        self._start_worker(name, message.unread)
        for entry in tuple(self._agents.values()):
            entry.last_error = reason
            self._dispose(entry, GIVE_UP_TIMEOUT_S)

    def _start_worker(self, name: str, unread: tuple[Any, ...] = ()) -> None:
        address, build = self._workers[name]
        generation = self._generations.get(name, -1) + 1
        self._generations[name] = generation
        if generation:
            self._count("dsh_worker_restarts_total", name)
        address.move_to(start_actor(build(generation, self.ref)), unread)


def _gone(entry: AgentEntry) -> ActorGone:
    return ActorGone(f"agent {entry.id} is gone: {entry.last_error or 'disposed of'}")
