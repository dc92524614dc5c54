"""The session store actor: batches events per session and makes them durable, many sessions side by side.

Files are touched in native threads only. The table of held sessions outlives an incarnation, so
that a restarted store goes on with the same locks and the same unwritten events.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.actors.held import HeldSession, WindowOver, WorkEnded
from dsh_actors.actors.opening import (
    Ready,
    Source,
    copy_session,
    inspect_session,
    load_session,
    open_session,
    release_session,
    reread,
    reserve_session,
)
from dsh_actors.actors.replies import fail, pass_on, succeed
from dsh_actors.actors.store_books import Looked, OnBroken, PreparedLock, StoreBooks, Taken, release
from dsh_actors.core import turn_io
from dsh_actors.core.chunks import Failure
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import (
    ActorGone,
    HarnessError,
    ProtocolError,
    SessionBusy,
    SessionExists,
    SessionNotFound,
    StorageError,
    StorageFull,
)
from dsh_actors.ports import SessionStorage, SessionWriter
from dsh_actors.runtime.actor import BaseActor
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.tasks import TaskEnd, start_task

__all__ = ["SessionStoreActor", "StoreBooks"]

MAX_READY = 5
"""Sessions whose state is remembered after a look at them."""


class SessionStoreActor(BaseActor):
    """Owns: the writers and unwritten events of all live sessions, and the reservations.
    Receives: Reserve/Open/Fork/Recover/CloseSession, AppendEvents, FlushSession, SaveCheckpoint,
    Inspect/Load/Prepare/ReleaseSession.
    Sends: `turn_io.Flushed` and `Opened` as replies; ``on_broken`` when a write failed.
    Waits for: nothing; files are opened, read and written in native threads.
    Dies when: told what it cannot use; the next incarnation goes on with its books. A disk that
    refuses, or an event out of order, fails the writes of that session only.
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
        books: StoreBooks,
        window_s: float,
    ) -> None:
        super().__init__(name=name, parent=parent, generation=generation)
        # Writes outlive an incarnation: their ends go to whoever is the store by then.
        self._home = home
        self._storage = storage
        self._ephemeral = ephemeral
        self._held = books.held
        self._prepared = books.prepared
        self._taking = books.taking
        self._unheard = books.unheard
        self._ready: dict[SessionId, Ready] = {}
        self._window_s = window_s

    def started(self) -> None:
        for held in self._held.values():
            held.resume()

    def receive(self, message: Any) -> Any:
        match message:
            case p.AppendEvents() | p.SaveCheckpoint() | p.FlushSession():
                self._write(message)
            case WindowOver() | WorkEnded():
                self._go_on(message)
            case p.ReserveSession():
                storage = self._ephemeral if message.ephemeral else self._storage
                work = partial(reserve_session, storage, message.header)
                return self._take(message.header.id, storage, message.on_broken, work)
            case p.OpenSession():
                return self._open(message)
            case p.ForkSession():
                return self._fork(message)
            case p.PrepareSession():
                work = partial(open_session, self._storage, message.session_id, self._pop(message))
                return self._take(message.session_id, self._storage, None, work)
            case p.ReleaseSession():
                return self._release_prepared(message.session_id)
            case p.InspectSession():
                session_id = message.session_id
                known = self._ready.get(session_id)
                return self._look(session_id, partial(inspect_session, self._storage, session_id, known))
            case p.LoadSession():
                return self._load(message.session_id)
            case Taken():
                self._taken(message)
            case Looked():
                self._looked(message)
            case p.RecoverSession():
                return self._recover(message.session_id)
            case p.CloseSession():
                return self._close(message)
            case _:
                raise ProtocolError(f"{self.name} cannot use a {type(message).__name__}")

    # --- writing -----------------------------------------------------------------------------

    def _write(self, message: p.AppendEvents | p.SaveCheckpoint | p.FlushSession) -> None:
        held = self._held.get(message.session_id)
        match message:
            case p.FlushSession():
                _flush(held, message)
            case _ if held is None or held.closing:
                return  # its agent is past its dispose
            case p.AppendEvents():
                held.append(message.events)
            case p.SaveCheckpoint():
                held.keep(message.checkpoint)

    def _go_on(self, message: WindowOver | WorkEnded) -> None:
        held = self._held.get(message.session_id)
        if held is None:
            return
        if isinstance(message, WorkEnded):
            held.work_ended(message)
        else:
            held.window_over()

    # --- taking sessions ---------------------------------------------------------------------

    def _take(
        self,
        session_id: SessionId,
        storage: SessionStorage,
        on_broken: OnBroken | None,
        work: Callable[[], tuple[SessionWriter, p.Opened]],
    ) -> GeventFuture:
        self._require_free(session_id)
        promise = self.promise()
        self._start_taking(session_id, storage, on_broken, work, promise)
        return promise

    def _require_free(self, session_id: SessionId) -> None:
        if session_id in self._held or session_id in self._prepared:
            raise SessionBusy(f"session {session_id} is live in this process")

    def _start_taking(
        self,
        session_id: SessionId,
        storage: SessionStorage,
        on_broken: OnBroken | None,
        work: Callable[[], tuple[SessionWriter, p.Opened]],
        promise: GeventFuture,
        *,
        is_new_copy: bool = False,
    ) -> None:
        self._taking[session_id] = promise
        start_task(
            lambda _token: run_native(work),
            lambda end: self._home.tell(Taken(session_id, storage, on_broken, promise, end, is_new_copy)),
            name=f"open {session_id}",
        )

    def _taken(self, message: Taken) -> None:
        end, session_id, on_broken = message.end, message.session_id, message.on_broken
        if self._taking.get(session_id) is message.promise:
            del self._taking[session_id]
        if end.error is not None or end.value is None:
            fail(message.promise, end.error)
            return
        writer, opened = end.value
        if session_id in self._held or session_id in self._prepared or message.promise.is_set:
            # The other one came first, or whoever asked has given up or was told that the store had died.
            release(writer, session_id, unwanted=message.storage if message.is_new_copy else None)
            fail(message.promise, SessionBusy(f"session {session_id} is live in this process"))
        elif on_broken is None:
            self._prepared[session_id] = PreparedLock(writer, opened)
            succeed(message.promise, opened)
        else:
            self._hold(writer, message.storage, on_broken, opened, is_new_copy=message.is_new_copy)
            succeed(message.promise, opened)

    def _hold(
        self,
        writer: SessionWriter,
        storage: SessionStorage,
        on_broken: OnBroken,
        opened: p.Opened,
        *,
        is_new_copy: bool = False,
    ) -> None:
        held = HeldSession(
            writer,
            storage,
            on_broken,
            self._home.tell,
            self._window_s,
            checkpoint_below=opened.checkpoint_below,
            is_new_copy=is_new_copy,
        )
        self._held[held.id] = held
        self._unheard.pop(held.id, None)
        if opened.closers:
            held.append(opened.closers)

    def _open(self, message: p.OpenSession) -> GeventFuture | p.Opened:
        prepared = self._prepared.pop(message.session_id, None)
        if prepared is not None:
            self._hold(prepared.writer, self._storage, message.on_broken, prepared.opened)
            return prepared.opened
        storage = self._storage_of(message.session_id)
        work = partial(open_session, storage, message.session_id, self._pop(message))
        return self._take(message.session_id, storage, message.on_broken, work)

    def _storage_of(self, session_id: SessionId) -> SessionStorage:
        """Where a session at rest is: in memory, if it was to leave nothing behind."""
        try:
            self._ephemeral.revision(session_id)
        except SessionNotFound:
            return self._storage
        return self._ephemeral

    def _fork(self, message: p.ForkSession) -> GeventFuture:
        child_id, held = message.child_id, self._held.get(message.session_id)
        if child_id in self._held or child_id in self._prepared:
            raise SessionExists(f"session {child_id!r} is live in this process", hint="choose another id")
        target = self._ephemeral if message.ephemeral else self._storage
        promise = self.promise()

        def copy(failure: Failure | None) -> None:
            if failure is not None:
                fail(promise, _error_of(failure))
                return
            source = Source(self._storage, message.session_id)
            if held is not None:
                source = Source(held.storage, held.id, held.writer)
            work = partial(copy_session, source, target, message)
            self._start_taking(child_id, target, message.on_broken, work, promise, is_new_copy=True)

        if held is None:
            copy(None)
        else:
            held.when_durable(copy)
        return promise

    # --- looking at sessions -----------------------------------------------------------------

    def _look(self, session_id: SessionId, work: Callable[[], tuple[Ready, p.Opened]]) -> GeventFuture:
        promise = self.promise()
        start_task(
            lambda _token: run_native(work),
            lambda end: self._home.tell(Looked(session_id, promise, end)),
            name=f"look at {session_id}",
        )
        return promise

    def _looked(self, message: Looked) -> None:
        if message.end.value is None:
            fail(message.promise, message.end.error)
            return
        ready, opened = message.end.value
        self._ready.pop(message.session_id, None)
        self._ready[message.session_id] = ready
        while len(self._ready) > MAX_READY:
            del self._ready[next(iter(self._ready))]
        succeed(message.promise, opened)

    def _pop(self, message: p.OpenSession | p.PrepareSession) -> Ready | None:
        return self._ready.pop(message.session_id, None)

    def _release_prepared(self, session_id: SessionId) -> GeventFuture | None:
        prepared = self._prepared.pop(session_id, None)
        if prepared is None:
            return None
        return self._look(
            session_id, partial(release_session, self._storage, prepared.writer, prepared.opened)
        )

    def _load(self, session_id: SessionId) -> GeventFuture:
        self._require_free(session_id)
        promise = self.promise()
        start_task(
            lambda _token: run_native(load_session, self._storage, session_id),
            partial(pass_on, promise),
            name=f"load {session_id}",
        )
        return promise

    # --- recovering and giving up ------------------------------------------------------------

    def _recover(self, session_id: SessionId) -> GeventFuture:
        """Flush, then fold what is stored; the writer and its lock stay with this store."""
        held = self._held.get(session_id)
        if held is None:
            raise SessionNotFound(f"session {session_id} is not live here")
        promise = self.promise()

        def rebuilt(end: TaskEnd[p.Opened]) -> None:
            if promise.is_set or held.closing or self._held.get(session_id) is not held:
                # Whoever asked was told that this store had died, and asks the next one; or the session was
                # given up meanwhile, and whoever opens it again closes the turn.
                fail(promise, ActorGone(f"session {session_id} was given up"))
                return
            if end.value is not None and end.value.closers:
                self._home.tell(p.AppendEvents(session_id, end.value.closers))
            pass_on(promise, end)

        def flushed(failure: Failure | None) -> None:
            if failure is not None:
                fail(promise, _error_of(failure))
                return
            start_task(lambda _token: run_native(reread, held), rebuilt, name=f"recover {session_id}")

        held.when_durable(flushed)
        return promise

    def _close(self, message: p.CloseSession) -> GeventFuture | None:
        session_id = message.session_id
        held = self._held.get(session_id)
        if held is None:
            waiting = self._taking.pop(session_id, None)
            if waiting is not None:
                fail(waiting, ActorGone(f"opening session {session_id} was given up"))
            unheard = self._unheard.pop(session_id, None)
            if unheard is not None:
                raise _error_of(unheard)  # asked again: this is the answer that nobody was there to hear
            return None
        promise = self.promise()
        held.closing.append(promise)
        if len(held.closing) > 1:
            return promise  # asked again, as the store died in between: the closing goes on

        def closed(failure: Failure | None, end: TaskEnd[None]) -> None:
            self._held.pop(session_id, None)
            if failure is not None and all(each.is_set for each in held.closing):
                self._unheard[session_id] = failure
            for each in held.closing:
                pass_on(each, end if failure is None else TaskEnd(None, _error_of(failure)))

        def finish(failure: Failure | None) -> None:
            held.stop_timer()
            unwanted = held.storage if message.discard and held.is_new_copy else None
            release(held.writer, session_id, partial(closed, failure), unwanted)

        if message.discard:
            held.drop_pending()
        elif message.checkpoint is not None:
            held.keep(message.checkpoint)
        held.when_durable(lambda failure: held.when_free(lambda: finish(failure)))
        return promise


def _flush(held: HeldSession | None, ask: p.FlushSession) -> None:
    reply, ticket = ask.reply, ask.ticket

    def settle(failure: Failure | None) -> None:
        if reply is not None and ticket is not None:
            reply(turn_io.Flushed(ticket, failure))

    if held is None:
        settle(Failure("the session is closed", "STORAGE_FAILED"))
    else:
        held.when_durable(settle)


def _error_of(failure: Failure) -> HarnessError:
    kinds = {kind.code: kind for kind in (StorageError, StorageFull)}
    return kinds.get(failure.code, HarnessError)(failure.message, code=failure.code)
