"""Reading stored sessions without starting a harness: which one is meant, where it works, with what model."""

from __future__ import annotations

import os
from collections.abc import Iterator

from dsh_actors.adapters.storage.backend import DiskStorage, open_index, open_storage
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.config import Config
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionBusy, UsageError
from dsh_actors.ports import SessionListing, SessionStorage
from dsh_actors.task_spec import fork_point
from dsh_actors.task_spec import session_exists as exists

__all__ = ["exists", "fork_point", "listings", "newest_session", "open_storage", "recorded_model"]


def listings(
    config: Config, cwd: str | None = None, limit: int | None = None, *, roots_only: bool = False
) -> Iterator[SessionListing]:
    """Sessions, or those of ``cwd``, newest first. Rows of the index are used where they still hold.

    ``roots_only`` leaves sub-agents' sessions out.
    """
    storage = open_storage(config)
    return open_index(config.require_home(), storage).listings(cwd, limit, roots_only=roots_only)


def newest_session(storage: DiskStorage, cwd: str) -> SessionId:
    """The session that ``--continue`` means. Raises `UsageError` or `SessionBusy`."""
    found = storage.newest(cwd, 2)
    if not found:
        raise UsageError(f"--continue: there is no session in {cwd}")
    newest, is_live = found[0]
    if is_live:
        raise SessionBusy(f"--continue: the newest session, {newest}, is in use")
    ages = [_updated(storage, session) for session, _ in found]
    if len(found) > 1 and ages[0] == ages[1]:
        raise SessionBusy(f"--continue: {newest} and {found[1][0]} are equally new; use --resume ID")
    return newest


def _updated(storage: DiskStorage, session: SessionId) -> int:
    """When the session last changed; only for comparing."""
    if isinstance(storage, SegmentStorage):
        return os.stat(storage.path(session)).st_mtime_ns
    return storage.row(session).updated


def recorded_model(storage: SessionStorage, session: SessionId) -> str | None:
    """The model of the session's last request; reads the whole log."""
    model = None
    for event in storage.read(session):
        if event.type == "request/context":
            model = f"{event.data['provider']}/{event.data['model']}"
    return model
