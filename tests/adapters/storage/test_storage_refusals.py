"""What cannot be read or written is named, and nothing of it is changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionCorrupt, SessionError, StorageError
from tests.adapters.storage.samples import disk, header, turn

S1 = SessionId("s1")


def session(storage: SegmentStorage) -> Path:
    writer = storage.create(header())
    for number in range(4):
        writer.append(turn(number * 9, number + 1))
    writer.close()
    return Path(storage.path(S1))


def without_first_segment(directory: Path) -> None:
    (directory / "log" / "000000000000.jsonl.zst").unlink()


def without_middle_segment(directory: Path) -> None:
    (directory / "log" / "000000000018.jsonl.zst").unlink()


def half_a_segment(directory: Path) -> None:
    path = directory / "log" / "000000000009.jsonl.zst"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_log(directory: Path) -> None:
    shutil.rmtree(directory / "log")


def segments_swapped(directory: Path) -> None:
    one, two = (directory / "log" / f"{seq:012d}.jsonl.zst" for seq in (9, 18))
    one.rename(directory / "log" / "x")
    two.rename(one)
    (directory / "log" / "x").rename(two)


def of_another_session(directory: Path) -> None:
    other = disk(directory.parents[2] / "other", segment_events=9)
    writer = other.create(header("s2"))
    writer.append(turn(0))
    writer.close()
    shutil.copy(Path(other.path(SessionId("s2"))) / "log" / "000000000000.jsonl.zst", directory / "log")


def a_link(directory: Path) -> None:
    path = directory / "log" / "000000000009.jsonl.zst"
    path.rename(directory / "log" / "elsewhere")
    path.symlink_to("elsewhere")


SPOILT = [
    without_first_segment,
    without_middle_segment,
    half_a_segment,
    no_log,
    segments_swapped,
    of_another_session,
    a_link,
]


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_session_that_is_not_whole_is_refused_by_name_and_left_as_it_is(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    storage = disk(tmp_path / "sessions", segment_events=9)
    directory = session(storage)
    spoil(directory)
    log = directory / "log"
    before = {path: path.read_bytes() for path in log.iterdir()} if log.exists() else {}
    with pytest.raises((SessionCorrupt, StorageError), match=str(log)):
        list(storage.read(S1))
    with pytest.raises((SessionCorrupt, StorageError), match=str(log)):
        storage.open(S1).append(turn(36, 5))
    assert ({path: path.read_bytes() for path in log.iterdir()} if log.exists() else {}) == before


ASK_ALL = """
import sys
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.errors import SessionError
s = SegmentStorage(sys.argv[1], "somebody else", lambda: 0)
for ask in (s.header, lambda i: list(s.read(i)), s.open, s.revision, s.delete):
    try:
        ask("s1")
    except SessionError as error:
        print(error.code, error.message)
    else:
        print("done")
"""


def asked_by_another_user(root: Path) -> list[str]:
    """What a process without rights of this one is told. It cannot read what only its owner may."""
    for path in (root, *list(root.parents)[:3]):
        path.chmod(0o755)
    code = "import os, sys\nos.setgid(65534); os.setuid(65534)\n" if os.getuid() == 0 else ""
    # Once before, as that user may not read the interpreter's own files either.
    imports = (
        ASK_ALL.replace("sys.argv[1]", "sys.argv[1] + '-none'").replace("print", "(lambda *_: None)") + "\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", imports + code + ASK_ALL, str(root)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_place_without_permission_is_named_and_is_not_the_same_as_none(tmp_path: Path) -> None:
    storage = disk(tmp_path / "sessions")
    directory = session(storage)
    told: dict[str, list[str]] = {}
    for what, path in (("project", directory.parent), ("log", directory / "log")):
        mode = path.stat().st_mode
        directory.chmod(0o755)
        directory.parent.chmod(0o755)
        path.chmod(0o000)
        told[what] = asked_by_another_user(tmp_path / "sessions")
        path.chmod(mode)
    assert all("Permission denied" in line and str(directory.parent) in line for line in told["project"])
    assert len(told["project"]) == 5
    assert all(line.startswith("STORAGE_FAILED cannot") for line in told["log"])
    assert [event.seq for event in storage.read(S1)] == list(range(36))


def test_a_home_that_is_read_only_can_be_read_and_says_why_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = disk(tmp_path)
    session(storage)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    original = os.open

    def read_only(path: str, flags: int, *more: int, **keywords: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(30, os.strerror(30))
        return original(path, flags, *more, **keywords)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        assert [event.seq for event in storage.read(S1)] == list(range(36))
        assert [one.status for one in storage.list()] == ["ok"]
        for act in (storage.open, storage.delete):
            with pytest.raises(SessionError, match="Read-only file system"):
                act(S1)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
