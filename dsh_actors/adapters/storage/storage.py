"""Sessions on disk as compressed segments: the `SessionStorage` that outlives the process.

Native code: no lock, sleep or socket of the standard library, so it runs in native threads. A
writer belongs to one thread at a time; different sessions may be used at the same time.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from dsh_actors.adapters.storage.checkpoints import newest_checkpoint
from dsh_actors.adapters.storage.layout import (
    LOCK_NAME,
    LOG_NAME,
    find_all,
    find_session,
    name_of_id,
    project_name,
    storage_error,
)
from dsh_actors.adapters.storage.listing import list_session
from dsh_actors.adapters.storage.lock import SessionLock, is_held
from dsh_actors.adapters.storage.recovery import LogReader, stable_events
from dsh_actors.adapters.storage.removal import (
    remove_leftovers,
    remove_session,
    require_removable,
    tree_size,
)
from dsh_actors.adapters.storage.segments import SegmentTail, segment_names
from dsh_actors.adapters.storage.writer import DEFAULT_SIZES, SegmentSizes, SegmentWriter
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionBusy, SessionCorrupt, SessionError, SessionExists, SessionNotFound
from dsh_actors.ports import Checkpoint, SessionListing

if TYPE_CHECKING:
    from dsh_actors.adapters.storage.drafts import SegmentDraft
    from dsh_actors.adapters.storage.salvage import DamagedLog

__all__ = ["SegmentStorage", "SegmentWriter"]


class SegmentStorage:
    """A `SessionStorage` below ``root`` (``$DSH_HOME/sessions``).

    ``owner`` names this process to whoever meets its locks; ``clock_ms`` dates the changes. A
    segment is sealed at ``segment_bytes`` on disk or ``segment_events``.
    """

    def __init__(
        self,
        root: str,
        owner: str,
        clock_ms: Callable[[], int],
        *,
        segment_bytes: int = DEFAULT_SIZES.compressed,
        segment_events: int = DEFAULT_SIZES.events,
    ) -> None:
        self._root = root
        self._owner = owner
        self._clock_ms = clock_ms
        self._sizes = SegmentSizes(segment_bytes, segment_events)
        self._reserved: dict[SessionId, object] = {}

    def create(self, header: SessionHeader) -> SegmentWriter:
        """Reserve an id; the first append creates the session.

        Raises `SessionExists`, or `EventRefused` for a wrong header.
        """
        directory, close = self._reserve(header)

        def publish(data: bytes) -> tuple[SessionLock, SegmentTail]:
            from dsh_actors.adapters.storage.drafts import publish_session  # not for those who only read

            return publish_session(directory, header, self._owner, data, self._clock_ms())

        return SegmentWriter(directory, header, self._clock_ms, self._sizes, publish=publish, on_close=close)

    def draft(self, header: SessionHeader) -> SegmentDraft:
        """Reserve an id for a copy, which appears when it is published. Raises as `create` does."""
        from dsh_actors.adapters.storage.drafts import SegmentDraft  # not for those who only read

        directory, close = self._reserve(header)
        return SegmentDraft(directory, header, self._owner, self._clock_ms, self._sizes, close)

    def _reserve(self, header: SessionHeader) -> tuple[str, Callable[[], None]]:
        """The directory of a new session, and what gives its id up again."""
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

        def give_up() -> None:
            del self._reserved[header.id]

        return directory, give_up

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
        return SegmentWriter(directory, header, self._clock_ms, self._sizes, lock=lock)

    def header(self, session_id: SessionId) -> SessionHeader:
        """Reads the first frame only. Raises as `open` does, but never `SessionBusy`."""
        return LogReader(find_session(self._root, session_id)).header()

    def read(self, session_id: SessionId, from_seq: int = 0) -> Iterator[Event]:
        """Stream what is stored, without a lock; a torn tail is read as far as it is whole.

        Raises `SessionNotFound` at once, `SessionCorrupt` and `SessionUnsupported` on the way.
        """
        return stable_events(find_session(self._root, session_id), from_seq)

    def checkpoint(self, session_id: SessionId) -> Checkpoint | None:
        """The newest checkpoint that fits the log, read without a lock. Raises `SessionNotFound`."""
        found = newest_checkpoint(find_session(self._root, session_id), session_id)
        return None if found is None else found.checkpoint

    def revision(self, session_id: SessionId) -> str:
        """Changes with every append; not when segments are rewritten or checkpoints saved.

        Raises `SessionNotFound`, or `StorageError` where the log cannot be read.
        """
        log = os.path.join(find_session(self._root, session_id), LOG_NAME)
        try:
            name = segment_names(log)[-1]
            status = os.stat(os.path.join(log, name))
        except IndexError as error:
            raise SessionCorrupt(f"{log} holds no segment of a session") from error
        except FileNotFoundError as error:
            raise SessionNotFound(f"no session {session_id!r} in {self._root}") from error
        except OSError as error:
            raise storage_error(error, "read", log) from error
        return f"{name.partition('.')[0]}-{status.st_size}-{status.st_ino}-{status.st_mtime_ns}"

    def rewrite_sealed(self, session_id: SessionId) -> None:
        """Rewrite the sealed segments of a session that nobody holds. Raises as `open` and a replay do."""
        writer = self.open(session_id)
        try:
            if writer.next_seq:
                writer.compact()
        finally:
            writer.close()

    def delete(self, session_id: SessionId) -> int:
        """Remove a session that nobody holds, damaged or not; the bytes freed.

        Raises `SessionBusy`, `SessionNotFound`, `StorageError`.
        """
        directory = find_session(self._root, session_id)
        freed = remove_session(directory, self._owner, f"session {session_id!r}")
        remove_leftovers(os.path.dirname(directory))
        return freed

    def require_removable(self, session_id: SessionId) -> None:
        """Whether `delete` would remove it, as far as can be told beforehand. Raises as that does."""
        directory, what = find_session(self._root, session_id), f"session {session_id!r}"
        require_removable(directory, what)
        if is_held(os.path.join(directory, LOCK_NAME)):
            raise SessionBusy(f"{what} is in use")

    def list(self, cwd: str | None = None) -> Iterator[SessionListing]:
        """Newest first; each session is read when it is asked for."""
        for directory, updated_ms in self.newest_directories(cwd):
            listing = list_session(directory, updated_ms)
            if cwd is None or listing.cwd in (None, cwd):
                yield listing

    def newest(self, cwd: str, limit: int = 2) -> Sequence[tuple[SessionId, bool]]:
        """The last changed sessions of ``cwd`` that can be opened, and whether each has a live writer.

        Newest first; sub-agents' sessions are left out.
        """
        found: list[tuple[SessionId, bool]] = []
        for directory, _updated_ms in self.newest_directories(cwd):
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

    def size(self, session_id: SessionId) -> int:
        """Bytes of the session's files. Raises `SessionNotFound`."""
        return tree_size(find_session(self._root, session_id))

    def is_in_use(self, session_id: SessionId) -> bool:
        """Whether somebody writes the session. Raises `SessionNotFound`."""
        return is_held(os.path.join(find_session(self._root, session_id), LOCK_NAME))

    def damaged(self, session_id: SessionId) -> DamagedLog:
        """What is left of a session that may be damaged. Raises `SessionNotFound` or `StorageError`."""
        from dsh_actors.adapters.storage.salvage import DamagedLog  # for few: it costs every start otherwise

        return DamagedLog(find_session(self._root, session_id))

    def newest_directories(
        self, cwd: str | None = None, limit: int | None = None
    ) -> Sequence[tuple[str, int]]:
        """Each session's directory with the time of its last change in ms, newest first, at most ``limit``.

        With a ``cwd`` those that may be of it: the names of projects are lossy.
        """
        if cwd is None:
            projects = [entry.path for entry in _directories(self._root) if entry.name[0] != "."]
        else:
            projects = [os.path.join(self._root, project_name(cwd))]
        changed = [found for project in projects for found in _dated(project)]
        if limit is not None:
            changed = heapq.nlargest(limit, changed)
        else:
            changed.sort(reverse=True)
        return [(directory, updated_ms) for updated_ms, directory in changed]


def _dated(project: str) -> Iterator[tuple[int, str]]:
    """The sessions of a project and when each last changed; leftovers that are found there are removed."""
    has_leftovers = False
    for entry in _directories(project):
        if entry.name[0] == ".":
            has_leftovers = True
            continue
        try:
            yield entry.stat(follow_symlinks=False).st_mtime_ns // 1_000_000, entry.path
        except FileNotFoundError:
            continue  # removed meanwhile
    if has_leftovers:
        remove_leftovers(project)


def _directories(parent: str) -> list[os.DirEntry[str]]:
    """The directories in ``parent``; none if it does not exist."""
    try:
        with os.scandir(parent) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(error, "read", parent) from error
