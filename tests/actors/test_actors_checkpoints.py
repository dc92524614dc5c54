"""Checkpoints of a live agent: when they are taken, what they are worth, and that nothing depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh_actors import harness as harness_module
from dsh_actors.actors.opening import fold_log, inspect_session, open_session
from dsh_actors.adapters.storage.memory import MemoryStorage, MemoryWriter
from dsh_actors.cli.session_verify import verify_session
from dsh_actors.config import load_config
from dsh_actors.core.chunks import TextDelta
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.repair import Closers
from dsh_actors.core.snapshot import dump, load
from dsh_actors.core.state import SessionState
from dsh_actors.errors import SessionCorrupt, StorageFull
from dsh_actors.harness import Harness
from dsh_actors.ports import Checkpoint
from dsh_actors.runtime.actor import live_actors
from dsh_actors.testing.machine import MachineDriver, call_chunks, text_chunks
from dsh_actors.testing.manual import ManualProvider


class Notes:
    """What the writers of a `NotingStorage` were asked."""

    def __init__(self) -> None:
        self.saved: list[int] = []
        self.replayed: list[int] = []
        self.is_full = False


class NotingWriter(MemoryWriter):
    notes: Notes

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.notes.saved.append(checkpoint.next_seq)
        if self.notes.is_full:
            raise StorageFull("no room")
        super().save_checkpoint(checkpoint)

    def replay(self, from_seq: int = 0) -> Iterator[Event]:
        self.notes.replayed.append(from_seq)
        return super().replay(from_seq)


class NotingStorage(MemoryStorage):
    def __init__(self) -> None:
        super().__init__("test", lambda: 0)
        self.notes = Notes()

    def _noting(self, writer: MemoryWriter) -> MemoryWriter:
        writer.__class__ = NotingWriter
        writer.notes = self.notes  # type: ignore[attr-defined]
        return writer

    def create(self, header: SessionHeader) -> MemoryWriter:
        return self._noting(super().create(header))

    def open(self, session_id: SessionId) -> MemoryWriter:
        return self._noting(super().open(session_id))


class Place:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **keys: int) -> None:
        self.storage = NotingStorage()
        self.notes = self.storage.notes
        monkeypatch.setattr(harness_module, "open_storage", lambda *_: self.storage)
        env = {f"DSH_SESSION_{name.upper()}": str(value) for name, value in keys.items()}
        config = load_config(env={"DSH_HOME": str(folder / "home"), **env}, cwd=str(folder))
        self.model = ManualProvider()
        self.harness = Harness.open(config, providers={"manual": self.model})
        self.options = AgentOptions(model="manual/m", cwd=str(folder))
        self.agent = self.harness.create(self.options)

    def turn(self) -> None:
        self.agent.followup("hello")
        self.model.next_stream().send(*text_chunks("hi"))
        assert self.agent.when_idle(10)

    def log(self) -> list[Event]:
        return list(self.storage.read(self.agent.id))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Place]:
    place = Place(tmp_path, monkeypatch, **getattr(request, "param", {}))
    yield place
    place.harness.close()
    assert live_actors() == []


def folded(header: SessionHeader, events: list[Event]) -> SessionState:
    state = SessionState(header)
    for event in events:
        state.apply(event)
    return state


@pytest.mark.parametrize("place", [{"checkpoint_events": 20}], indirect=True)
def test_a_turn_end_saves_one_when_enough_has_passed(place):
    ends = []
    for _ in range(4):
        place.turn()
        place.agent.record("run/note", {}, ignorable=True)
        ends.append(place.agent.status().next_seq)
    place.agent.dispose()
    log = place.log()
    taken = place.notes.saved
    assert len(taken) >= 2 and taken[-1] == len(log)
    previous = 0
    for below in taken[:-1]:
        assert log[below - 1].type == "turn/end" and below - previous >= 20
        previous = below


@pytest.mark.parametrize("place", [{"checkpoint_events": 4, "checkpoint_max_events": 9}], indirect=True)
def test_a_long_turn_is_saved_in_the_middle_and_resumes_from_there(place):
    place.agent.followup("hello")
    stream = place.model.next_stream()
    for _ in range(12):
        stream.send(TextDelta(0, "x"))
    place.agent.status()
    stream.send(*text_chunks("")[1:])
    assert place.agent.when_idle(10)
    place.agent.dispose()
    log, middle = place.log(), place.notes.saved[0]
    assert log[middle - 1].type != "turn/end"
    assert place.notes.saved[-1] == len(log)
    assert verify_session(place.storage, place.agent.id).faults == []


def test_a_disposed_session_opens_from_its_checkpoint_alone(place):
    place.turn()
    place.agent.dispose()
    log = place.log()
    assert place.notes.saved == [len(log)]
    again = place.harness.resume(place.agent.id, place.options)
    assert place.notes.replayed == [len(log)]
    again.followup("more")
    request = place.model.next_stream()
    assert [m.content[0].text for m in request.request.messages if m.role == "assistant"] == ["hi"]
    request.send(*text_chunks("ok"))
    assert again.when_idle(10)


def test_a_resumed_session_without_news_saves_nothing_again(place):
    place.turn()
    place.agent.dispose()
    place.harness.resume(place.agent.id, place.options).dispose()
    assert len(place.notes.saved) == 1


@pytest.mark.parametrize("place", [{"checkpoint_events": 1}], indirect=True)
def test_a_disk_without_room_for_checkpoints_does_not_stop_the_run(place):
    place.notes.is_full = True
    place.turn()
    place.turn()
    place.agent.dispose()
    assert len(place.notes.saved) >= 2 and place.storage.checkpoint(place.agent.id) is None
    assert [e.data["reason"]["kind"] for e in place.log() if e.type == "turn/end"] == ["completed"] * 2


@pytest.mark.parametrize("place", [{"checkpoint_events": 1}], indirect=True)
def test_a_store_that_crashes_while_it_saves_loses_nothing(place):
    for _ in range(3):
        place.agent.followup("hello")
        place.model.next_stream().send(*text_chunks("hi"))
        place.harness._at.store.tell(object())
        assert place.agent.when_idle(10)
    place.agent.dispose()
    log = place.log()
    assert [event.seq for event in log] == list(range(len(log)))
    assert place.storage.checkpoint(place.agent.id).next_seq == len(log)


@pytest.mark.parametrize("place", [{"checkpoint_events": 1}], indirect=True)
def test_an_agent_that_crashes_is_rebuilt_from_a_checkpoint_and_what_follows(place):
    place.turn()
    place.agent.followup("again")
    place.model.next_stream().send(*call_chunks(("nothing", "{}")))
    place.model.next_stream().send(TextDelta(0, "half"))
    place.agent._address.tell(object())
    assert place.agent.when_idle(10)
    place.turn()
    place.agent.dispose()
    log = place.log()
    kept = place.storage.checkpoint(place.agent.id)
    header = place.agent.header
    assert load(header, kept.state).fingerprint() == folded(header, log).fingerprint()
    ends = [e.data["reason"]["kind"] for e in log if e.type == "turn/end"]
    assert ends == ["completed", "interrupted", "completed"]


# --- opening, without actors ------------------------------------------------------------------


def stored(checkpoint_at: int | None, *, spoil: dict[str, object] | None = None) -> NotingStorage:
    """A session that broke in its second turn, with a checkpoint somewhere in its log."""
    driver = MachineDriver()
    driver.deliver("one")
    driver.reply(*text_chunks("answer"))
    driver.deliver("two")
    driver.reply(*call_chunks(("read", "{}"), ("write", "{}")))
    storage = NotingStorage()
    writer = storage.create(driver.header)
    writer.append(driver.log)
    if checkpoint_at is not None:
        state, closers = SessionState(driver.header), Closers()
        for event in driver.log[:checkpoint_at]:
            state.apply(event)
            closers.observe(event)
        writer.save_checkpoint(Checkpoint(checkpoint_at, dump(state, closers) | (spoil or {})))
    writer.close()
    return storage


def test_wherever_the_checkpoint_is_the_session_opens_as_without_one():
    plain = stored(None)
    header = plain.header(SessionId("s"))
    whole = fold_log(header, lambda seq: plain.read(SessionId("s"), seq))
    assert [event.type for event in whole.closers] == ["tool/result", "tool/result", "step/end", "turn/end"]
    for at in range(1, whole.state.next_seq - len(whole.closers) + 1):
        storage = stored(at)
        writer, opened = open_session(storage, SessionId("s"))
        assert storage.notes.replayed == [at]
        assert opened.state.fingerprint() == whole.state.fingerprint()
        assert (opened.closers, opened.checkpoint_below) == (whole.closers, at)
        writer.close()


@pytest.mark.parametrize(
    "spoil",
    [{"format": 99}, {"surface": "none"}, {"next_seq": 2}, {"closers": None}],
    ids=["newer", "malformed", "of another place", "without closers"],
)
def test_a_checkpoint_that_cannot_be_used_only_costs_time(spoil):
    storage = stored(6, spoil=spoil)
    writer, opened = open_session(storage, SessionId("s"))
    assert storage.notes.replayed[-1] == 0 and opened.checkpoint_below == 0
    assert opened.state.last_turn == 2
    writer.close()


def test_a_checkpoint_that_does_not_fit_what_follows_only_costs_time():
    # Its inbox lacks the message that the next event claims.
    storage = stored(1, spoil={"inbox": {"next-turn": [], "next-step": []}})
    writer, opened = open_session(storage, SessionId("s"))
    assert opened.checkpoint_below == 0 and storage.notes.replayed == [1, 0]
    writer.close()


def test_what_was_read_is_remembered_until_the_session_changes():
    storage = stored(None)
    ready, first = inspect_session(storage, SessionId("s"))
    again, second = inspect_session(storage, SessionId("s"), ready)
    assert again is ready and second.state is not first.state
    assert second.state.fingerprint() == first.state.fingerprint() and second.closers == first.closers
    writer, opened = open_session(storage, SessionId("s"), ready)
    assert opened.state.fingerprint() == first.state.fingerprint()
    writer.append(opened.closers)
    writer.close()
    later, third = inspect_session(storage, SessionId("s"), ready)
    assert later is not ready and third.closers == ()


def test_a_copy_that_was_cut_short_is_refused():
    storage = NotingStorage()
    header = SessionHeader(SessionId("s"), 0, "/", parent_session=SessionId("p"), seed_length=9)
    writer = storage.create(header)
    writer.append([Event("run/note", 0, 1, {}, ignorable=True)])
    writer.close()
    with pytest.raises(SessionCorrupt, match="unfinished copy of p"):
        open_session(storage, SessionId("s"))
