"""A removed session leaves nothing, and nothing else is removed with it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionBusy, SessionCorrupt, SessionNotFound, StorageError
from dsh_actors.ports import Checkpoint
from tests.adapters.storage.samples import disk, header, notes, segment, stored, turn

S1 = SessionId("s1")


def everything(root: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None for path in root.rglob("*")
    }


def full_session(storage: SegmentStorage) -> Path:
    """A session with all that one can have."""
    writer = storage.create(header())
    for number in range(4):
        writer.append(turn(number * 9, number + 1))
    writer.save_checkpoint(Checkpoint(36, {"x": 1}))
    writer.close()
    directory = Path(storage.path(S1))
    (directory / "log" / "000000000027.jsonl.zst.torn").write_bytes(b"torn")
    (directory / "spill" / "call-1").mkdir(parents=True)
    (directory / "spill" / "call-1" / "output.txt").write_text("x" * 5000)
    return directory


def test_nothing_of_a_deleted_session_is_left_and_its_neighbour_is(tmp_path: Path) -> None:
    storage = disk(tmp_path, segment_events=9)
    stored(storage, [turn(0)], "neighbour")
    before = everything(tmp_path)
    directory = full_session(storage)
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    assert storage.delete(S1) == pytest.approx(size, abs=200)  # the lock names its new holder
    assert everything(tmp_path) == before


def test_the_last_session_of_a_project_takes_its_directory_along(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    full_session(storage)
    storage.delete(S1)
    assert everything(tmp_path) == {}
    stored(storage, [turn(0)])
    assert list(storage.read(S1)) == turn(0)


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious.txt").write_text("keep me")
    storage = disk(tmp_path / "sessions")
    directory = full_session(storage)
    (directory / "spill" / "linked-directory").symlink_to(outside)
    (directory / "spill" / "linked-file").symlink_to(outside / "precious.txt")
    shutil.rmtree(directory / "checkpoints")
    (directory / "checkpoints").symlink_to(outside)
    storage.delete(S1)
    assert everything(outside) == {"precious.txt": b"keep me"}
    assert everything(tmp_path / "sessions") == {}


def test_a_session_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    storage = disk(tmp_path / "sessions")
    directory = full_session(storage)
    directory.rename(tmp_path / "moved")
    directory.symlink_to(tmp_path / "moved")
    before = everything(tmp_path / "moved")
    with pytest.raises(StorageError, match="is a link"):
        storage.delete(S1)
    assert everything(tmp_path / "moved") == before


def test_a_directory_with_something_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    directory = full_session(storage)
    (directory / "my-notes.txt").write_text("mine")
    with pytest.raises(StorageError, match=r"my-notes\.txt"):
        storage.delete(S1)
    (directory / "my-notes.txt").unlink()
    storage.delete(S1)


def test_a_damaged_session_can_be_deleted(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    stored(storage, [turn(0)])
    Path(segment(storage)).write_bytes(b"not a segment at all")
    with pytest.raises(SessionCorrupt):
        storage.header(S1)
    storage.delete(S1)
    assert everything(tmp_path) == {}


def test_a_deletion_that_cannot_be_done_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = disk(tmp_path)
    full_session(storage)
    lines = list(storage.read(S1))

    def fail(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(StorageError, match=r"cannot remove \S*s1: Permission denied"):
            storage.delete(S1)
    assert list(storage.read(S1)) == lines


def test_a_deletion_that_was_interrupted_shows_no_half_session_and_is_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = disk(tmp_path)
    full_session(storage)

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", fail)
        with pytest.raises(StorageError):
            storage.delete(S1)
    with pytest.raises(SessionNotFound):
        storage.open(S1)
    assert list(storage.list()) == []
    (left,) = tmp_path.glob("*/.gone-*")
    os.utime(left, (0, 0))
    assert list(storage.list()) == []
    assert list(tmp_path.glob("*/.gone-*")) == []


def test_old_leftovers_are_cleaned_and_young_and_live_ones_are_not(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    stored(storage, [turn(0)])
    project = Path(storage.path(S1)).parent
    for name in (".new-1-old", ".gone-1-old", ".new-1-young", ".mine"):
        (project / name / "log").mkdir(parents=True)
        (project / name / "log" / "000000000000.jsonl.zst").write_bytes(b"half")
    live = storage.create(header("live"))
    live.append(notes(0, 1))
    Path(storage.path(SessionId("live"))).rename(project / ".new-2-live")
    for name in (".new-1-old", ".gone-1-old", ".mine", ".new-2-live"):
        os.utime(project / name, (0, 0))
    assert [one.id for one in storage.list()] == ["s1"]
    assert sorted(os.listdir(project)) == [".mine", ".new-1-young", ".new-2-live", "s1"]
    live.close()
    assert [one.id for one in storage.list()] == ["s1"]
    assert sorted(os.listdir(project)) == [".mine", ".new-1-young", "s1"]


def test_who_opens_a_session_while_it_goes_away_is_told(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    stored(storage, [turn(0)])
    writer = storage.open(S1)
    with pytest.raises(SessionBusy):
        storage.delete(S1)
    reader = storage.read(S1)
    writer.close()
    storage.delete(S1)
    with pytest.raises(SessionNotFound):
        list(reader)
