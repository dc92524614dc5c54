"""Copies in the session database: their batches come first, and the row that makes them a session last.

The batches of a copy have a key that no session has, and a lock file named after it: its owner is at work
as long as that is held. What killed processes left of either is found by the lock files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from dsh_actors.adapters.storage import sqlite_rows as rows
from dsh_actors.adapters.storage.layout import fsync_directory, make_private_directories, storage_error
from dsh_actors.adapters.storage.lock import SessionLock, is_held
from dsh_actors.adapters.storage.removal import NEW_PREFIX, OLD_S
from dsh_actors.adapters.storage.sequence import require_next
from dsh_actors.adapters.storage.sqlite_file import SqliteFile
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.errors import SessionError, StorageError
from dsh_actors.ports import SessionWriter

__all__ = ["HiddenBatches", "SqliteDraft", "remove_file"]


class HiddenBatches:
    """The batches of copies in ``file``, and the lock files in the directory ``locks``."""

    def __init__(self, file: SqliteFile, locks: str, owner: str) -> None:
        self._file = file
        self._locks = locks
        self._owner = owner

    def hold(self) -> None:
        """A copy is being made; `let_go` when it is over."""
        self._file.hold()

    def let_go(self) -> None:
        self._file.let_go()

    def begin(self, batches: Sequence[rows.PackedBatch]) -> tuple[int, SessionLock]:
        """Store the first batches of a copy; its key and lock."""
        path, lock = "", None
        try:
            make_private_directories(self._locks)
            with self._file.writing() as database:
                key = rows.reserve_key(database)
                path = self._path(key)
                lock = SessionLock.acquire(path, self._owner, "a copy of a session")
                fsync_directory(self._locks)  # batches without it would stay for ever
                rows.insert_batches(database, key, batches)
        except BaseException as error:
            if lock is not None:
                remove_file(path)
                lock.release()
            if isinstance(error, OSError):
                raise storage_error(error, "write", self._locks) from error
            raise
        return key, lock

    def extend(self, key: int, batches: Sequence[rows.PackedBatch]) -> None:
        with self._file.writing() as database:
            rows.insert_batches(database, key, batches)

    def end(self, key: int, lock: SessionLock) -> None:
        """Remove the batches of a copy that did not become a session, and its lock file in any case.

        Raises `SessionError`; what is left then is removed by `sweep` one day.
        """
        try:
            with self._file.writing() as database:
                is_session = rows.has_key(database, key)
                if not is_session:
                    rows.remove_session(database, key)
            if not is_session:
                self._file.give_back_room()
            remove_file(self._path(key))
        finally:
            lock.release()

    def sweep(self, names: set[str]) -> None:
        """Remove what was left more than an hour ago: copies that were not ended, and lock files of none of
        the sessions, whose ``names`` are given. Raises nothing.
        """
        try:
            for name in set(os.listdir(self._locks)) - names:
                path = os.path.join(self._locks, name)
                if time.time() - os.lstat(path).st_mtime > OLD_S:
                    self._sweep(name, path)
        except (OSError, SessionError):
            return  # read-only, in use, or another process is as tidy; they harm nobody

    def _sweep(self, name: str, path: str) -> None:
        if not os.path.isfile(path) or is_held(path):
            return
        lock = SessionLock.acquire(path, self._owner, "what was left of a session")
        key = name.removeprefix(NEW_PREFIX)
        if key != name:
            if key.isdecimal():
                self.end(int(key), lock)
            else:
                lock.release()
            return
        try:
            with self._file.reading() as database:
                is_used = database is not None and rows.find_row(database, name) is not None
            if not is_used:
                remove_file(path)
        finally:
            lock.release()

    def _path(self, key: int) -> str:
        return os.path.join(self._locks, f"{NEW_PREFIX}{key}")


class SqliteDraft:
    """A session that is being copied: nobody sees it before it is published. Used by one thread at a time.

    ``publish`` makes a session of the batches with a key (None without any) that end at a number;
    ``give_up`` is called instead when the id is free again.
    """

    def __init__(
        self,
        header: SessionHeader,
        hidden: HiddenBatches,
        publish: Callable[[int | None, int], SessionWriter],
        give_up: Callable[[], None],
    ) -> None:
        self._header = header
        self._hidden = hidden
        self._publish = publish
        self._give_up = give_up
        self._begun: tuple[int, SessionLock] | None = None
        self._next_seq = 0
        self._is_over = False
        hidden.hold()

    @property
    def next_seq(self) -> int:
        return self._next_seq

    def append(self, events: Sequence[Event]) -> None:
        """Raises as the `append` of a writer does."""
        self._require_open()
        require_next(events, self._next_seq)
        if not events:
            return
        batches = rows.pack(events)
        if self._begun is None:
            self._begun = self._hidden.begin(batches)
        else:
            self._hidden.extend(self._begun[0], batches)
        self._next_seq += len(events)

    def publish(self) -> SessionWriter:
        """Let the session appear, with all that was appended; its writer. A draft without events waits for
        the first of them.

        Raises `SessionExists`, `StorageFull` or `StorageError`; nothing of it is left then.
        """
        self._require_open()
        try:
            writer = self._publish(self._begun and self._begun[0], self._next_seq)
        except BaseException:
            self.discard()
            raise
        self._close()
        return writer

    def discard(self) -> None:
        """Leave nothing of a draft that was not published. May be called again. Raises nothing."""
        if not self._is_over:
            self._close()
            self._give_up()

    def _close(self) -> None:
        self._is_over = True
        try:
            if self._begun is not None:
                self._hidden.end(*self._begun)
        except SessionError:
            pass  # whatever is left is hidden, and removed with other leftovers
        finally:
            self._hidden.let_go()

    def _require_open(self) -> None:
        if self._is_over:
            raise StorageError(f"the draft of session {self._header.id!r} is closed")


def remove_file(path: str) -> None:
    """Remove a lock file, while it is held, of what does not exist. Raises `StorageError`."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, "remove", path) from error
