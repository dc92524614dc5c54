"""Sessions in one SQLite database: the `SessionStorage` for users who prefer one file.

Native code, like the segments. Commits are durable; the kernel's locks beside the database say who
writes a session, so that a dead writer blocks nobody.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dsh_actors.adapters.storage import sqlite_rows as rows
from dsh_actors.adapters.storage.layout import id_of_name, make_private_directories, name_of_id, storage_error
from dsh_actors.adapters.storage.lock import SessionLock, is_held
from dsh_actors.adapters.storage.sequence import require_next
from dsh_actors.adapters.storage.sqlite_damage import DamagedRows
from dsh_actors.adapters.storage.sqlite_drafts import HiddenBatches, SqliteDraft, remove_file
from dsh_actors.adapters.storage.sqlite_file import SqliteFile
from dsh_actors.adapters.storage.summary import SessionSummary
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import (
    EventRefused,
    SessionBusy,
    SessionError,
    SessionExists,
    SessionNotFound,
    SessionUnsupported,
    StorageError,
)
from dsh_actors.ports import Checkpoint, SessionListing

__all__ = ["SqliteStorage", "SqliteWriter"]


class SqliteStorage:
    """A `SessionStorage` in the database ``path`` (``$DSH_HOME/sessions.sqlite3``).

    ``owner`` names this process to whoever meets its locks; ``clock_ms`` dates the changes. Nothing
    is created before the first append.
    """

    def __init__(self, path: str, owner: str, clock_ms: Callable[[], int]) -> None:
        self._file = SqliteFile(path, rows.LAYOUT)
        self._owner = owner
        self._clock_ms = clock_ms
        self._locks = os.path.splitext(path)[0] + ".locks"
        self._hidden = HiddenBatches(self._file, self._locks, owner)
        self._reserved: dict[SessionId, object] = {}

    def create(self, header: SessionHeader) -> SqliteWriter:
        """Reserve an id; the first append stores the session.

        Raises `SessionExists`, or `EventRefused` for a wrong header.
        """
        self._reserve(header)
        return SqliteWriter(self, header)

    def draft(self, header: SessionHeader) -> SqliteDraft:
        """Reserve an id for a copy, which appears when it is published. Raises as `create` does."""
        self._reserve(header)
        publish, give_up = partial(self._publish_draft, header), partial(self.give_up, header.id)
        return SqliteDraft(header, self._hidden, publish, give_up)

    def _reserve(self, header: SessionHeader) -> None:
        header.require_valid()
        rows.encode_header(header)
        token = object()
        # One atomic step: two threads may create the same id.
        if self._reserved.setdefault(header.id, token) is not token:
            raise _exists(header.id)
        try:
            with self._file.reading() as database:
                if database is not None and rows.find_row(database, name_of_id(header.id)) is not None:
                    raise _exists(header.id)
        except BaseException:
            del self._reserved[header.id]
            raise

    def open(self, session_id: SessionId) -> SqliteWriter:
        """Take the session's lock.

        Raises `SessionNotFound`, `SessionBusy` naming the holder, `SessionCorrupt`, `SessionUnsupported`.
        """
        self._find(session_id)
        lock = self._lock(session_id)
        try:
            # Under the lock: it may have been removed, or written, since it was found.
            row = self._find(session_id)
            row.require_whole(self._file.path)
            return SqliteWriter(self, row.header(self._file.path), (row.key, row.next_seq), lock)
        except BaseException as error:
            if isinstance(error, SessionNotFound):
                remove_file(self._lock_path(session_id))
            lock.release()
            raise

    def header(self, session_id: SessionId) -> SessionHeader:
        """Raises as `open` does, but never `SessionBusy`."""
        return self._find(session_id).header(self._file.path)

    def read(self, session_id: SessionId, from_seq: int = 0) -> Iterator[Event]:
        """Stream what is stored at this moment, without a lock.

        Raises `SessionNotFound` at once, `SessionCorrupt` and `SessionUnsupported` on the way.
        """
        return self._events(self._find(session_id), from_seq)

    def list(self, cwd: str | None = None) -> Iterator[SessionListing]:
        """Newest first; each session is read when it is asked for."""
        self.hold()  # one connection for them all
        try:
            for row in self.changed(cwd):
                yield self.listing(row)
        finally:
            self._file.let_go()

    def changed(self, cwd: str | None = None, limit: int | None = None) -> Sequence[rows.SessionRow]:
        """All sessions, or those of ``cwd``, newest first, at most ``limit``."""
        with self._file.reading() as database:
            found = [] if database is None else rows.newest_rows(database, cwd, limit)
        if database is not None and cwd is None and limit is None:
            self._hidden.sweep({row.name for row in found})
        return found

    def row(self, session_id: SessionId) -> rows.SessionRow:
        """Raises `SessionNotFound`."""
        return self._find(session_id)

    def is_live(self, row: rows.SessionRow) -> bool:
        """Whether somebody writes the session."""
        return is_held(os.path.join(self._locks, row.name))

    def listing(self, row: rows.SessionRow) -> SessionListing:
        """What the list tells of a session. Raises nothing for one that is damaged."""
        summary, status = SessionSummary(), ""
        session_id, created, parent = SessionId(id_of_name(row.name)), row.updated, None
        path = self._file.path
        try:
            header = row.header(path)
            session_id, created, parent = header.id, header.created_at, header.agent_above
            row.require_whole(path)
            with self._file.reading() as database:
                if database is not None:
                    for _first_seq, lines in rows.batch_lines(database, row, 0, path):
                        summary.observe_lines(lines)
        except SessionUnsupported:
            status = "unsupported"
        except (SessionError, EventRefused):
            status = "corrupt"
        status = status or ("live" if self.is_live(row) else summary.status)
        title, turns = summary.title, summary.turns
        return SessionListing(session_id, row.cwd, title, created, row.updated, turns, status, parent)

    def newest(self, cwd: str, limit: int = 2) -> Sequence[tuple[SessionId, bool]]:
        """The last changed sessions of ``cwd`` that can be opened, and whether each has a live writer.

        Newest first; sub-agents' sessions are left out.
        """
        found: list[tuple[SessionId, bool]] = []
        for row in self.changed(cwd):
            if len(found) >= limit:
                break
            try:
                header = row.header(self._file.path)
            except SessionError:
                continue  # a damaged one cannot be continued; listing it tells why
            if header.origin is None:
                found.append((header.id, self.is_live(row)))
        return found

    def checkpoint(self, session_id: SessionId) -> Checkpoint | None:
        """The newest usable checkpoint. Raises `SessionNotFound`."""
        row = self._find(session_id)
        with self._file.reading() as database:
            return None if database is None else rows.newest_checkpoint(database, row)

    def revision(self, session_id: SessionId) -> str:
        """Changes with each append, and is never used again. Raises `SessionNotFound`."""
        row = self._find(session_id)
        return f"{row.key}:{row.next_seq}"

    def delete(self, session_id: SessionId) -> int:
        """Remove a session that nobody holds; the bytes freed. Raises `SessionBusy`, `SessionNotFound`."""
        self._find(session_id)
        lock = self._lock(session_id)
        try:
            row = self._find(session_id)
            with self._file.writing() as database:
                freed = rows.stored_size(database, row.key)
                rows.remove_session(database, row.key)
            # Only now that nothing names it: who meets the old lock file finds no session behind it.
            remove_file(self._lock_path(session_id))
        finally:
            lock.release()
        self._file.give_back_room()
        return freed

    def require_removable(self, session_id: SessionId) -> None:
        """Whether `delete` would remove it, as far as can be told beforehand. Raises as that does."""
        if self.is_in_use(session_id):
            raise SessionBusy(f"session {session_id!r} is in use")

    def path(self, session_id: SessionId) -> str:
        """The database: a session in it has no directory. Raises `SessionNotFound`."""
        self._find(session_id)
        return self._file.path

    def size(self, session_id: SessionId) -> int:
        """Bytes of what is stored of the session. Raises `SessionNotFound`."""
        self.hold()  # one connection for both
        try:
            key = self._find(session_id).key
            with self._file.reading() as database:
                return 0 if database is None else rows.stored_size(database, key)
        finally:
            self._file.let_go()

    def is_in_use(self, session_id: SessionId) -> bool:
        """Whether somebody writes the session. Raises `SessionNotFound`."""
        return self.is_live(self._find(session_id))

    def damaged(self, session_id: SessionId) -> DamagedRows:
        """What is left of a session that may be damaged. Raises `SessionNotFound`."""
        return DamagedRows(self._file, self._find(session_id))

    def _find(self, session_id: SessionId) -> rows.SessionRow:
        with self._file.reading() as database:
            row = rows.find_row(database, name_of_id(session_id)) if database and session_id else None
        if row is None:
            raise SessionNotFound(
                f"no session {session_id!r} in {self._file.path}", hint="dsh session ls shows what there is"
            )
        return row

    def _events(self, row: rows.SessionRow, from_seq: int) -> Iterator[Event]:
        row.require_whole(self._file.path)
        with self._file.reading() as database:
            if database is not None:
                yield from rows.stored_events(database, row, from_seq, self._file.path)

    def _lock_path(self, session_id: SessionId) -> str:
        return os.path.join(self._locks, name_of_id(session_id))

    def _lock(self, session_id: SessionId) -> SessionLock:
        try:
            make_private_directories(self._locks)
        except OSError as error:
            raise storage_error(error, "create", self._locks) from error
        return SessionLock.acquire(self._lock_path(session_id), self._owner, f"session {session_id!r}")

    # --- for the writers ---------------------------------------------------------------------

    def publish(self, header: SessionHeader, batches: Sequence[rows.PackedBatch]) -> tuple[int, SessionLock]:
        """Store a new session with its first batches; its key and lock. Raises `SessionExists`."""
        return self._publish(header, batches[-1].next_seq, None, batches)

    def _publish_draft(self, header: SessionHeader, key: int | None, next_seq: int) -> SqliteWriter:
        """Make a session of the batches that are stored for ``key``, None if there are none; its writer."""
        if key is None:
            return SqliteWriter(self, header)
        _key, lock = self._publish(header, next_seq, key, ())
        return SqliteWriter(self, header, (key, next_seq), lock)

    def _publish(
        self, header: SessionHeader, next_seq: int, key: int | None, batches: Sequence[rows.PackedBatch]
    ) -> tuple[int, SessionLock]:
        try:
            lock = self._lock(header.id)
        except SessionBusy as error:
            raise _exists(header.id) from error
        text, is_stored = rows.encode_header(header), False
        try:
            with self._file.writing() as database:
                is_stored = rows.find_row(database, name_of_id(header.id)) is not None
                if is_stored:
                    raise _exists(header.id)
                crc, now_ms = zlib.crc32(text.encode()), self._clock_ms()
                values = (key, name_of_id(header.id), header.cwd, text, crc, next_seq, now_ms)
                key = rows.insert_session(database, values)
                rows.insert_batches(database, key, batches)
        except BaseException:
            if not is_stored:
                remove_file(self._lock_path(header.id))
            lock.release()
            raise
        return key, lock

    def extend(self, key: int, next_seq: int, batches: Sequence[rows.PackedBatch]) -> None:
        """Add batches to a session that ends at ``next_seq``. Raises `SessionBusy` if it does not."""
        with self._file.writing() as database:
            changed = database.execute(
                "UPDATE sessions SET next_seq = ?, updated = ? WHERE key = ? AND next_seq = ?",
                (batches[-1].next_seq, self._clock_ms(), key, next_seq),
            ).rowcount
            if changed != 1:
                raise SessionBusy(
                    f"stale writer: the session is not as this process left it in {self._file.path},"
                    " nothing was written",
                    hint="another program changed the session; resume it again",
                )
            rows.insert_batches(database, key, batches)

    def save_checkpoint(self, key: int, checkpoint: Checkpoint) -> None:
        frame = rows.pack_checkpoint(checkpoint)  # while other sessions may write
        with self._file.writing() as database:
            rows.insert_checkpoint(database, key, checkpoint.next_seq, frame)

    def hold(self) -> None:
        """A writer lives; `let_go` when it is closed."""
        self._file.hold()

    def let_go(self) -> None:
        self._file.let_go()

    def give_up(self, session_id: SessionId) -> None:
        """The id may be used again."""
        self._reserved.pop(session_id, None)


class SqliteWriter:
    """The one writer of a session in the database; used by one thread at a time.

    ``stored``: the session's key and the number of its events, where it is stored already.
    """

    def __init__(
        self,
        storage: SqliteStorage,
        header: SessionHeader,
        stored: tuple[int, int] | None = None,
        lock: SessionLock | None = None,
    ) -> None:
        self._storage = storage
        self._header = header
        self._key: int | None
        self._key, self._next_seq = (None, 0) if stored is None else stored
        self._lock = lock
        self._is_closed = False
        storage.hold()

    @property
    def header(self) -> SessionHeader:
        return self._header

    @property
    def next_seq(self) -> int:
        return self._next_seq

    def checkpoint(self) -> Checkpoint | None:
        """The newest usable checkpoint; None where everything has to be replayed."""
        return None if self._key is None else self._storage.checkpoint(self._header.id)

    def replay(self, from_seq: int = 0) -> Iterator[Event]:
        """The stored events from ``from_seq`` on. Raises `SessionCorrupt` or `SessionUnsupported`."""
        return iter(()) if self._key is None else self._storage.read(self._header.id, from_seq)

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Keep it and the one before. Raises `EventRefused`, `StorageFull` or `StorageError`."""
        self._require_open()
        if self._key is None or checkpoint.next_seq > self._next_seq:
            raise StorageError(f"a checkpoint at event {checkpoint.next_seq} is ahead of what is stored")
        self._storage.save_checkpoint(self._key, checkpoint)

    def append(self, events: Sequence[Event]) -> None:
        """Durable on return; on failure nothing is written and the same call may be made again.

        Raises `SessionBusy` (a stale writer, or a database that is held for too long), `StorageFull`,
        `StorageError`, `SessionExists` (first append only), or `EventRefused`.
        """
        self._require_open()
        require_next(events, self._next_seq)
        if not events:
            return
        batches = rows.pack(events)
        if self._key is None:
            self._key, self._lock = self._storage.publish(self._header, batches)
        else:
            self._storage.extend(self._key, self._next_seq, batches)
        self._next_seq += len(events)

    def close(self) -> None:
        """Give the lock back. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._lock is not None:
            self._lock.release()
        self._storage.give_up(self._header.id)
        self._storage.let_go()

    def _require_open(self) -> None:
        if self._is_closed:
            raise SessionError(f"the writer of session {self._header.id!r} is closed")


def _exists(session_id: SessionId) -> SessionExists:
    return SessionExists(f"session {session_id!r} exists already", hint="resume it, or choose another id")
