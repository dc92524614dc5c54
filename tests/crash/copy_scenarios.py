"""A copy that is being stored, as a process to be killed: ``python -m tests.crash.copy_scenarios BACKEND ROOT
KIND STEP`` ends itself before its ``STEP``-th change to the disk (KIND ``disk``) or event (KIND ``event``).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

from dsh_actors.adapters.storage import importing
from dsh_actors.adapters.storage.sqlite import SqliteStorage
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from tests.crash.storage_scenarios import watch

HEADER = SessionHeader(SessionId("copy"), 1_700_000_000_000, "/srv/shop")
COUNT = 60
BATCH = 10


def events() -> list[Event]:
    return [Event("run/note", seq, seq, {"text": f"event {seq}"}, ignorable=True) for seq in range(COUNT)]


def storage_at(backend: str, root: str) -> SegmentStorage | SqliteStorage:
    owner = "a process under test"
    if backend == "sqlite":
        return SqliteStorage(f"{root}/sessions.sqlite3", owner, lambda: 1_700_000_000_000)
    return SegmentStorage(f"{root}/sessions", owner, lambda: 1_700_000_000_000, segment_events=2 * BATCH)


def main() -> None:
    backend, root, kind, step = sys.argv[1:]
    left = int(step)

    def count(_name: str = "") -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted() -> Iterator[Event]:
        for event in events():
            if kind == "event":
                count()
            yield event

    importing._BATCH_EVENTS = BATCH
    if kind == "disk":
        watch(count, lambda name, call: setattr(os, name, call))
    importing.store_session(storage_at(backend, root), HEADER, counted())


if __name__ == "__main__":
    main()
