"""A writer of a session is killed before every change it makes to the disk, and at random moments."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from tests.crash.storage_scenarios import require_right

ROOT = Path(__file__).resolve().parents[2]
SHORT, LONG = 12, 500


def start(root: Path, *arguments: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.crash.storage_scenarios", str(root), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


def durable_of(output: bytes) -> int:
    return max([0, *map(int, output.split())])


def test_killed_before_any_change_to_the_disk_it_goes_on(tmp_path: Path, long_form: bool) -> None:
    points = range(100) if long_form else range(1, 78, 7)
    ended = 0
    for point in points:
        root = tmp_path / str(point)
        root.mkdir()
        process = start(root, point)
        output, _ = process.communicate()
        assert process.returncode in (0, -9)
        ended += process.returncode == 0
        require_right(str(root), durable_of(output))
    assert ended < len(points) / 2


def test_killed_at_random_moments_again_and_again_it_loses_nothing(tmp_path: Path, long_form: bool) -> None:
    rand, known = random.Random(4), 0
    for _ in range(LONG if long_form else SHORT):
        process = start(tmp_path)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(rand.randint(1, 6))]
        process.kill()
        rest, _ = process.communicate()
        whole, _, _cut = (b"".join(lines) + rest).rpartition(b"\n")
        durable = durable_of(whole)
        assert durable >= known, "what was durable before is gone"
        known = require_right(str(tmp_path), durable)
