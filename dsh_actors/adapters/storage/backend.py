"""Which storage and which index belong to a home, as the configuration chooses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from dsh_actors.adapters.storage.lock import this_process
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.config import Config, SessionConfig
from dsh_actors.ports import SessionStorage

if TYPE_CHECKING:
    from dsh_actors.adapters.storage.index import SessionIndex
    from dsh_actors.adapters.storage.sqlite import SqliteStorage

__all__ = ["DiskStorage", "open_disk_storage", "open_index", "open_storage"]

DiskStorage: TypeAlias = "SegmentStorage | SqliteStorage"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_storage(config: Config, clock_ms: Callable[[], int] = _now_ms) -> DiskStorage:
    """The stored sessions, for this process. Raises `ConfigError` where there is no home for them."""
    return open_disk_storage(config.require_home(), config.session, this_process(), clock_ms)


def open_disk_storage(
    home: str, config: SessionConfig, owner: str, clock_ms: Callable[[], int]
) -> DiskStorage:
    """The sessions kept in ``home``. Creates nothing."""
    if config.backend == "sqlite":
        # Only those who chose it pay for the library.
        from dsh_actors.adapters.storage.sqlite import SqliteStorage

        return SqliteStorage(os.path.join(home, "sessions.sqlite3"), owner, clock_ms)
    return SegmentStorage(
        _root(home),
        owner,
        clock_ms,
        segment_bytes=config.segment_bytes,
        segment_events=config.segment_events,
    )


def open_index(home: str, storage: SessionStorage, place: str | None = None) -> SessionIndex:
    """The index of the sessions that `open_disk_storage` gave, kept in ``place`` instead of ``home`` if that
    is given. Creates nothing.

    Raises TypeError for another storage.
    """
    from dsh_actors.adapters.storage.index import SessionIndex
    from dsh_actors.adapters.storage.index_sources import IndexSource, SegmentSource, SqliteSource

    source: IndexSource
    if isinstance(storage, SegmentStorage):
        source = SegmentSource(_root(home), storage)
    else:
        from dsh_actors.adapters.storage.sqlite import SqliteStorage

        if not isinstance(storage, SqliteStorage):
            raise TypeError(f"{type(storage).__name__} has no index")
        source = SqliteSource(storage)
    return SessionIndex(os.path.join(place or home, "index.sqlite3"), source)


def _root(home: str) -> str:
    return os.path.join(home, "sessions")
