"""One suite for every session storage: what a writer stores is what everybody reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.memory import MemoryStorage
from dsh_actors.adapters.storage.sqlite import SqliteStorage
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import (
    EventRefused,
    SessionBusy,
    SessionError,
    SessionExists,
    SessionNotFound,
    SessionUnsupported,
)
from dsh_actors.ports import Checkpoint
from tests.adapters.storage.samples import OWNER, Ticking, header, notes, turn

Storage = SegmentStorage | SqliteStorage | MemoryStorage
S1 = SessionId("s1")


@pytest.fixture(params=["segments", "small segments", "sqlite", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    makers: dict[str, Callable[[], Storage]] = {
        "segments": lambda: SegmentStorage(str(tmp_path / "home" / "sessions"), OWNER, Ticking()),
        "small segments": lambda: SegmentStorage(str(tmp_path), OWNER, Ticking(), segment_events=2),
        "sqlite": lambda: SqliteStorage(str(tmp_path / "home" / "sessions.sqlite3"), OWNER, Ticking()),
        "memory": lambda: MemoryStorage(OWNER, Ticking()),
    }
    return makers[request.param]()


def test_appended_events_are_read_back_in_order_by_readers_and_by_the_next_writer(storage: Storage) -> None:
    first, second = turn(0), turn(9, 2)
    writer = storage.create(header())
    assert (writer.header, writer.next_seq, list(writer.replay())) == (header(), 0, [])
    writer.append(first)
    assert list(storage.read(S1)) == first
    writer.append(second[:3])
    writer.append(second[3:])
    assert writer.next_seq == 18
    writer.close()

    assert list(storage.read(S1)) == [*first, *second]
    writer = storage.open(S1)
    assert writer.header == storage.header(S1) == header()
    assert list(writer.replay()) == [*first, *second]
    assert writer.next_seq == 18
    writer.append(turn(18, 3))
    writer.close()
    assert list(storage.read(S1)) == [*first, *second, *turn(18, 3)]


def test_reading_from_a_number_starts_exactly_there_even_inside_a_packed_run(storage: Storage) -> None:
    storage.create(header()).append(turn(0))
    for seq in range(11):
        assert list(storage.read(S1, seq)) == turn(0)[seq:]


def test_a_writer_can_append_without_replaying_first(storage: Storage) -> None:
    writer = storage.create(header())
    writer.append(turn(0))
    writer.close()
    writer = storage.open(S1)
    assert writer.next_seq == 9
    writer.append(turn(9, 2))
    assert [event.seq for event in storage.read(S1)] == list(range(18))


def test_a_header_with_every_member_survives(storage: Storage) -> None:
    full = SessionHeader(S1, 5, "/tmp", SessionId("parent"), 3, "subagent", 2, "reviewer")
    storage.create(full).append(turn(0))
    assert storage.header(S1) == full


def test_a_session_without_events_leaves_nothing_and_frees_its_id(storage: Storage) -> None:
    writer = storage.create(header())
    with pytest.raises(SessionNotFound):
        storage.open(S1)
    assert list(storage.list()) == []
    with pytest.raises(SessionExists):
        storage.create(header())
    writer.append([])
    writer.close()
    assert list(storage.list()) == []
    storage.create(header()).close()


def test_a_stored_id_cannot_be_created_again_in_any_directory(storage: Storage) -> None:
    writer = storage.create(header())
    writer.append(turn(0))
    writer.close()
    for cwd in ("/srv/shop", "/elsewhere", None):
        with pytest.raises(SessionExists):
            storage.create(header(cwd=cwd))


@pytest.mark.parametrize("session_id", ["s2", "", "..", "../s1", "x" * 300])
def test_an_unknown_id_is_not_found(storage: Storage, session_id: str) -> None:
    storage.create(header()).append(turn(0))
    unknown = SessionId(session_id)
    for ask in (storage.open, storage.header, storage.read, storage.path):
        with pytest.raises(SessionNotFound):
            ask(unknown)


def test_a_second_writer_is_told_who_holds_the_session(storage: Storage) -> None:
    writer = storage.create(header())
    writer.append(turn(0))
    with pytest.raises(SessionBusy, match="testhost"):
        storage.open(S1)
    writer.close()
    writer.close()
    storage.open(S1).close()


def test_a_batch_with_the_wrong_number_or_a_gap_is_refused_and_nothing_is_stored(storage: Storage) -> None:
    writer = storage.create(header())
    for wrong in (turn(1), [turn(0)[0], turn(0)[2]], [turn(0)[0], turn(0)[0]]):
        with pytest.raises(EventRefused):
            writer.append(wrong)
    writer.append(turn(0))
    with pytest.raises(EventRefused):
        writer.append(turn(0))
    assert list(storage.read(S1)) == turn(0)


def test_data_without_a_json_form_is_refused_and_nothing_is_stored(storage: Storage) -> None:
    writer = storage.create(header())
    writer.append(turn(0))
    with pytest.raises(EventRefused):
        writer.append([*notes(9, 1), Event("run/note", 10, 0, {"x": {1}}, ignorable=True)])
    writer.append(notes(9, 1))
    assert list(storage.read(S1)) == [*turn(0), *notes(9, 1)]


def test_what_was_appended_is_not_changed_by_its_maker_afterwards(storage: Storage) -> None:
    events = notes(0, 1, "before")
    storage.create(header()).append(events)
    events[0].data["text"] = "after"
    assert list(storage.read(S1)) == notes(0, 1, "before")


def test_a_closed_writer_appends_nothing(storage: Storage) -> None:
    writer = storage.create(header())
    writer.append(turn(0))
    writer.close()
    with pytest.raises(SessionError, match="closed"):
        writer.append(turn(9, 2))
    assert list(storage.read(S1)) == turn(0)


def test_an_unknown_required_event_stops_the_reader_and_an_ignorable_one_does_not(storage: Storage) -> None:
    writer = storage.create(header())
    writer.append([*turn(0), Event("future/fact", 9, 0, {}, ignorable=True)])
    assert len(list(storage.read(S1))) == 10
    writer.append([Event("future/fact", 10, 0, {})])
    writer.close()
    with pytest.raises(SessionUnsupported, match="future/fact"):
        list(storage.read(S1))
    with pytest.raises(SessionUnsupported, match="future/fact"):
        list(storage.open(S1).replay())
    assert [listing.status for listing in storage.list()] == ["unsupported"]


def test_the_list_is_newest_first_and_tells_what_each_session_is(storage: Storage) -> None:
    finished = storage.create(header("done"))
    finished.append(turn(0, prompt="Fix\n the   tests " + "x" * 100))
    finished.append(turn(9, 2, prompt="and now this"))
    cut = storage.create(header("cut", cwd="/srv/other"))
    cut.append(turn(0)[:-1])
    titled = storage.create(header("titled", cwd=None))
    titled.append([*turn(0), Event("session/title", 9, 0, {"title": "A title", "messageSeqs": []})])
    for writer in (finished, titled, cut):
        writer.close()
    live = storage.open(SessionId("done"))
    assert list(live.replay())
    live.append(turn(18, 3))

    listings = list(storage.list())
    assert [(one.id, one.status, one.turns) for one in listings] == [
        ("done", "live", 3),
        ("titled", "ok", 1),
        ("cut", "interrupted", 1),
    ]
    assert [one.cwd for one in listings] == ["/srv/shop", None, "/srv/other"]
    assert listings[0].title is not None
    assert listings[0].title.startswith("Fix the tests xxx") and len(listings[0].title) == 80
    assert listings[1].title == "A title"
    assert listings[0].created == header().created_at < listings[1].updated < listings[0].updated
    live.close()
    assert [one.id for one in storage.list("/srv/other")] == ["cut"]
    assert next(iter(storage.list())).status == "ok"


def test_the_newest_checkpoint_is_what_a_session_is_opened_from(storage: Storage) -> None:
    writer = storage.create(header())
    assert writer.checkpoint() is None
    writer.append(turn(0))
    assert storage.checkpoint(S1) is None
    writer.save_checkpoint(Checkpoint(9, {"surface": ["wörd", 1.5, None]}))
    for number in (2, 3, 4):
        writer.append(turn(number * 9 - 9, number))
        if number < 4:
            writer.save_checkpoint(Checkpoint(number * 9, {"turns": number}))
    writer.close()

    assert storage.checkpoint(S1) == Checkpoint(27, {"turns": 3})
    writer = storage.open(S1)
    assert writer.checkpoint() == Checkpoint(27, {"turns": 3})
    assert list(writer.replay(27)) == turn(27, 4)
    assert writer.next_seq == 36
    writer.append(turn(36, 5))
    writer.save_checkpoint(Checkpoint(45, {"turns": 5}))
    writer.close()
    assert storage.checkpoint(S1) == Checkpoint(45, {"turns": 5})
    writer = storage.open(S1)
    assert writer.checkpoint() == Checkpoint(45, {"turns": 5})
    assert list(writer.replay(45)) == []
    assert writer.next_seq == 45
    assert [event.seq for event in storage.read(S1)] == list(range(45))


def test_a_checkpoint_may_be_ignored_and_everything_replayed(storage: Storage) -> None:
    writer = storage.create(header())
    writer.append(turn(0))
    writer.save_checkpoint(Checkpoint(9, {}))
    writer.close()
    writer = storage.open(S1)
    assert writer.checkpoint() is not None
    assert list(writer.replay(0)) == turn(0)
    writer.append(turn(9, 2))
    assert [event.seq for event in storage.read(S1)] == list(range(18))


def test_the_revision_changes_with_every_append_and_with_nothing_else(storage: Storage) -> None:
    writer = storage.create(header())
    revisions = []
    for number in range(4):
        writer.append(turn(number * 9, number + 1))
        revisions.append(storage.revision(S1))
    assert len(set(revisions)) == 4
    writer.save_checkpoint(Checkpoint(9, {}))
    writer.close()
    storage.open(S1).close()
    list(storage.read(S1))
    assert storage.revision(S1) == revisions[-1]
    with pytest.raises(SessionNotFound):
        storage.revision(SessionId("s2"))


def test_a_deleted_session_is_gone_and_its_id_is_free(storage: Storage) -> None:
    writer = storage.create(header())
    writer.append(turn(0))
    writer.save_checkpoint(Checkpoint(9, {}))
    with pytest.raises(SessionBusy, match="testhost"):
        storage.delete(S1)
    assert list(storage.read(S1)) == turn(0)
    writer.close()
    assert storage.delete(S1) > 0
    assert list(storage.list()) == []
    for ask in (storage.open, storage.header, storage.read, storage.delete, storage.checkpoint):
        with pytest.raises(SessionNotFound):
            ask(S1)
    writer = storage.create(header())
    writer.append(notes(0, 1))
    assert list(storage.read(S1)) == notes(0, 1)
    assert writer.checkpoint() is None
