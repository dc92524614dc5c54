"""What it takes to bring an agent up, to restart it and to dispose of it: files and foreign code.

Everything here may wait, so it runs in tasks; the supervisor only hears how they ended.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.actors.restarts import Restarts
from dsh_actors.actors.wiring import AgentParts, Wiring
from dsh_actors.core import turn_io as io
from dsh_actors.core.events import SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.scope import Scope
from dsh_actors.errors import ActorGone, HarnessError, error_chain
from dsh_actors.ports import Checkpoint
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.ref import ACTOR_TIMEOUT, Ref
from dsh_actors.runtime.tasks import Task, TaskKilled, deadline

__all__ = [
    "CLOSE_TIMEOUT_S",
    "DISPOSE_MARGIN_S",
    "AgentEntry",
    "BringUp",
    "BuildParts",
    "Lifecycle",
    "crash_report",
    "meant",
]

OPEN_TIMEOUT_S = 600.0
CLOSE_TIMEOUT_S = 60.0
OBSERVER_DEADLINE_S = 60.0
"""An observer or listener that takes longer has failed."""
DISPOSE_MARGIN_S = 3 * CLOSE_TIMEOUT_S + OBSERVER_DEADLINE_S
"""What a dispose may take beyond the time that its agent has to come to rest."""

TITLE_GRACE_S = 1.0
"""How long a dispose waits for a title that is just being written."""

BringUp = p.CreateAgent | p.ResumeAgent | p.ForkAgent
BuildParts = Callable[[AgentOptions, p.Opened, Scope], AgentParts]


@dataclass(eq=False, slots=True)
class AgentEntry:
    """A published agent. ``address`` stays valid across restarts.

    ``disposing`` is there from the moment it is being disposed of: who hears of its end, with an error
    or None.
    """

    id: SessionId
    header: SessionHeader
    options: AgentOptions
    address: Address
    scope: Scope
    parts: AgentParts
    generation: int = 0
    restarting: bool = False
    restarts: Restarts = field(default_factory=Restarts)
    recovery: Task | None = None
    """The newest rebuilding from the log."""
    last_error: str | None = None
    disposing: list[Callable[[BaseException | None], None]] | None = None
    waiting: list[GeventFuture] = field(default_factory=list)


def crash_report(entry: AgentEntry, error: BaseException) -> dict[str, Any]:
    """The payload of ``agent/error`` for an agent that has died, whatever of."""
    return {"session": entry.id, "message": error_chain(error), "code": "ACTOR_CRASHED"}


def meant(
    agents: Mapping[SessionId, AgentEntry], message: p.DisposeAgent | p.AwaitAgent
) -> AgentEntry | None:
    """The agent that a message is about, unless it is gone and another one of its session is there."""
    entry = agents.get(message.session_id)
    return None if entry is None or message.scope not in (None, entry.scope) else entry


class Lifecycle:
    """The work of the supervisor's transactions. Every method may wait; what foreign code raises is
    contained, save where it says otherwise."""

    def __init__(self, wiring: Wiring, scope_above: Callable[[str | None], Scope], build: BuildParts) -> None:
        self.wiring = wiring
        self._store = wiring.store
        self._scope_above = scope_above
        self._build = build

    def prepare(self, session_id: SessionId, message: BringUp) -> tuple[AgentEntry, p.Opened]:
        """Everything that can fail, before anything is visible. Undoes itself when it does."""
        address, options = Address(session_id), message.options

        def on_broken(failure: Any) -> None:
            address.tell(io.StorageBroken(failure))

        opened = self._open(session_id, self._request(session_id, message, on_broken))
        self.wiring.work.forget(session_id)
        scope = Scope("agent")
        try:
            scope.parent = self._scope_above(opened.header.agent_preset)
            parts = self._build(options, opened, scope)
            commit = message.setup(scope) if message.setup is not None else None
            if commit is not None:
                commit()
        except BaseException:
            self._discard(session_id, scope)
            raise
        return AgentEntry(session_id, opened.header, options, address, scope, parts), opened

    def undo(self, entry: AgentEntry) -> None:
        """Take back what was prepared."""
        self._discard(entry.id, entry.scope)

    def announce(self, entry: AgentEntry, source: str) -> None:
        """Tell of a new agent. An ``agent/created`` observer may veto: what it raises is raised."""
        for observer in tuple(entry.scope.handlers_of("agent/created")):
            observer({"session": entry.id})
        _tell(entry.scope, "agent/session-start", {"session": entry.id, "source": source})

    def report_crash(self, entry: AgentEntry, report: dict[str, Any]) -> None:
        _tell(entry.scope, "agent/error", report)

    def recover(self, entry: AgentEntry, timeout_s: float = OPEN_TIMEOUT_S) -> p.Opened:
        """The state to go on with after a crash. Observers see what closes the turn it interrupted."""
        opened: p.Opened = self._store.ask_again(p.RecoverSession(entry.id), timeout=timeout_s)
        for event in opened.closers:
            _tell(entry.scope, "session/event", event)
        if opened.closers:
            _tell(entry.scope, "agent/status", {"session": entry.id, "status": "idle"})
        return opened

    def drain(self, entry: AgentEntry, timeout_s: float) -> None:
        """End what it started, wait until it is quiet, make its log durable, give up its lock, tell of it.

        An agent that hangs is left behind: its session is closed all the same, and takes in nothing
        more. Raises what kept the log from becoming durable.
        """
        ref, checkpoint = entry.address.ref, None
        left = self.wiring.work.end_all(entry.id, timeout_s)
        if left:
            entry.last_error = entry.last_error or f"still going on: {', '.join(item.id for item in left)}"
        try:
            if ref is not None and ref.is_alive:
                checkpoint = _stop(entry, ref, timeout_s)
            if checkpoint is None and ref is not None and not ref.is_alive:
                self._close_turn(entry)
        finally:
            try:
                close = p.CloseSession(entry.id, checkpoint=checkpoint)
                self._store.ask_again(close, timeout=CLOSE_TIMEOUT_S)
            finally:
                entry.address.move_to(None)
                _tell(entry.scope, "agent/disposed", {"session": entry.id, "error": entry.last_error})
                entry.scope.close()
                self.wiring.work.forget(entry.id)

    def _close_turn(self, entry: AgentEntry) -> None:
        """For an agent that has died: nobody rebuilds it, and its turn is closed all the same."""
        try:
            # One that is under way has closed it when it ends; then there is nothing to close.
            if entry.recovery is None or entry.recovery.join(CLOSE_TIMEOUT_S):
                self.recover(entry, CLOSE_TIMEOUT_S)
        except HarnessError as error:
            # The disk, or a store that is gone: whoever opens the session next closes the turn.
            LOGGER.warning("the turn of %s stays open: %s", entry.id, error_chain(error))

    def _open(self, session_id: SessionId, request: Any) -> p.Opened:
        try:
            opened: p.Opened = self._store.ask(request, timeout=OPEN_TIMEOUT_S)
        except BaseException as error:
            # After an answer of the store there is nothing to undo. Otherwise it may still be opening.
            if isinstance(error, ActorGone) or not isinstance(error, Exception):
                self._discard(session_id)
            raise
        return opened

    def _request(self, session_id: SessionId, message: BringUp, on_broken: Callable[[Any], None]) -> Any:
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
            self.wiring.clock.now_ms(),
            on_broken,
            message.options.ephemeral,
            message.options.depth,
        )

    def _discard(self, session_id: SessionId, scope: Scope | None = None) -> None:
        if scope is not None:
            scope.close()
        try:
            self._store.ask_again(p.CloseSession(session_id, discard=True), timeout=CLOSE_TIMEOUT_S)
        except HarnessError as error:
            # What led here is the error to report.
            LOGGER.error("session %s could not be given up: %s", session_id, error_chain(error))


def _stop(entry: AgentEntry, ref: Ref[Any], timeout_s: float) -> Checkpoint | None:
    """End the actor; what it had come to, if it could still say."""
    checkpoint: Checkpoint | None = None
    try:
        ref.ask(p.WhenIdle(), timeout=timeout_s)
        _await_title(ref, min(timeout_s, TITLE_GRACE_S))
        checkpoint = ref.ask(p.GetSnapshot(), timeout=CLOSE_TIMEOUT_S)
    except Exception as error:
        # It hangs, has died, or has a state that cannot be dumped: its log is closed all the same.
        entry.last_error = entry.last_error or error_chain(error)
    try:
        ref.stop(timeout=CLOSE_TIMEOUT_S)
    except ActorGone as error:
        entry.last_error = entry.last_error or error.message
        return None
    return checkpoint


def _await_title(ref: Ref[Any], timeout_s: float) -> None:
    """Let a title come to its end, or give it up."""
    try:
        ref.ask(p.WhenIdle(settled=True), timeout=timeout_s)
    except ActorGone as error:
        if error.code != ACTOR_TIMEOUT:
            raise
        ref.tell(io.Cancel({"kind": "disposed"}))


def _tell(scope: Scope, point: str, payload: Any) -> None:
    """Call the observers or listeners of a point; none can hurt the others."""
    for handler in tuple(scope.handlers_of(point)):
        try:
            with deadline(OBSERVER_DEADLINE_S):
                handler(payload)
        except (TaskKilled, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # Foreign code, which may even raise `gevent.Timeout`; a failing one changes nothing.
            LOGGER.warning("a handler of %s failed: %s", point, error_chain(error))
