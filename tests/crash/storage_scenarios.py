"""A life of a small session that seals, rewrites and saves checkpoints, and what must be true after its end.

Run as a program it is a process to be killed: ``python -m tests.crash.storage_scenarios ROOT [STEP]``
says after each step what is durable, and ends itself before its ``STEP``-th change to the disk.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionNotFound
from dsh_actors.ports import Checkpoint

S1 = SessionId("s1")
BATCHES = 8
BATCH = 5

DISK_CALLS = ("write", "fsync", "fdatasync", "rename", "link", "unlink", "ftruncate", "mkdir", "rmdir")


def events(first_seq: int, count: int = BATCH) -> list[Event]:
    """What the log holds at these numbers, whoever writes it: nothing depends on when."""
    return [
        Event("run/note", seq, seq, {"text": f"event {seq} " * 5}, ignorable=True)
        for seq in range(first_seq, first_seq + count)
    ]


def storage_at(root: str) -> SegmentStorage:
    return SegmentStorage(root, "a process under test", lambda: 1_700_000_000_000, segment_events=2 * BATCH)


def live(root: str, batches: int = BATCHES) -> Iterator[int]:
    """Go on with the session, or begin it; yields how many events are durable after each step."""
    storage = storage_at(root)
    try:
        writer = storage.open(S1)
    except SessionNotFound:
        writer = storage.create(SessionHeader(S1, 1_700_000_000_000, "/srv/shop"))
    checkpoint = writer.checkpoint()
    for _event in writer.replay(0 if checkpoint is None else checkpoint.next_seq):
        continue
    yield writer.next_seq
    for number in range(batches):
        writer.append(events(writer.next_seq))
        yield writer.next_seq
        if number % 2:
            writer.save_checkpoint(Checkpoint(writer.next_seq, {"count": writer.next_seq}))
            writer.compact()
    writer.close()


def require_right(root: str, durable: int) -> int:
    """Nothing durable is missing, nothing is invented, and the session goes on. Returns its length."""
    storage = storage_at(root)
    try:
        seen = list(storage.read(S1))
    except SessionNotFound:
        assert durable == 0
        seen = []
    assert len(seen) >= durable and seen == events(0, len(seen))
    checkpoint = storage.checkpoint(S1) if seen else None
    if checkpoint is not None:
        assert checkpoint == Checkpoint(checkpoint.next_seq, {"count": checkpoint.next_seq})
        assert checkpoint.next_seq <= len(seen)
        assert list(storage.read(S1, checkpoint.next_seq)) == seen[checkpoint.next_seq :]
    *_, last = live(root, 3)
    assert last == len(seen) + 3 * BATCH
    assert list(storage_at(root).read(S1)) == events(0, last)
    left = [name for _folder, _folders, files in os.walk(root) for name in files if name[0] == "."]
    assert left == []
    return len(seen)


def watch(before: Callable[[str], None], set_call: Callable[[str, Callable[..., Any]], None]) -> None:
    """Have ``before`` called with the name of each call that changes the disk, before it is made."""

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def stand_in(*arguments: Any, **keywords: Any) -> Any:
            before(name)
            return call(*arguments, **keywords)

        return stand_in

    for name in DISK_CALLS:
        set_call(name, watched(name, getattr(os, name)))


def main() -> None:
    root, *step = sys.argv[1:]
    say = os.write
    left = int(step[0]) if step else sys.maxsize

    def count(_name: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    watch(count, lambda name, call: setattr(os, name, call))
    for durable in live(root, BATCHES if step else sys.maxsize):
        say(1, b"%d\n" % durable)


if __name__ == "__main__":
    main()
