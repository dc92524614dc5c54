"""New sessions appear whole: each is built in a hidden directory, and renamed in one step.

What a killed process leaves of one is hidden and nobody's, and removed with the other leftovers.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from dsh_actors.adapters.storage.files import write_all
from dsh_actors.adapters.storage.frames import compress_frame
from dsh_actors.adapters.storage.layout import (
    LOCK_NAME,
    LOG_NAME,
    close_descriptor,
    find_all,
    fsync_directory,
    make_private_directories,
    storage_error,
)
from dsh_actors.adapters.storage.lock import SessionLock
from dsh_actors.adapters.storage.removal import NEW_PREFIX, remove_tree
from dsh_actors.adapters.storage.segments import SegmentHeader, SegmentTail, segment_name, touch
from dsh_actors.adapters.storage.writer import SegmentSizes, SegmentWriter
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.errors import SessionError, SessionExists

__all__ = ["SegmentDraft", "publish_session"]


class SegmentDraft:
    """A session that is being copied to ``directory``: nobody sees it before it is published.

    Used by one thread at a time. ``on_close`` is called when the draft, or then its writer, is closed.
    """

    def __init__(
        self,
        directory: str,
        header: SessionHeader,
        owner: str,
        clock_ms: Callable[[], int],
        sizes: SegmentSizes,
        on_close: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._header = header
        self._owner = owner
        self._clock_ms = clock_ms
        self._place = _hidden_place(directory)
        self._is_over = False
        self._writer = SegmentWriter(
            self._place, header, clock_ms, sizes, publish=self._begin, on_close=on_close
        )

    @property
    def next_seq(self) -> int:
        return self._writer.next_seq

    def append(self, events: Sequence[Event]) -> None:
        """Raises as the `append` of a writer does."""
        self._require_open()
        self._writer.append(events)

    def publish(self) -> SegmentWriter:
        """Let the session appear, with all that was appended; its writer. A draft without events waits for
        the first of them.

        Raises `SessionExists`, `StorageFull` or `StorageError`; nothing of it is left then.
        """
        self._require_open()
        if self._writer.next_seq:
            try:
                _give_name(self._place, self._directory, self._header)
            except BaseException:
                self.discard()
                raise
        self._writer.move(self._directory)
        self._is_over = True
        return self._writer

    def discard(self) -> None:
        """Leave nothing of a draft that was not published. May be called again. Raises nothing."""
        if self._is_over:
            return
        self._is_over = True
        _remove(self._place)
        self._writer.close()

    def _begin(self, data: bytes) -> tuple[SessionLock, SegmentTail]:
        now_ms = self._clock_ms()
        if self._is_over:  # published, and nothing had been appended
            return publish_session(self._directory, self._header, self._owner, data, now_ms)
        try:
            return _build(self._place, self._header, self._owner, data, now_ms)
        except OSError as error:
            raise storage_error(error, "create", self._directory) from error

    def _require_open(self) -> None:
        if self._is_over:
            raise SessionError(f"the draft of session {self._header.id!r} is closed")


def publish_session(
    directory: str, header: SessionHeader, owner: str, data: bytes, now_ms: int
) -> tuple[SessionLock, SegmentTail]:
    """Create the session's directory with its first segment and first batch, durable and locked.

    Raises `SessionExists` if another process was first, `StorageFull` or `StorageError`; nothing
    is left then.
    """
    place = _hidden_place(directory)
    try:
        lock, tail = _build(place, header, owner, data, now_ms)
    except OSError as error:
        raise storage_error(error, "create", directory) from error
    try:
        _give_name(place, directory, header)
    except BaseException:
        _remove(place)
        lock.release()
        raise
    tail.move(os.path.join(directory, LOG_NAME))
    return lock, tail


def _hidden_place(directory: str) -> str:
    name = f"{NEW_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
    return os.path.join(os.path.dirname(directory), name)


def _build(
    place: str, header: SessionHeader, owner: str, data: bytes, now_ms: int
) -> tuple[SessionLock, SegmentTail]:
    """A session with one batch at ``place``, durable and locked. Raises OSError; nothing is left then."""
    project = os.path.dirname(place)
    make_private_directories(project)
    try:
        os.mkdir(place, 0o700)
    except FileNotFoundError:
        # Whoever removed the last other session of the project removed its directory.
        make_private_directories(project)
        os.mkdir(place, 0o700)
    lock: SessionLock | None = None
    try:
        lock = SessionLock.acquire(os.path.join(place, LOCK_NAME), owner, f"session {header.id!r}")
        inode, size = _write_first_segment(place, header, data)
        touch(place, now_ms)
    except BaseException:
        _remove(place)
        if lock is not None:
            lock.release()
        raise
    return lock, SegmentTail(os.path.join(place, LOG_NAME, segment_name(0)), inode, size, data)


def _give_name(place: str, directory: str, header: SessionHeader) -> None:
    """Rename a draft durably. Raises `SessionExists` or `StorageError`; it is at ``place`` then."""
    project = os.path.dirname(directory)
    try:
        os.rename(place, directory)
        try:
            fsync_directory(project)
            if len(find_all(os.path.dirname(project), header.id)) > 1:
                raise _exists(header)  # a process in another working directory was as quick
        except BaseException:
            os.rename(directory, place)
            raise
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise _exists(header) from error
        raise storage_error(error, "create", directory) from error


def _exists(header: SessionHeader) -> SessionExists:
    return SessionExists(f"session {header.id!r} exists already", hint="resume it, or choose another id")


def _write_first_segment(draft: str, header: SessionHeader, data: bytes) -> tuple[int, int]:
    log = os.path.join(draft, LOG_NAME)
    os.mkdir(log, 0o700)
    path = os.path.join(log, segment_name(0))
    first = SegmentHeader(header.id, 0, None, header).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, compress_frame(first) + compress_frame(data))
        os.fsync(descriptor)
        status = os.fstat(descriptor)
    finally:
        close_descriptor(descriptor)
    fsync_directory(log)
    fsync_directory(draft)
    return status.st_ino, status.st_size


def _remove(place: str) -> None:
    try:
        remove_tree(place)
    except OSError:
        return  # whatever is left is hidden, and removed with the other leftovers
