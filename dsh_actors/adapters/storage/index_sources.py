"""What the index is derived from: where each stored session is, and a cheap sign that it has changed.

Native code. Nothing here reads more of a session than it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from dsh_actors.adapters.storage.layout import LOCK_NAME, LOG_NAME, find_session, storage_error
from dsh_actors.adapters.storage.listing import list_session
from dsh_actors.adapters.storage.lock import is_held
from dsh_actors.adapters.storage.segments import segment_names
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.ports import SessionListing

if TYPE_CHECKING:
    from dsh_actors.adapters.storage.sqlite import SqliteStorage
    from dsh_actors.adapters.storage.sqlite_rows import SessionRow
    from dsh_actors.adapters.storage.storage import SegmentStorage

__all__ = ["IndexSource", "Place", "SegmentSource", "SqliteSource"]


@dataclass(frozen=True, slots=True)
class Place:
    """A stored session. ``key`` names it in the index; ``updated`` is ms since the epoch."""

    key: str
    updated: int
    handle: Any = field(default=None, hash=False)


class IndexSource(Protocol):
    def places(self, cwd: str | None, limit: int | None) -> Sequence[Place]:
        """All sessions, or those that may be of ``cwd``, newest first; ``limit`` holds without a ``cwd``."""

    def place(self, session_id: SessionId) -> Place:
        """Raises `SessionNotFound`."""

    def revision(self, place: Place) -> str | None:
        """Changes with every append. None where that cannot be told."""

    def identity(self, place: Place) -> str | None:
        """Stays as long as the session is only added to."""

    def is_live(self, place: Place) -> bool: ...

    def listing(self, place: Place) -> SessionListing:
        """Read the session. Raises nothing."""

    def header(self, session_id: SessionId) -> SessionHeader:
        """As `SessionStorage.header`."""

    def events(self, session_id: SessionId, from_seq: int) -> Iterator[Event]:
        """As `SessionStorage.read`."""


class SegmentSource:
    """The sessions in the directories below ``root``. A key is ``project/name``."""

    def __init__(self, root: str, storage: SegmentStorage) -> None:
        self._root = root
        self._storage = storage

    def places(self, cwd: str | None, limit: int | None) -> Sequence[Place]:
        found = self._storage.newest_directories(cwd, limit if cwd is None else None)
        start = len(os.path.join(self._root, ""))
        return [Place(directory[start:], updated) for directory, updated in found]

    def place(self, session_id: SessionId) -> Place:
        directory = find_session(self._root, session_id)
        try:
            updated = os.stat(directory).st_mtime_ns // 1_000_000
        except OSError as error:
            raise storage_error(error, "read", directory) from error
        return Place(os.path.relpath(directory, self._root), updated)

    def revision(self, place: Place) -> str | None:
        directory = self._directory(place)
        log = os.path.join(directory, LOG_NAME)
        try:
            status = os.stat(directory)
            last = segment_names(log)[-1]
            # The directory is dated before the bytes are written; their number tells when they are there.
            size = os.stat(os.path.join(log, last)).st_size
        except (OSError, IndexError):
            return None  # gone, or not whole: read it each time
        return f"{status.st_ino}:{status.st_mtime_ns}:{last}:{size}"

    def identity(self, place: Place) -> str | None:
        try:
            return str(os.stat(self._directory(place)).st_ino)
        except OSError:
            return None

    def is_live(self, place: Place) -> bool:
        return is_held(os.path.join(self._directory(place), LOCK_NAME))

    def listing(self, place: Place) -> SessionListing:
        return list_session(self._directory(place), place.updated)

    def header(self, session_id: SessionId) -> SessionHeader:
        return self._storage.header(session_id)

    def events(self, session_id: SessionId, from_seq: int) -> Iterator[Event]:
        return self._storage.read(session_id, from_seq)

    def _directory(self, place: Place) -> str:
        return os.path.join(self._root, place.key)


class SqliteSource:
    """The sessions of a database. A place carries the row that it was made from."""

    def __init__(self, storage: SqliteStorage) -> None:
        self._storage = storage

    def places(self, cwd: str | None, limit: int | None) -> Sequence[Place]:
        return [_place_of(row) for row in self._storage.changed(cwd, limit)]

    def place(self, session_id: SessionId) -> Place:
        return _place_of(self._storage.row(session_id))

    def revision(self, place: Place) -> str | None:
        return f"{place.handle.key}:{place.handle.next_seq}"

    def identity(self, place: Place) -> str | None:
        return str(place.handle.key)

    def is_live(self, place: Place) -> bool:
        return self._storage.is_live(place.handle)

    def listing(self, place: Place) -> SessionListing:
        return self._storage.listing(place.handle)

    def header(self, session_id: SessionId) -> SessionHeader:
        return self._storage.header(session_id)

    def events(self, session_id: SessionId, from_seq: int) -> Iterator[Event]:
        return self._storage.read(session_id, from_seq)


def _place_of(row: SessionRow) -> Place:
    return Place(f"sqlite:{row.name}", row.updated, row)
