"""A fork that is being copied is seen by nobody, and by everybody, whole and held, once it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsh_actors.actors import opening
from dsh_actors.actors import protocol as p
from dsh_actors.actors.opening import Source, copy_session
from dsh_actors.adapters.storage.sqlite import SqliteStorage
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionBusy, SessionNotFound
from tests.session_logs import turns

PARENT, CHILD = SessionId("parent"), SessionId("child")
Disk = SegmentStorage | SqliteStorage


@pytest.fixture(params=["segments", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """With a parent in it that takes many batches to copy."""
    monkeypatch.setattr(opening, "COPY_BATCH", 5)
    makers: dict[str, Callable[[], Disk]] = {
        "segments": lambda: SegmentStorage(str(tmp_path), "test", lambda: 1, segment_events=12),
        "sqlite": lambda: SqliteStorage(str(tmp_path / "sessions.sqlite3"), "test", lambda: 1),
    }
    storage = makers[request.param]()
    writer = storage.create(SessionHeader(PARENT, 1, "/"))
    writer.append(turns(3))
    writer.close()
    return storage


class Watched(Source):
    """A source that calls ``look`` with the number of each event that is read."""

    look: Callable[[int], None]

    def read(self) -> Iterator[Event]:
        for event in super().read():
            self.look(event.seq)
            yield event


def copied(storage: Disk, look: Callable[[int], None]) -> p.Opened:
    source = Watched(storage, PARENT)
    object.__setattr__(source, "look", look)
    ask = p.ForkSession(PARENT, CHILD, None, None, 2, lambda _failure: None)
    writer, opened = copy_session(source, storage, ask)
    with pytest.raises(SessionBusy):
        storage.open(CHILD)
    writer.close()
    return opened


def test_a_fork_is_not_there_before_it_is_whole(storage: Disk) -> None:
    def look(_seq: int) -> None:
        with pytest.raises(SessionNotFound):
            storage.header(CHILD)
        assert [listing.id for listing in storage.list()] == [PARENT]

    opened = copied(storage, look)
    assert opened.header == storage.header(CHILD)
    *copy, end = storage.read(CHILD)
    assert copy == turns(3) and end.type == "session/end-seed"


def test_a_fork_that_fails_at_its_end_leaves_nothing(storage: Disk, tmp_path: Path) -> None:
    seen: list[int] = []

    def look(seq: int) -> None:
        seen.append(seq)
        if seen.count(len(turns(3)) - 1) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copied(storage, look)
    assert [listing.id for listing in storage.list()] == [PARENT]
    assert list(tmp_path.rglob(".new-*")) == []
