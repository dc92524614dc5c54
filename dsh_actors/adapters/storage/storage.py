"""Sessions on disk as compressed segments: the `SessionStorage` that outlives the process.

Native code: no lock, sleep or socket of the standard library, so it runs in native threads. A
writer belongs to one thread at a time; different sessions may be used at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from dsh_actors.adapters.storage.layout import (
    LOCK_NAME,
    find_all,
    find_session,
    name_of_id,
    project_name,
    storage_error,
)
from dsh_actors.adapters.storage.listing import list_session
from dsh_actors.adapters.storage.lock import SessionLock, is_held
from dsh_actors.adapters.storage.recovery import LogReader, repair_tail
from dsh_actors.adapters.storage.segments import SegmentTail, publish_session, touch
from dsh_actors.adapters.storage.sequence import require_next
from dsh_actors.core.codec import encode_batch
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionError, SessionExists
from dsh_actors.ports import SessionListing

__all__ = ["SegmentStorage", "SegmentWriter"]


class SegmentStorage:
    """A `SessionStorage` below ``root`` (``$DSH_HOME/sessions``).

    ``owner`` names this process to whoever meets its locks; ``clock_ms`` dates the changes.
    """

    def __init__(self, root: str, owner: str, clock_ms: Callable[[], int]) -> None:
        self._root = root
        self._owner = owner
        self._clock_ms = clock_ms
        self._reserved: dict[SessionId, object] = {}

    def create(self, header: SessionHeader) -> SegmentWriter:
        """Reserve an id; the first append creates the session.

        Raises `SessionExists`, or `EventRefused` for a wrong header.
        """
        header.require_valid()
        directory = os.path.join(self._root, project_name(header.cwd), name_of_id(header.id))
        token = object()
        # One atomic step: two threads may create the same id.
        if self._reserved.setdefault(header.id, token) is not token:
            raise SessionExists(f"session {header.id!r} exists already")
        try:
            if find_all(self._root, header.id):
                raise SessionExists(f"session {header.id!r} exists already")
        except BaseException:
            del self._reserved[header.id]
            raise

        def publish(data: bytes) -> tuple[SessionLock, SegmentTail]:
            return publish_session(directory, header, self._owner, data, self._clock_ms())

        def close() -> None:
            del self._reserved[header.id]

        return SegmentWriter(directory, header, self._clock_ms, publish=publish, on_close=close)

    def open(self, session_id: SessionId) -> SegmentWriter:
        """Take the session's lock and read its header; `SegmentWriter.replay` reads the rest.

        Raises `SessionNotFound`, `SessionBusy` naming the holder, `SessionCorrupt`, `SessionUnsupported`.
        """
        directory = find_session(self._root, session_id)
        lock = SessionLock.acquire(os.path.join(directory, LOCK_NAME), self._owner, f"session {session_id!r}")
        try:
            header = LogReader(directory).header()
        except BaseException:
            lock.release()
            raise
        return SegmentWriter(directory, header, self._clock_ms, lock=lock)

    def header(self, session_id: SessionId) -> SessionHeader:
        """Reads the first frame only. Raises as `open` does, but never `SessionBusy`."""
        return LogReader(find_session(self._root, session_id)).header()

    def read(self, session_id: SessionId, from_seq: int = 0) -> Iterator[Event]:
        """Stream what is stored, without a lock; a torn tail is read as far as it is whole.

        Raises `SessionNotFound` at once, `SessionCorrupt` and `SessionUnsupported` on the way.
        """
        return LogReader(find_session(self._root, session_id)).events(from_seq)

    def list(self, cwd: str | None = None) -> Iterator[SessionListing]:
        """Newest first; each session is read when it is asked for."""
        for directory, updated_ms in self._newest_directories(cwd):
            listing = list_session(directory, updated_ms)
            if cwd is None or listing.cwd in (None, cwd):
                yield listing

    def newest(self, cwd: str, limit: int = 2) -> Sequence[tuple[SessionId, bool]]:
        """The last changed sessions of ``cwd`` that can be opened, and whether each has a live writer.

        Newest first; sub-agents' sessions are left out.
        """
        found: list[tuple[SessionId, bool]] = []
        for directory, _updated_ms in self._newest_directories(cwd):
            if len(found) >= limit:
                break
            try:
                header = LogReader(directory).header()
            except SessionError:
                continue  # a damaged one cannot be continued; listing it tells why
            if header.cwd == cwd and header.origin is None:
                found.append((header.id, is_held(os.path.join(directory, LOCK_NAME))))
        return found

    def path(self, session_id: SessionId) -> str:
        """The session's directory. Raises `SessionNotFound`."""
        return find_session(self._root, session_id)

    def _newest_directories(self, cwd: str | None) -> Sequence[tuple[str, int]]:
        """Each session's directory with the time of its last change in ms, newest first."""
        projects = _directories(self._root) if cwd is None else [os.path.join(self._root, project_name(cwd))]
        changed: list[tuple[int, str]] = []
        for project in projects:
            for directory in _directories(project):
                try:
                    changed.append((os.stat(directory).st_mtime_ns // 1_000_000, directory))
                except FileNotFoundError:
                    continue  # removed meanwhile
        return [(directory, updated_ms) for updated_ms, directory in sorted(changed, reverse=True)]


class SegmentWriter:
    """The one writer of a session on disk; used by one thread at a time.

    Damage behind the header, and unknown events, are found by `replay`. Whoever appends without
    having replayed makes the writer read the log first, as it never adds to what it has not checked.
    """

    def __init__(
        self,
        directory: str,
        header: SessionHeader,
        clock_ms: Callable[[], int],
        *,
        lock: SessionLock | None = None,
        publish: Callable[[bytes], tuple[SessionLock, SegmentTail]] | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._directory = directory
        self._header = header
        self._clock_ms = clock_ms
        self._lock = lock
        self._publish = publish
        self._on_close = on_close
        self._tail: SegmentTail | None = None
        self._next_seq = 0
        self._is_closed = False

    @property
    def header(self) -> SessionHeader:
        return self._header

    @property
    def next_seq(self) -> int:
        """Reads the log if it was not read. Raises as `replay` does."""
        self._require_read()
        return self._next_seq

    def replay(self) -> Iterator[Event]:
        """Every stored event in order. At its end a torn tail is cut off and kept beside.

        Raises `SessionCorrupt` with the place, `SessionUnsupported`, or `StorageError`.
        """
        if self._publish is not None:
            return
        self._require_open()
        reader = LogReader(self._directory)
        yield from reader.events()
        if self._tail is None:
            self._tail = repair_tail(reader.end)
            self._next_seq = reader.end.next_seq

    def append(self, events: Sequence[Event]) -> None:
        """Durable on return; on failure nothing is written and the same call may be made again.

        Raises `SessionBusy` (a stale writer), `StorageFull`, `StorageError`, `SessionExists` (first
        append only), or `EventRefused` for a gap or for data without a JSON form.
        """
        self._require_open()
        self._require_read()
        require_next(events, self._next_seq)
        if not events:
            return
        data = encode_batch(events)
        if self._tail is not None:
            touch(self._directory, self._clock_ms())
            self._tail.append(data)
        elif self._publish is not None:
            self._lock, self._tail = self._publish(data)
            self._publish = None
        self._next_seq += len(events)

    def close(self) -> None:
        """Give the lock back. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._lock is not None:
            self._lock.release()
        if self._on_close is not None:
            self._on_close()

    def _require_read(self) -> None:
        if self._tail is None and self._publish is None:
            for _event in self.replay():
                continue

    def _require_open(self) -> None:
        if self._is_closed:
            raise SessionError(f"the writer of session {self._header.id!r} is closed")


def _directories(parent: str) -> list[str]:
    """The visible directories in ``parent``; none if it does not exist."""
    try:
        with os.scandir(parent) as entries:
            return [e.path for e in entries if e.name[0] != "." and e.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(error, "read", parent) from error
