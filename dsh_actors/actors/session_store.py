"""The session store actor: batches events per session and makes them durable, many sessions side by side.

Files are touched in native threads only. The table of held sessions outlives an incarnation, so
that a restarted store goes on with the same locks and the same unwritten events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.core import turn_io
from dsh_actors.core.chunks import Failure
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.repair import Closers
from dsh_actors.core.state import SessionState
from dsh_actors.errors import (
    EventRefused,
    HarnessError,
    SessionBusy,
    SessionCorrupt,
    SessionNotFound,
    error_chain,
)
from dsh_actors.ports import SessionStorage, SessionWriter
from dsh_actors.runtime.actor import BaseActor
from dsh_actors.runtime.files import run_native, start_native
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.tasks import TaskEnd, start_task
from dsh_actors.runtime.timers import Timer, after

__all__ = ["HeldSession", "SessionStoreActor", "fold_log"]

Reply = Callable[[turn_io.Flushed], None]


@dataclass(eq=False, slots=True)
class _Waiter:
    """Somebody who waits until all events below ``below_seq`` are durable."""

    below_seq: int
    settle: Callable[[Failure | None], None]


@dataclass(eq=False, slots=True)
class HeldSession:
    """A session this store writes. ``pending`` is not durable yet; ``writing`` is on its way."""

    writer: SessionWriter
    storage: SessionStorage
    on_broken: Callable[[Failure], None]
    pending: list[Event] = field(default_factory=list)
    writing: bool = False
    durable_below: int = 0
    waiters: list[_Waiter] = field(default_factory=list)
    timer: Timer | None = None
    due: bool = False


@dataclass(frozen=True, slots=True)
class _WindowOver:
    session_id: SessionId


@dataclass(frozen=True, slots=True)
class _Written:
    session_id: SessionId
    batch: list[Event]
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class _Taken:
    """A writer was opened in a native thread for one of the asks."""

    session_id: SessionId
    storage: SessionStorage
    on_broken: Callable[[Failure], None]
    promise: GeventFuture
    end: TaskEnd[tuple[SessionWriter, p.Opened]]


class SessionStoreActor(BaseActor):
    """Owns: the writers and unwritten events of all live sessions.
    Receives: Reserve/Open/Recover/CloseSession, AppendEvents, FlushSession.
    Sends: `turn_io.Flushed` and `Opened` as replies; ``on_broken`` when a write failed.
    Waits for: nothing; files are opened and written in native threads.
    Dies when: told an event out of order (a fault of ours).
    """

    def __init__(
        self,
        *,
        name: str,
        parent: Ref[Any] | None,
        generation: int,
        home: Address,
        storage: SessionStorage,
        ephemeral: SessionStorage,
        held: dict[SessionId, HeldSession],
        window_s: float,
    ) -> None:
        super().__init__(name=name, parent=parent, generation=generation)
        # Writes outlive an incarnation: their ends go to whoever is the store by then.
        self._home = home
        self._storage = storage
        self._ephemeral = ephemeral
        self._held = held
        self._window_s = window_s

    def started(self) -> None:
        for session_id, held in self._held.items():
            held.timer = None
            if not held.writing and held.pending:
                self._write(session_id, held)

    def receive(self, message: Any) -> Any:
        match message:
            case p.AppendEvents():
                self._append(message.session_id, message.events)
            case p.FlushSession():
                self._flush(message)
            case _WindowOver():
                held = self._held.get(message.session_id)
                if held is not None:
                    held.timer, held.due = None, True
                    self._write(message.session_id, held)
            case _Written():
                self._written(message)
            case p.ReserveSession():
                storage = self._ephemeral if message.ephemeral else self._storage
                work = partial(_reserve, storage, message.header)
                return self._take(message.header.id, storage, message.on_broken, work)
            case p.OpenSession():
                work = partial(_open, self._storage, message.session_id)
                return self._take(message.session_id, self._storage, message.on_broken, work)
            case _Taken():
                self._taken(message)
            case p.RecoverSession():
                return self._recover(message.session_id)
            case p.CloseSession():
                return self._close(message)

    # --- writing -----------------------------------------------------------------------------

    def _append(self, session_id: SessionId, events: tuple[Event, ...]) -> None:
        held = self._held.get(session_id)
        if held is None:
            return  # closed: its agent is past its dispose
        held.pending.extend(events)
        if held.timer is None and not held.due:
            held.timer = after(self._window_s, lambda: self._home.tell(_WindowOver(session_id)))

    def _flush(self, message: p.FlushSession) -> None:
        held, ticket, reply = self._held.get(message.session_id), message.ticket, message.reply
        if held is None:
            if reply is not None and ticket is not None:
                reply(turn_io.Flushed(ticket, Failure("the session is closed", "STORAGE_FAILED")))
            return

        def settle(failure: Failure | None) -> None:
            if reply is not None and ticket is not None:
                reply(turn_io.Flushed(ticket, failure))

        self._wait(message.session_id, held, settle)

    def _wait(
        self, session_id: SessionId, held: HeldSession, settle: Callable[[Failure | None], None]
    ) -> None:
        below = held.pending[-1].seq + 1 if held.pending else held.durable_below
        if not held.pending and not held.writing:
            settle(None)
            return
        held.waiters.append(_Waiter(max(below, held.durable_below), settle))
        self._write(session_id, held)

    def _write(self, session_id: SessionId, held: HeldSession) -> None:
        """Start one write of everything pending, unless one is under way: its end starts the next."""
        if held.writing or not held.pending:
            return
        if held.timer is not None:
            held.timer.cancel()
            held.timer = None
        batch, held.pending = held.pending, []
        held.writing, held.due = True, False
        start_native(
            partial(held.writer.append, batch),
            lambda _none, error: self._home.tell(_Written(session_id, batch, error)),
        )

    def _written(self, message: _Written) -> None:
        held = self._held.get(message.session_id)
        if held is None:
            return
        held.writing = False
        error = message.error
        if error is None:
            held.durable_below = message.batch[-1].seq + 1
            ready = [w for w in held.waiters if w.below_seq <= held.durable_below]
            held.waiters = [w for w in held.waiters if w.below_seq > held.durable_below]
            for waiter in ready:
                waiter.settle(None)
            if held.waiters or held.due:
                self._write(message.session_id, held)
            return
        # Kept in order for the next flush; nobody retries by itself on a disk that refuses.
        held.pending[:0] = message.batch
        held.due = False
        failure = Failure(
            error_chain(error), error.code if isinstance(error, HarnessError) else "STORAGE_FAILED"
        )
        waiters, held.waiters = held.waiters, []
        for waiter in waiters:
            waiter.settle(failure)
        held.on_broken(failure)

    # --- taking and giving up sessions -------------------------------------------------------

    def _take(
        self,
        session_id: SessionId,
        storage: SessionStorage,
        on_broken: Callable[[Failure], None],
        work: Callable[[], tuple[SessionWriter, p.Opened]],
    ) -> GeventFuture:
        if session_id in self._held:
            raise SessionBusy(f"session {session_id} is live in this process")
        promise = self.promise()
        start_task(
            lambda _token: run_native(work),
            lambda end: self._home.tell(_Taken(session_id, storage, on_broken, promise, end)),
            name=f"open {session_id}",
        )
        return promise

    def _taken(self, message: _Taken) -> None:
        end, session_id = message.end, message.session_id
        if end.error is not None or end.value is None:
            _fail(message.promise, end.error)
            return
        writer, opened = end.value
        if session_id in self._held or message.promise.is_set:
            # The other one came first, or whoever asked was told that the store had died.
            _release(writer, session_id)
            _fail(message.promise, SessionBusy(f"session {session_id} is live in this process"))
            return
        held = HeldSession(writer, message.storage, message.on_broken, durable_below=writer.next_seq)
        self._held[session_id] = held
        if opened.closers:
            self._append(session_id, opened.closers)
        _set(message.promise, opened)

    def _recover(self, session_id: SessionId) -> GeventFuture:
        """Flush, then fold what is stored; the writer and its lock stay with this store."""
        held = self._held.get(session_id)
        if held is None:
            raise SessionNotFound(f"session {session_id} is not live here")
        promise = self.promise()

        def rebuilt(end: TaskEnd[p.Opened]) -> None:
            if end.error is not None or end.value is None:
                _fail(promise, end.error)
                return
            if end.value.closers:
                self._home.tell(p.AppendEvents(session_id, end.value.closers))
            _set(promise, end.value)

        def flushed(failure: Failure | None) -> None:
            if failure is not None:
                _fail(promise, HarnessError(failure.message, code=failure.code))
                return
            start_task(lambda _token: run_native(_reread, held), rebuilt, name=f"recover {session_id}")

        self._wait(session_id, held, flushed)
        return promise

    def _close(self, message: p.CloseSession) -> GeventFuture | None:
        session_id = message.session_id
        held = self._held.get(session_id)
        if held is None:
            return None
        promise = self.promise()

        def finish(failure: Failure | None) -> None:
            self._held.pop(session_id, None)
            if held.timer is not None:
                held.timer.cancel()

            def closed(end: TaskEnd[None]) -> None:
                if failure is not None:
                    _fail(promise, HarnessError(failure.message, code=failure.code))
                elif end.error is not None:
                    _fail(promise, end.error)
                else:
                    _set(promise, None)

            _release(held.writer, session_id, closed)

        if message.discard:
            held.pending.clear()
        self._wait(session_id, held, finish)
        return promise


def _set(promise: GeventFuture, value: object) -> None:
    if not promise.is_set:  # the store may have died and answered for itself
        promise.set(value)


def _fail(promise: GeventFuture, error: BaseException | None) -> None:
    if not promise.is_set:
        promise.fail(error or SessionNotFound("the session was not opened"))


def _nothing(_end: TaskEnd[None]) -> None:
    """For releases that nobody waits for."""


def _release(
    writer: SessionWriter, session_id: SessionId, closed: Callable[[TaskEnd[None]], None] = _nothing
) -> None:
    start_task(lambda _token: run_native(writer.close), closed, name=f"close {session_id}")


def _reread(held: HeldSession) -> p.Opened:
    header = held.writer.header
    if held.writer.next_seq == 0:
        return p.Opened(header, SessionState(header))
    return fold_log(header, held.storage.read(header.id))


def fold_log(header: SessionHeader, events: Any) -> p.Opened:
    """Fold a stored log and work out what closes it. Raises `SessionCorrupt` or `SessionUnsupported`."""
    state, closers = SessionState(header), Closers()
    try:
        for event in events:
            event.require_known()
            state.apply(event)
            closers.observe(event)
        ending = closers.closing_events(state.next_seq)
        for event in ending:
            state.apply(event)
    except EventRefused as error:
        raise SessionCorrupt(
            f"session {header.id} is damaged: {error.message}", hint="look at it with `dsh session show`"
        ) from error
    return p.Opened(header, state, tuple(ending))


def _reserve(storage: SessionStorage, header: SessionHeader) -> tuple[SessionWriter, p.Opened]:
    writer = storage.create(header)
    return writer, p.Opened(header, SessionState(header))


def _open(storage: SessionStorage, session_id: SessionId) -> tuple[SessionWriter, p.Opened]:
    writer = storage.open(session_id)
    try:
        return writer, fold_log(writer.header, writer.replay())
    except BaseException:
        writer.close()
        raise
