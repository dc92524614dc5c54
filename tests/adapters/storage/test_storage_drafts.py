"""Copies of sessions appear whole, or not at all, in every storage; what is left of others is tidied up."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.memory import MemoryStorage
from dsh_actors.adapters.storage.sqlite import SqliteStorage
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionBusy, SessionExists, SessionNotFound, StorageError
from tests.adapters.storage.samples import OWNER, Ticking, header, notes, turn

Disk = SegmentStorage | SqliteStorage
Storage = Disk | MemoryStorage
S1 = SessionId("s1")
LONG_AGO = (1_000_000_000, 1_000_000_000)


def segments(root: Path) -> SegmentStorage:
    return SegmentStorage(str(root / "sessions"), OWNER, Ticking(), segment_events=10)


def sqlite(root: Path) -> SqliteStorage:
    return SqliteStorage(str(root / "sessions.sqlite3"), OWNER, Ticking())


@pytest.fixture(params=[segments, sqlite], ids=["segments", "sqlite"])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Disk]:
    """What opens the same sessions as another process would."""
    return lambda: request.param(tmp_path)


@pytest.fixture(params=["segments", "sqlite", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    makers: dict[str, Callable[[], Storage]] = {
        "segments": lambda: segments(tmp_path),
        "sqlite": lambda: sqlite(tmp_path),
        "memory": lambda: MemoryStorage(OWNER, Ticking()),
    }
    return makers[request.param]()


def hidden(root: Path) -> list[Path]:
    return list(root.rglob(".new-*"))


def rows(root: Path, table: str) -> int:
    database = sqlite3.connect(root / "sessions.sqlite3")
    count: int = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    database.close()
    return count


def test_a_published_copy_has_everything_and_its_writer_goes_on(storage: Storage, tmp_path: Path) -> None:
    draft = storage.draft(header())
    for number in range(5):
        draft.append(turn(number * 9, number + 1))
    assert draft.next_seq == 45
    writer = draft.publish()
    draft.discard()
    assert (writer.header, writer.next_seq) == (header(), 45)
    with pytest.raises(SessionBusy):
        storage.open(S1)
    writer.append(turn(45, 6))
    writer.close()
    writer = storage.open(S1)
    assert [event.seq for event in writer.replay()] == list(range(54))
    writer.append(turn(54, 7))
    writer.close()
    assert hidden(tmp_path) == []


def test_a_discarded_copy_leaves_nothing_and_its_id_is_free(storage: Storage, tmp_path: Path) -> None:
    draft = storage.draft(header())
    with pytest.raises(SessionExists):
        storage.create(header())
    for number in range(5):
        draft.append(turn(number * 9, number + 1))
    draft.discard()
    draft.discard()
    assert list(storage.list()) == [] and hidden(tmp_path) == []
    if isinstance(storage, SqliteStorage):
        assert rows(tmp_path, "batches") == 0
    storage.create(header()).append(turn(0))
    assert len(list(storage.read(S1))) == 9


def test_a_copy_without_events_appears_with_the_first(storage: Storage) -> None:
    writer = storage.draft(header()).publish()
    with pytest.raises(SessionNotFound):
        storage.header(S1)
    writer.append(turn(0))
    writer.close()
    assert list(storage.read(S1)) == turn(0)


def test_nobody_sees_a_part_of_a_copy(on_disk: Callable[[], Disk]) -> None:
    draft = on_disk().draft(header())
    draft.append(turn(0))
    draft.append(turn(9, 2))
    other = on_disk()
    assert list(other.list()) == []
    with pytest.raises(SessionNotFound):
        other.header(S1)
    draft.publish().close()
    assert len(list(other.read(S1))) == 18
    other.delete(S1)
    assert list(other.list()) == []


def test_who_is_second_with_an_id_leaves_nothing(on_disk: Callable[[], Disk], tmp_path: Path) -> None:
    first, second = on_disk().draft(header()), on_disk().draft(header())
    first.append(notes(0, 12))
    second.append(notes(0, 12))
    second.append(notes(12, 12))
    writer = first.publish()
    with pytest.raises(SessionExists):
        second.publish()
    writer.close()
    assert hidden(tmp_path) == []
    storage = on_disk()
    assert [listing.id for listing in storage.list()] == ["s1"]
    assert len(list(storage.read(S1))) == 12
    if isinstance(storage, SqliteStorage):
        assert rows(tmp_path, "batches") == 1


def abandon(make: Callable[[], None]) -> None:
    """Have a child process make something and be killed."""
    child = os.fork()
    if child == 0:
        try:
            make()
        finally:
            os.kill(os.getpid(), 9)
    assert os.waitpid(child, 0)[1] == 9


def test_what_a_killed_copy_left_is_removed_when_it_is_old(
    on_disk: Callable[[], Disk], tmp_path: Path
) -> None:
    def begin() -> None:
        draft = on_disk().draft(header())
        draft.append(notes(0, 12))
        draft.append(notes(12, 12))

    on_disk().create(header("other")).append(turn(0))
    for _ in range(4):
        abandon(begin)
    live = on_disk().draft(header("live"))
    live.append(notes(0, 12))
    storage = on_disk()
    assert len(hidden(tmp_path)) == 5
    for place in hidden(tmp_path):
        os.utime(place, LONG_AGO)
    assert [listing.id for listing in storage.list()] == ["other"]
    assert len(hidden(tmp_path)) == 1, "the one whose process lives"
    if isinstance(storage, SqliteStorage):
        assert rows(tmp_path, "batches") == 2
    live.publish().close()
    assert len(list(storage.list())) == 2


def test_the_room_of_a_removed_copy_goes_back_to_the_file_system(tmp_path: Path) -> None:
    storage, place = sqlite(tmp_path), tmp_path / "sessions.sqlite3"
    storage.create(header("other")).append(turn(0))
    for remove in ("delete", "discard"):
        draft = storage.draft(header())
        for number in range(4):
            draft.append(notes(number * 5, 5, os.urandom(30_000).hex()))
        if remove == "delete":
            draft.publish().close()
            storage.delete(S1)
        else:
            draft.discard()
        database = sqlite3.connect(place)
        assert database.execute("PRAGMA freelist_count").fetchone() == (0,), remove
        database.close()


def test_lock_files_without_a_session_are_removed_when_they_are_old(tmp_path: Path) -> None:
    storage, locks = sqlite(tmp_path), tmp_path / "sessions.locks"
    storage.create(header()).append(turn(0))
    for name in ("s1", "never-stored", "young"):
        (locks / name).touch()
        if name != "young":
            os.utime(locks / name, LONG_AGO)
    assert len(list(storage.list())) == 1
    assert sorted(path.name for path in locks.iterdir()) == ["s1", "young"]


def test_locks_are_looked_at_without_a_database(tmp_path: Path) -> None:
    (tmp_path / "sessions.locks").mkdir()
    (tmp_path / "sessions.locks" / ".new-7").touch()
    os.utime(tmp_path / "sessions.locks" / ".new-7", LONG_AGO)
    assert list(sqlite(tmp_path).list()) == []
    assert not (tmp_path / "sessions.sqlite3").exists()


def test_a_draft_is_used_once(on_disk: Callable[[], Disk]) -> None:
    draft = on_disk().draft(header())
    draft.append(turn(0))
    draft.discard()
    for use in (lambda: draft.append(turn(9, 2)), draft.publish):
        with pytest.raises(Exception, match="the draft of session 's1' is closed"):
            use()


def test_a_copy_that_cannot_be_begun_leaves_nothing(
    on_disk: Callable[[], Disk], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = on_disk()
    storage.create(header("other")).append(turn(0))
    draft = storage.draft(header())

    def refuse(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(5, "no")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(StorageError):
        draft.append(turn(0))
    monkeypatch.undo()
    draft.append(turn(0))
    draft.publish().close()
    assert len(list(storage.list())) == 2
