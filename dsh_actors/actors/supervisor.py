"""The supervisor actor: agents are created, resumed and disposed of here, as transactions, and restarted.

What can wait (files, setup functions, draining) runs in tasks; the supervisor itself only keeps
the books, so it answers at once and never waits for an agent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.actors.agent import AgentActor
from dsh_actors.actors.replies import fail, succeed
from dsh_actors.actors.wiring import AgentParts, Wiring
from dsh_actors.core import turn_io as io
from dsh_actors.core.events import SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.scope import Scope
from dsh_actors.errors import ActorGone, HarnessError, SessionBusy, SessionExists, error_chain
from dsh_actors.runtime.actor import BaseActor, Died, start_actor
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.tasks import TaskEnd, start_task

__all__ = ["AgentEntry", "BuildParts", "SupervisorActor", "WorkerSpec"]

MAX_RESTARTS = 3
RESTART_WINDOW_S = 60.0
"""More than `MAX_RESTARTS` within this time, and the actor is not started again."""

OPEN_TIMEOUT_S = 600.0
CLOSE_TIMEOUT_S = 60.0

OnBroken = Callable[[Any], None]
BringUp = p.CreateAgent | p.ResumeAgent | p.ForkAgent
BuildParts = Callable[[AgentOptions, p.Opened, Scope], AgentParts]
WorkerSpec = Callable[[int, Ref[Any]], BaseActor]
"""Builds one shared worker actor for a generation, with the supervisor as its parent."""


@dataclass(eq=False, slots=True)
class AgentEntry:
    """A published agent. ``address`` stays valid across restarts."""

    id: SessionId
    header: SessionHeader
    options: AgentOptions
    address: Address
    scope: Scope
    parts: AgentParts
    generation: int = 0
    restarting: bool = False
    restarts: deque[float] = field(default_factory=deque)
    last_error: str | None = None
    disposing: list[GeventFuture] | None = None
    waiting: list[GeventFuture] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _BroughtUp:
    session_id: SessionId
    promise: GeventFuture
    source: str
    end: TaskEnd[tuple[AgentEntry, p.Opened]]


@dataclass(frozen=True, slots=True)
class _Recovered:
    session_id: SessionId
    end: TaskEnd[p.Opened]


@dataclass(frozen=True, slots=True)
class _Disposed:
    session_id: SessionId
    end: TaskEnd[None]


class SupervisorActor(BaseActor):
    """Owns: the table of agents and the shared workers.
    Receives: Create/Resume/Fork/Dispose/Get/AwaitAgent, Shutdown, and Died of its children.
    Sends: nothing but replies and, when an agent is disposed of, its Cancel.
    Waits for: nothing; transactions run in tasks that ask downwards.
    Dies when: its own books are wrong; the harness then closes.
    """

    def __init__(
        self,
        *,
        name: str,
        wiring: Wiring,
        scope_above: Callable[[str | None], Scope],
        build: BuildParts,
        workers: Mapping[str, tuple[Address, WorkerSpec]],
    ) -> None:
        super().__init__(name=name)
        self._wiring = wiring
        self._scope_above = scope_above
        self._build = build
        self._workers = workers
        self._worker_restarts: dict[str, deque[float]] = {}
        self._generations: dict[str, int] = {}
        self._agents: dict[SessionId, AgentEntry] = {}
        self._coming: set[SessionId] = set()
        self._closing: list[GeventFuture] | None = None

    def started(self) -> None:
        for name in self._workers:
            self._start_worker(name)

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
            case p.DisposeAgent():
                return self._dispose(message.session_id, message.timeout_s)
            case _Disposed():
                self._disposed(message)
            case p.GetAgents():
                return list(self._agents.values())
            case p.AwaitAgent():
                return self._await(message.session_id)
            case Died():
                self._died(message)
            case _Recovered():
                self._recovered(message)
            case p.Shutdown():
                return self._shutdown(message.timeout_s)

    # --- creating and resuming ---------------------------------------------------------------

    def _bring_up(self, session_id: SessionId, message: BringUp) -> GeventFuture:
        if self._closing is not None:
            raise ActorGone("the harness is closing")
        if session_id in self._agents or session_id in self._coming:
            raise SessionBusy(f"session {session_id} is live in this process")
        self._coming.add(session_id)
        promise = self.promise()
        source = "resume" if isinstance(message, p.ResumeAgent) else "startup"
        start_task(
            lambda _token: self._prepare(session_id, message),
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
        if message.session_id in self._coming or (parent is not None and parent.disposing is not None):
            raise SessionBusy(
                f"session {message.session_id} is just coming or going",
                code="SESSION_NOT_LIVE",
                hint="try again",
            )
        return self._bring_up(message.child_id, message)

    def _request(self, session_id: SessionId, message: BringUp, on_broken: OnBroken) -> Any:
        """What to ask the store for."""
        match message:
            case p.CreateAgent():
                return p.ReserveSession(message.header, on_broken, message.options.ephemeral)
            case p.ResumeAgent():
                return p.OpenSession(session_id, on_broken)
        return p.ForkSession(
            message.session_id,
            session_id,
            message.at_seq,
            message.options.preset,
            self._wiring.clock.now_ms(),
            on_broken,
            message.options.ephemeral,
        )

    def _prepare(self, session_id: SessionId, message: BringUp) -> tuple[AgentEntry, p.Opened]:
        """Everything that can fail, before anything is visible. Undoes itself when it does."""
        address, store, options = Address(session_id), self._wiring.store, message.options

        def on_broken(failure: Any) -> None:
            address.tell(io.StorageBroken(failure))

        request = self._request(session_id, message, on_broken)
        opened: p.Opened = store.ask(request, timeout=OPEN_TIMEOUT_S)
        scope = Scope("agent")
        try:
            scope.parent = self._scope_above(opened.header.agent_preset)
            parts = self._build(options, opened, scope)
            commit = message.setup(scope) if message.setup is not None else None
            if commit is not None:
                commit()
        except BaseException:
            scope.close()
            store.ask(p.CloseSession(session_id, discard=True), timeout=CLOSE_TIMEOUT_S)
            raise
        return AgentEntry(session_id, opened.header, options, address, scope, parts), opened

    def _brought_up(self, message: _BroughtUp) -> None:
        self._coming.discard(message.session_id)
        end = message.end
        if end.error is not None or end.value is None:
            fail(message.promise, end.error or HarnessError("the agent was not created"))
            self._check_closed()
            return
        entry, opened = end.value
        self._agents[entry.id] = entry
        self._start_agent(entry, opened)
        try:
            for observer in entry.scope.handlers_of("agent/created"):
                observer({"session": entry.id})
        except Exception as error:
            # A creation observer may veto; the caller sees its error, and nothing stays.
            self._dispose(entry.id, CLOSE_TIMEOUT_S)
            fail(message.promise, error)
            return
        for listener in entry.scope.handlers_of("agent/session-start"):
            _contained(listener, {"session": entry.id, "source": message.source})
        if self._closing is not None:
            self._dispose(entry.id, CLOSE_TIMEOUT_S)
        succeed(message.promise, entry)

    def _start_agent(self, entry: AgentEntry, opened: p.Opened) -> None:
        actor = AgentActor(
            name=entry.id,
            parent=self.ref,
            generation=entry.generation,
            opened=opened,
            wiring=self._wiring,
            parts=entry.parts,
        )
        entry.restarting = False
        entry.address.move_to(start_actor(actor))
        waiting, entry.waiting = entry.waiting, []
        for promise in waiting:
            succeed(promise, None)

    # --- disposing ---------------------------------------------------------------------------

    def _dispose(self, session_id: SessionId, timeout_s: float) -> GeventFuture | None:
        entry = self._agents.get(session_id)
        if entry is None:
            return None
        promise = self.promise()
        if entry.disposing is not None:
            entry.disposing.append(promise)
            return promise
        entry.disposing = [promise]
        entry.address.tell(io.Cancel({"kind": "disposed"}))
        start_task(
            lambda _token: self._drain(entry, timeout_s),
            lambda end: self.ref.tell(_Disposed(session_id, end)),
            name=f"dispose {session_id}",
        )
        return promise

    def _drain(self, entry: AgentEntry, timeout_s: float) -> None:
        """Wait until the agent is quiet, then make its log durable and give up its lock."""
        ref, checkpoint = entry.address.ref, None
        if ref is not None and ref.is_alive:
            try:
                ref.ask(p.WhenIdle(), timeout=timeout_s)
                checkpoint = ref.ask(p.GetSnapshot(), timeout=CLOSE_TIMEOUT_S)
            except ActorGone as error:
                # It hangs or has died: its log is closed all the same.
                entry.last_error = error.message
            ref.stop(timeout=CLOSE_TIMEOUT_S)
        close = p.CloseSession(entry.id, checkpoint=checkpoint)
        self._wiring.store.ask(close, timeout=CLOSE_TIMEOUT_S)

    def _disposed(self, message: _Disposed) -> None:
        entry = self._agents.pop(message.session_id, None)
        if entry is None:
            return
        entry.address.move_to(None)
        for observer in entry.scope.handlers_of("agent/disposed"):
            _contained(observer, {"session": entry.id, "error": entry.last_error})
        entry.scope.close()
        for promise in entry.disposing or ():
            if message.end.error is not None:
                fail(promise, message.end.error)
            else:
                succeed(promise, None)
        for promise in entry.waiting:
            fail(promise, ActorGone(f"agent {entry.id} is gone: {entry.last_error or 'disposed of'}"))
        self._check_closed()

    def _await(self, session_id: SessionId) -> GeventFuture | None:
        entry = self._agents.get(session_id)
        if entry is None:
            raise ActorGone(f"there is no agent {session_id}")
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
        for session_id in list(self._agents):
            self._dispose(session_id, timeout_s)
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
                if not self._may_restart(self._worker_restarts.setdefault(message.name, deque())):
                    raise message.error
                self._start_worker(message.name, message.unread)
            return
        entry = self._agents.get(SessionId(message.name))
        if entry is None or entry.generation != message.generation or entry.disposing is not None:
            return
        entry.last_error = error_chain(message.error)
        for observer in entry.scope.handlers_of("agent/error"):
            _contained(observer, {"session": entry.id, "crashed": entry.last_error})
        entry.restarting = True
        if not self._may_restart(entry.restarts):
            self._dispose(entry.id, CLOSE_TIMEOUT_S)
            return
        start_task(
            lambda _token: self._wiring.store.ask(p.RecoverSession(entry.id), timeout=OPEN_TIMEOUT_S),
            lambda end: self.ref.tell(_Recovered(entry.id, end)),
            name=f"recover {entry.id}",
        )

    def _recovered(self, message: _Recovered) -> None:
        entry = self._agents.get(message.session_id)
        if entry is None or entry.disposing is not None:
            return
        if message.end.error is not None or message.end.value is None:
            entry.last_error = error_chain(message.end.error or HarnessError("the log could not be read"))
            self._dispose(entry.id, CLOSE_TIMEOUT_S)
            return
        entry.generation += 1
        self._start_agent(entry, message.end.value)

    def _may_restart(self, restarts: deque[float]) -> bool:
        now = self._wiring.clock.monotonic()
        while restarts and now - restarts[0] > RESTART_WINDOW_S:
            restarts.popleft()
        restarts.append(now)
        return len(restarts) <= MAX_RESTARTS

    def _start_worker(self, name: str, unread: tuple[Any, ...] = ()) -> None:
        address, build = self._workers[name]
        generation = self._generations.get(name, -1) + 1
        self._generations[name] = generation
        address.move_to(start_actor(build(generation, self.ref)), unread)


def _contained(handler: Callable[[Any], Any], payload: Any) -> None:
    try:
        handler(payload)
    except Exception:
        # Observers are foreign code; a failing one changes nothing, and there is nobody to ask about it.
        return
