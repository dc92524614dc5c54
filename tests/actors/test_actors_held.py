"""The native work of one held session: its order, and that nobody waits for what need not be waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dsh_actors.actors import held as module
from dsh_actors.actors.held import HeldSession, WindowOver, WorkEnded
from dsh_actors.adapters.storage.memory import MemoryStorage
from dsh_actors.core.chunks import Failure
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import StorageFull
from dsh_actors.ports import Checkpoint
from tests.actors.kit import notes


class Writer:
    """Notes what it is told to do; ``full`` makes it refuse."""

    def __init__(self) -> None:
        self.header = SessionHeader(SessionId("s"), 0, "/")
        self.next_seq = 0
        self.did: list[Any] = []
        self.full = False
        self.needs_rewrite = False

    def append(self, batch: list[Event]) -> None:
        self._refuse()
        self.did.append([event.seq for event in batch])
        self.next_seq = batch[-1].seq + 1

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._refuse()
        assert checkpoint.next_seq == self.next_seq
        self.did.append(f"checkpoint {checkpoint.next_seq}")

    def compact(self) -> None:
        self.needs_rewrite = False
        self._refuse()
        self.did.append("rewrite")

    def _refuse(self) -> None:
        if self.full:
            raise StorageFull("no room in \udcff")


class Bench:
    """A held session whose native work ends when the test says so, oldest first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.native: list[tuple[Callable[[], Any], Callable[..., None]]] = []
        monkeypatch.setattr(module, "start_native", lambda work, done: self.native.append((work, done)))
        self.writer = Writer()
        self.broken: list[Failure] = []
        self.told: list[Any] = []
        self.held = HeldSession(
            self.writer,  # type: ignore[arg-type]  # a double of what is used
            MemoryStorage("test", lambda: 0),
            self.broken.append,
            self.told.append,
            3_600.0,
        )
        self.settled: list[Failure | None] = []

    def step(self) -> None:
        """The oldest piece of native work runs to its end, and the session hears of it."""
        work, done = self.native.pop(0)
        error: BaseException | None = None
        try:
            work()
        except StorageFull as refused:
            error = refused
        done(None, error)
        ended = self.told.pop()
        assert isinstance(ended, WorkEnded)
        self.held.work_ended(ended)

    def run(self) -> list[Any]:
        while self.native:
            self.step()
        return self.writer.did

    def flush(self) -> None:
        self.held.when_durable(self.settled.append)

    def keep(self, below: int) -> None:
        self.held.keep(Checkpoint(below, {}))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    bench = Bench(monkeypatch)
    yield bench
    bench.held.stop_timer()


def test_a_checkpoint_is_saved_after_the_events_below_it(bench):
    bench.held.append(notes(0, 3))
    bench.keep(3)
    assert bench.run() == [[0, 1, 2], "checkpoint 3"]


def test_a_batch_ends_where_a_checkpoint_was_taken_during_a_write(bench):
    bench.held.append(notes(0, 2))
    bench.flush()
    bench.held.append(notes(2, 4))
    bench.keep(4)
    bench.held.append(notes(4, 6))
    bench.flush()
    assert bench.run() == [[0, 1], [2, 3], "checkpoint 4", [4, 5]]
    assert bench.settled == [None, None]


def test_the_newest_of_two_waiting_checkpoints_wins(bench):
    bench.held.append(notes(0, 2))
    bench.flush()
    bench.held.append(notes(2, 3))
    bench.keep(3)
    bench.held.append(notes(3, 4))
    bench.keep(4)
    assert bench.run() == [[0, 1], [2, 3], "checkpoint 4"]


def test_a_flush_does_not_wait_for_a_checkpoint_of_what_is_durable_already(bench):
    bench.held.append(notes(0, 2))
    bench.keep(2)
    bench.step()
    assert len(bench.native) == 1 and bench.writer.did == [[0, 1]]
    bench.flush()
    assert bench.settled == [None]


def test_the_same_state_is_saved_once(bench):
    bench.held.append(notes(0, 2))
    bench.keep(2)
    bench.run()
    bench.keep(2)
    assert bench.run() == [[0, 1], "checkpoint 2"]


def test_a_session_without_events_has_no_checkpoint(bench):
    bench.keep(0)
    assert bench.run() == []


def test_a_checkpoint_that_cannot_be_saved_breaks_nothing(bench):
    bench.held.append(notes(0, 2))
    bench.keep(2)
    bench.step()
    bench.writer.full = True
    bench.step()
    bench.writer.full = False
    bench.held.append(notes(2, 3))
    bench.flush()
    assert bench.run() == [[0, 1], [2]]
    assert bench.settled == [None] and bench.broken == []


def test_after_a_failed_write_the_events_are_kept_in_order_and_the_checkpoint_is_dropped(bench):
    bench.writer.full = True
    bench.held.append(notes(0, 2))
    bench.keep(2)
    bench.flush()
    bench.run()
    assert [failure.code for failure in bench.settled] == ["STORAGE_FULL"] and len(bench.broken) == 1
    # The name of a directory need not be UTF-8, and the failure goes into the log.
    assert bench.broken[0].message == "no room in \N{REPLACEMENT CHARACTER}"
    bench.writer.full = False
    bench.held.append(notes(2, 3))
    bench.flush()
    assert bench.run() == [[0, 1, 2]]
    assert bench.settled[-1] is None


def test_sealed_segments_are_rewritten_beside_the_writes(bench):
    bench.writer.needs_rewrite = True
    bench.held.append(notes(0, 2))
    bench.flush()
    bench.step()
    bench.held.append(notes(2, 3))
    bench.flush()
    assert len(bench.native) == 2
    bench.run()
    assert bench.writer.did == [[0, 1], "rewrite", [2]]


def test_a_rewrite_that_fails_breaks_nothing(bench):
    bench.writer.needs_rewrite = True
    bench.held.append(notes(0, 2))
    bench.flush()
    bench.step()
    bench.writer.full = True
    bench.step()
    assert bench.broken == [] and bench.settled == [None]


def test_a_session_is_given_up_after_its_checkpoint_and_its_rewrite(bench):
    free: list[str] = []
    bench.writer.needs_rewrite = True
    bench.held.append(notes(0, 2))
    bench.flush()
    bench.step()
    bench.keep(2)
    bench.held.when_free(lambda: free.append("free"))
    while bench.native:
        assert free == []
        bench.step()
    assert free == ["free"]
    assert sorted(map(str, bench.writer.did)) == ["[0, 1]", "checkpoint 2", "rewrite"]


def test_a_discarded_session_writes_no_more(bench):
    free: list[str] = []
    bench.held.append(notes(0, 2))
    bench.keep(2)
    bench.held.drop_pending()
    bench.held.when_free(lambda: free.append("free"))
    bench.run()
    assert free == ["free"]


def test_a_window_that_ends_after_a_flush_does_not_stop_the_next_one(bench):
    bench.held.append(notes(0, 1))
    bench.flush()
    bench.run()
    bench.held.window_over()
    bench.held.append(notes(1, 2))
    assert bench.native == []
    bench.held.window_over()
    assert bench.run() == [[0], [1]]


def test_the_window_tells_the_store(monkeypatch):
    bench = Bench(monkeypatch)
    fired: list[Callable[[], None]] = []

    def note(_seconds: float, callback: Callable[[], None]) -> object:
        fired.append(callback)
        return object()

    monkeypatch.setattr(module, "after", note)
    bench.held.append(notes(0, 1))
    bench.held.append(notes(1, 2))
    assert len(fired) == 1
    fired[0]()
    assert bench.told == [WindowOver(SessionId("s"))]
