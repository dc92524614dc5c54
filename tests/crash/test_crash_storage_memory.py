"""A huge session is written, sealed, rewritten and read in little memory: what is held is one piece of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

WRITE = """
import sys
from dsh_actors.testing.memory import peak_kib
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.ports import Checkpoint
root, mebibytes = sys.argv[1], int(sys.argv[2])
writer = SegmentStorage(root, "o", lambda: 0).create(SessionHeader("s1", 0, "/srv/shop"))
for number in range(mebibytes * 4):
    first = number * 8
    # Most of a log repeats itself; a frame of it can decode to a hundred times its size.
    texts = [f"line {first + i} of a long and repetitive output\\n" * 900 for i in range(8)]
    writer.append([Event("run/note", first + i, 0, {"text": t}, ignorable=True) for i, t in enumerate(texts)])
writer.save_checkpoint(Checkpoint(writer.next_seq - 100, {}))
writer.compact()
writer.close()
print(peak_kib() // 1024)
"""

READ = """
import sys
from dsh_actors.testing.memory import peak_kib
from dsh_actors.adapters.storage.storage import SegmentStorage
storage = SegmentStorage(sys.argv[1], "o", lambda: 0)
size = sum(len(event.data["text"]) for event in storage.read("s1"))
writer = storage.open("s1")
checkpoint = writer.checkpoint()
left = sum(1 for _ in writer.replay(checkpoint.next_seq))
writer.close()
print(size // 2**20, left, peak_kib() // 1024)
"""


def run(code: str, *arguments: object) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(word) for word in done.stdout.split()]


def test_memory_does_not_grow_with_the_session(tmp_path: Path, long_form: bool) -> None:
    mebibytes = 1024 if long_form else 48
    (written_mib,) = run(WRITE, tmp_path, mebibytes)
    decoded_mib, left, read_mib = run(READ, tmp_path)
    assert decoded_mib >= mebibytes and left == 100
    limit = 200 if long_form else 90
    assert written_mib < limit and read_mib < limit, (written_mib, read_mib)
