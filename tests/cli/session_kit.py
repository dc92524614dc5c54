"""Stored sessions for the tests of `dsh session`, and damage done to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from tests.session_logs import turns

__all__ = ["LOG", "everything", "flip", "held", "segment", "sessions", "store"]

LOG = turns(2)


def sessions(home: Path, now_ms: int = 1000) -> SegmentStorage:
    return SegmentStorage(str(home / "sessions"), "process 7 (a test)", lambda: now_ms)


def store(
    home: Path, name: str, log: Sequence[Event] = LOG, *, updated_s: float | None = None, **header: object
) -> None:
    """One durable batch a turn."""
    storage = sessions(home)
    details = {"cwd": "/srv/shop", **header}
    writer = storage.create(SessionHeader(SessionId(name), 1000, **details))  # type: ignore[arg-type]
    start = 0
    for event in log:
        if event.type == "turn/end" or event.seq == log[-1].seq:
            writer.append(log[start : event.seq + 1])
            start = event.seq + 1
    writer.close()
    if updated_s is not None:
        os.utime(storage.path(SessionId(name)), (updated_s, updated_s))


def segment(home: Path, name: str) -> Path:
    return Path(sessions(home).path(SessionId(name)), "log", "000000000000.jsonl.zst")


def flip(home: Path, name: str, frame: int) -> int:
    """Damage one frame of a session in its middle; where the frame begins."""
    path = segment(home, name)
    data = bytearray(path.read_bytes())
    starts, found = [], data.find(b"\x28\xb5\x2f\xfd")
    while found >= 0:
        starts.append(found)
        found = data.find(b"\x28\xb5\x2f\xfd", found + 1)
    starts.append(len(data))
    data[(starts[frame] + starts[frame + 1]) // 2] ^= 0x10
    path.write_bytes(data)
    return starts[frame]


def everything(home: Path) -> dict[str, bytes]:
    """Every file below the home."""
    return {str(path): path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}


def held(home: Path, name: str) -> object:
    """A writer that has the session, until it is closed."""
    return sessions(home).open(SessionId(name))
