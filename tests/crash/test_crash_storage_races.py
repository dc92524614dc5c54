"""Two writers are never both, and readers without a lock never see damage that is not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId

ROOT = Path(__file__).resolve().parents[2]
S1 = SessionId("s1")

RACER = """
import sys
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event
from dsh_actors.errors import SessionBusy
from dsh_actors.ports import Checkpoint
root, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
storage = SegmentStorage(root, name, lambda: 0, segment_events=8)
sys.stdin.readline()
for number in range(rounds):
    while True:
        try:
            writer = storage.open("s1")
            break
        except SessionBusy as error:
            assert "in use by " in error.message, error.message
    checkpoint = writer.checkpoint()
    for _event in writer.replay(0 if checkpoint is None else checkpoint.next_seq):
        continue
    seq = writer.next_seq
    writer.append([Event("run/note", seq + i, 0, {"by": name}, ignorable=True) for i in range(3)])
    if number % 5 == 0:
        writer.save_checkpoint(Checkpoint(seq + 3, {}))
        writer.compact()
    writer.close()
"""

TROUBLED = """
import errno, os, random, sys
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event
from dsh_actors.errors import StorageFull
writer = SegmentStorage(sys.argv[1], "troubled", lambda: 0, segment_events=40).open("s1")
seq, write, rand = writer.next_seq, os.write, random.Random(5)
def full_now_and_then(descriptor, data):
    if rand.random() < 0.3:
        write(descriptor, data[: len(data) * 2 // 3])
        raise OSError(errno.ENOSPC, "No space left on device")
    return write(descriptor, data)
os.write = full_now_and_then
while True:
    text = os.urandom(700).hex()
    events = [Event("run/note", seq + i, 0, {"text": f"{seq + i} {text}"}, ignorable=True) for i in range(3)]
    try:
        writer.append(events)
    except StorageFull:
        continue
    seq += 3
    if seq % 90 == 1:
        write(1, b"%d\\n" % seq)
        try:
            writer.compact()
        except StorageFull:
            continue
"""


def begun(root: Path) -> SegmentStorage:
    storage = SegmentStorage(str(root), "the test", lambda: 0)
    writer = storage.create(SessionHeader(S1, 1_700_000_000_000, "/srv/shop"))
    writer.append([Event("run/note", 0, 0, {"by": "nobody"}, ignorable=True)])
    writer.close()
    return storage


def start(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def test_two_writers_that_race_are_never_both(tmp_path: Path, long_form: bool) -> None:
    rounds = 1000 if long_form else 50
    storage = begun(tmp_path)
    racers = [start(RACER, tmp_path, name, rounds) for name in ("a", "b")]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(b"go\n")
        racer.stdin.flush()
    for racer in racers:
        racer.communicate()
        assert racer.returncode == 0
    by = [event.data["by"] for event in storage.read(S1)]
    assert by[1::3] == by[2::3] == by[3::3], "the batches of two writers are mixed"
    assert sorted(by[1:]) == ["a"] * 3 * rounds + ["b"] * 3 * rounds


def test_a_reader_beside_failing_and_rewriting_writes_sees_no_damage(tmp_path: Path, long_form: bool) -> None:
    storage = begun(tmp_path)
    troubled = start(TROUBLED, tmp_path)
    assert troubled.stdout is not None
    known = 1
    try:
        for _ in range(40 if long_form else 12):
            known = int(troubled.stdout.readline())
            from_seq = max(1, known - 100)
            seen = [(event.seq, int(event.data["text"].split()[0])) for event in storage.read(S1, from_seq)]
            assert [seq for seq, _text in seen] == list(range(from_seq, from_seq + len(seen)))
            assert all(seq == text for seq, text in seen) and seen[-1][0] >= known - 1
            assert [one.status for one in storage.list()] == ["live"]
    finally:
        os.kill(troubled.pid, signal.SIGKILL)
        troubled.communicate()
    writer = storage.open(S1)
    assert writer.next_seq >= known
    writer.close()
