"""Stored sessions for a program: look at one, reserve it for a resume, repair it, stream its events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.actors.lifecycle import AgentEntry
from dsh_actors.core import snapshot
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId, Ticket
from dsh_actors.core.state import SessionState
from dsh_actors.errors import ActorGone, HarnessError, SessionBusy, SessionNotFound, UsageError
from dsh_actors.ports import SessionStorage
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.ref import ACTOR_TIMEOUT, Ref

__all__ = ["PreparedSession", "SessionView", "StoredSessions"]

ASK_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 600.0
READ_BATCH = 512
_FLUSH = Ticket(0)


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as it stood. ``state`` belongs to whoever asked.

    ``closers`` close an interrupted turn; the state has them. ``is_live``: an agent of this process
    has it, and its turn may be open.
    """

    header: SessionHeader
    state: SessionState = field(hash=False)
    closers: tuple[Event, ...] = field(default=(), hash=False)
    is_live: bool = False


class PreparedSession:
    """A session that is read and locked, until it is resumed or released. A context manager."""

    def __init__(self, opened: p.Opened, sessions: StoredSessions) -> None:
        self.header = opened.header
        self.closers = opened.closers
        """What closes its interrupted turn; written once it is resumed."""
        self.next_seq = opened.state.next_seq
        self._sessions = sessions

    @property
    def id(self) -> SessionId:
        return self.header.id

    def release(self) -> None:
        """Let it go again. Nothing happens if it was resumed, or released before."""
        self._sessions.release(self)

    def __enter__(self) -> PreparedSession:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()


class StoredSessions:
    """The part of the harness behind `Harness.inspect` and its neighbours."""

    def __init__(self, storage: SessionStorage, store: Address, supervisor: Ref[Any]) -> None:
        self._storage = storage
        self._store = store
        self._supervisor = supervisor
        self._prepared: set[PreparedSession] = set()

    def inspect(self, session_id: SessionId) -> SessionView:
        live = self._live(session_id)
        return live if live is not None else self._ask(p.InspectSession(session_id))

    def load(self, session_id: SessionId) -> SessionView:
        live = self._live(session_id)
        if live is None:
            return self._ask(p.LoadSession(session_id))
        if live.state.open_turn is not None:
            raise SessionBusy(f"session {session_id} is in the middle of a turn", code="OPEN_TURN")
        if live.state.next_seq == 0:
            raise SessionNotFound(f"session {session_id} has no events yet")
        return live

    def prepare(self, session_id: SessionId) -> PreparedSession:
        opened: p.Opened = self._store.ask(p.PrepareSession(session_id), timeout=READ_TIMEOUT_S)
        prepared = PreparedSession(opened, self)
        # An older reservation of this session was used up, or this one would have been refused.
        self._prepared = {each for each in self._prepared if each.id != session_id}
        self._prepared.add(prepared)
        return prepared

    def release(self, prepared: PreparedSession) -> None:
        if prepared in self._prepared:
            self._prepared.discard(prepared)
            self._store.ask_again(p.ReleaseSession(prepared.id), timeout=READ_TIMEOUT_S)

    def read_from(self, session_id: SessionId, seq: int) -> Iterator[Event]:
        if type(seq) is not int or seq < 0:
            raise UsageError(f"{seq!r} is no place in a session")
        return self.stream(self._storage, session_id, seq)

    def stream(self, storage: SessionStorage, session_id: SessionId, seq: int) -> Iterator[Event]:
        events = run_native(storage.read, session_id, seq)
        while batch := run_native(lambda: list(islice(events, READ_BATCH))):
            yield from batch

    def of_agent(self, memory: SessionStorage, entry: AgentEntry, seq: int) -> Iterator[Event]:
        """What an agent has logged so far from ``seq`` on, wherever it keeps that."""
        try:
            self.flush(entry.id, ASK_TIMEOUT_S)
        except HarnessError:
            if entry.disposing is None:
                raise
        try:
            yield from self.stream(memory if entry.options.ephemeral else self._storage, entry.id, seq)
        except SessionNotFound:
            return  # it has said nothing yet

    def flush(self, session_id: SessionId, timeout_s: float) -> None:
        done = GeventFuture()
        self._store.tell(p.FlushSession(session_id, _FLUSH, done.set))
        if not done.wait(timeout_s):
            message = f"session {session_id} was not written within {timeout_s:g} s"
            raise ActorGone(message, code=ACTOR_TIMEOUT)
        failure = done.outcome().failure
        if failure is not None:
            raise HarnessError(failure.message, code=failure.code)

    def close(self) -> None:
        """Release what is still prepared."""
        for prepared in tuple(self._prepared):
            self.release(prepared)

    def _ask(self, message: p.InspectSession | p.LoadSession) -> SessionView:
        opened: p.Opened = self._store.ask(message, timeout=READ_TIMEOUT_S)
        return SessionView(opened.header, opened.state, opened.closers)

    def _live(self, session_id: SessionId) -> SessionView | None:
        """The view of a session that an agent of this process has."""
        for entry in self._supervisor.ask(p.GetAgents(), timeout=ASK_TIMEOUT_S):
            if entry.id == session_id:
                try:
                    taken = entry.address.ask(p.GetSnapshot(), timeout=ASK_TIMEOUT_S)
                except ActorGone:
                    return None  # it is being rebuilt from what is stored
                state = run_native(snapshot.load, entry.header, taken.state)
                return SessionView(entry.header, state, is_live=True)
        return None
