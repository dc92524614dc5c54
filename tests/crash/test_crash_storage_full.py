"""A disk that is really full: a file system of 1 MiB, or a limit on file sizes where none can be mounted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.storage_scenarios import S1, events, storage_at

ROOT = Path(__file__).resolve().parents[2]

FILL = """
import os, resource, signal, sys
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.errors import StorageFull
from dsh_actors.ports import Checkpoint
root, ballast, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
storage = SegmentStorage(root, "full", lambda: 0, segment_bytes=100_000)
writer = storage.create(SessionHeader("s1", 1_700_000_000_000, "/srv/shop"))
note = lambda seq: Event("run/note", seq, seq, {"text": os.urandom(9000).hex()}, ignorable=True)
writer.append([note(0)])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
else:
    with open(ballast, "wb") as file:
        file.write(bytes(400_000))
failed = set()
big = lambda: Checkpoint(writer.next_seq, {"x": os.urandom(40_000).hex()})
while True:
    for what, act in (
        ("append", lambda: writer.append([note(writer.next_seq)])),
        ("checkpoint", lambda: writer.save_checkpoint(big())),
        ("compact", writer.compact),
    ):
        try:
            act()
        except StorageFull as error:
            assert error.hint and "make room" in error.hint
            failed.add(what)
    if "append" in failed and (limit or "checkpoint" in failed):
        break
print(writer.next_seq, *sorted(failed), flush=True)
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
else:
    os.unlink(ballast)
for _ in range(3):
    writer.append([note(writer.next_seq)])
writer.save_checkpoint(Checkpoint(writer.next_seq, {}))
writer.close()
print(writer.next_seq)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A directory, and the limit on its files' sizes where it is on a disk with room."""
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    try:
        is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    yield place, 0 if is_mounted else 60_000
    if is_mounted:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_stops_the_writer_and_loses_nothing(small_disk: tuple[Path, int]) -> None:
    place, limit = small_disk
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(place / "sessions"), str(place / "ballast"), str(limit)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (stored, *failed), (end,) = (line.split() for line in done.stdout.splitlines())
    assert "append" in failed and int(end) == int(stored) + 3 > 5
    storage = storage_at(str(place / "sessions"))
    assert [event.seq for event in storage.read(S1)] == list(range(int(end)))
    checkpoint = storage.checkpoint(S1)
    assert checkpoint is not None and checkpoint.next_seq == int(end)
    assert [path.name for path in place.rglob(".draft*")] == []
    writer = storage.open(S1)
    assert writer.next_seq == int(end)
    writer.append(events(int(end), 1))
    writer.close()
