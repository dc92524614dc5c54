"""One writer a session, across processes: told who holds it, blocked by nobody who is dead."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.lock import SessionLock, is_held, this_process
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionBusy, StorageError
from tests.adapters.storage.samples import OWNER, child, disk, stored, turn

S1 = SessionId("s1")

HOLDER = """
import sys
from dsh_actors.adapters.storage.storage import SegmentStorage
w = SegmentStorage(sys.argv[1], "the other process", lambda: 0).open("s1")
print(w.next_seq, flush=True)
sys.stdin.read()
"""


def start_holder(root: Path) -> subprocess.Popen[str]:
    holder = child(HOLDER, root)
    assert holder.stdout is not None and holder.stdout.readline() == "9\n"
    return holder


def end(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate()


def test_a_session_held_by_another_process_is_busy_until_that_process_is_gone(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    stored(storage, [turn(0)])
    holder = start_holder(tmp_path)
    try:
        with pytest.raises(SessionBusy, match="session 's1' is in use by the other process"):
            storage.open(S1)
        assert list(storage.read(S1)) == turn(0)
        assert [one.status for one in storage.list()] == ["live"]
        assert storage.newest("/srv/shop") == [("s1", True)]
    finally:
        end(holder)
    assert [one.status for one in storage.list()] == ["ok"]
    writer = storage.open(S1)
    assert Path(storage.path(S1), "lock").read_text() == OWNER
    writer.close()


def test_the_lock_file_names_its_present_holder_only_and_is_never_removed(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    for owner in ("a much longer text about the holder", "short"):
        lock = SessionLock.acquire(path, owner, "it")
        assert Path(path).read_text() == owner
        inode = os.stat(path).st_ino
        lock.release()
        lock.release()
        assert os.stat(path).st_ino == inode


def test_a_look_at_a_lock_does_not_make_a_writer_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lock"
    refused: list[int] = []

    def flock_while_somebody_looks(descriptor: int, mode: int) -> None:
        """The first call meets a reader that is about to let go of its shared lock."""
        with path.open() as look:
            if not refused:
                flock(look, fcntl.LOCK_SH)
            try:
                flock(descriptor, mode)
            except OSError:
                refused.append(mode)
                raise

    flock = fcntl.flock
    path.touch()
    monkeypatch.setattr(fcntl, "flock", flock_while_somebody_looks)
    SessionLock.acquire(str(path), "me", "it").release()
    assert refused == [fcntl.LOCK_EX | fcntl.LOCK_NB]


def test_a_lock_that_others_share_for_ever_is_busy_and_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(SessionBusy, match="another process"):
            SessionLock.acquire(str(path), "me", "it")
    assert not is_held(str(path))


def test_is_held_is_false_without_a_lock_file(tmp_path: Path) -> None:
    assert not is_held(str(tmp_path / "lock"))


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_said_to_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    storage = disk(tmp_path)
    stored(storage, [turn(0)])

    def refuse(_descriptor: int, _mode: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StorageError, match="file locks do not work at") as caught:
        storage.open(S1)
    assert caught.value.hint is not None and "DSH_HOME" in caught.value.hint
    with pytest.raises(StorageError, match="file locks do not work at"):
        stored(storage, [turn(0)], "s2")
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["s1"]


def test_a_process_describes_itself_on_one_line() -> None:
    assert this_process() == f"pid {os.getpid()} on {os.uname().nodename}"
