"""A process that stores a copy of a session is killed: the copy is whole then, or not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.importing import store_session
from dsh_actors.errors import SessionNotFound
from tests.crash.copy_scenarios import BATCH, COUNT, HEADER, events, storage_at

ROOT = Path(__file__).resolve().parents[2]


def is_whole_after_kill(backend: str, root: Path, kind: str, step: int) -> bool:
    """Whether the copy is there after a kill. Where it is not it can be made."""
    root.mkdir()
    command = [sys.executable, "-m", "tests.crash.copy_scenarios", backend, str(root), kind, str(step)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode in (0, -9)
    storage = storage_at(backend, str(root))
    try:
        found = list(storage.read(HEADER.id))
    except SessionNotFound:
        assert list(storage.list()) == []
        assert store_session(storage, HEADER, events()) == COUNT
        assert list(storage.read(HEADER.id)) == events()
        return False
    assert found == events()
    return True


@pytest.mark.parametrize("backend", ["segments", "sqlite"])
def test_killed_between_its_events_a_copy_is_not_there(tmp_path: Path, backend: str) -> None:
    for step in (0, BATCH + 1, COUNT - 1):
        assert not is_whole_after_kill(backend, tmp_path / str(step), "event", step)
    assert is_whole_after_kill(backend, tmp_path / "all", "event", COUNT)


def test_killed_before_any_change_to_the_disk_a_copy_is_whole_or_not_there(
    tmp_path: Path, long_form: bool
) -> None:
    points = range(60) if long_form else range(1, 60, 6)
    outcomes = [is_whole_after_kill("segments", tmp_path / str(point), "disk", point) for point in points]
    assert outcomes == sorted(outcomes) and set(outcomes) == {False, True}
