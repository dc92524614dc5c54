"""Reading stored sessions without starting a harness: which one is meant, where it works, with what model."""

from __future__ import annotations

import os
import time

from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.config import Config
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionBusy, UsageError

__all__ = ["newest_session", "open_storage", "recorded_model"]


def open_storage(config: Config) -> SegmentStorage:
    """The sessions on disk, to read from. Raises `ConfigError` where there is no home."""
    root = os.path.join(config.require_home(), "sessions")
    return SegmentStorage(root, f"dsh (pid {os.getpid()})", lambda: time.time_ns() // 1_000_000)


def newest_session(storage: SegmentStorage, cwd: str) -> SessionId:
    """The session that ``--continue`` means. Raises `UsageError` or `SessionBusy`."""
    found = storage.newest(cwd, 2)
    if not found:
        raise UsageError(f"--continue: there is no session in {cwd}")
    newest, is_live = found[0]
    if is_live:
        raise SessionBusy(f"--continue: the newest session, {newest}, is in use")
    ages = [os.stat(storage.path(session)).st_mtime_ns for session, _ in found]
    if len(found) > 1 and ages[0] == ages[1]:
        raise SessionBusy(f"--continue: {newest} and {found[1][0]} are equally new; use --resume ID")
    return newest


def recorded_model(storage: SegmentStorage, session: SessionId) -> str | None:
    """The model of the session's last request; reads the whole log."""
    model = None
    for event in storage.read(session):
        if event.type == "request/context":
            model = f"{event.data['provider']}/{event.data['model']}"
    return model
