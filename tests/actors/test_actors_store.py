"""The session store with a storage that is slow or refuses: what is durable when, and who hears of it."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from gevent.event import Event as Signal
from gevent.monkey import get_original

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.actors.lifecycle import Lifecycle
from dsh_actors.actors.session_store import SessionStoreActor
from dsh_actors.actors.store_books import StoreBooks
from dsh_actors.adapters.storage.memory import MemoryStorage, MemoryWriter
from dsh_actors.core import turn_io
from dsh_actors.core.chunks import Failure
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId, Ticket
from dsh_actors.core.options import AgentOptions
from dsh_actors.errors import ActorGone, SessionBusy, SessionNotFound, StorageFull
from dsh_actors.runtime.actor import live_actors, start_actor
from dsh_actors.runtime.tasks import TaskKilled, live_tasks, start_task
from tests.actors.kit import NativeGate, notes, until

ONE = SessionId("one")


class Storage(MemoryStorage):
    """In memory. ``full`` refuses writes; while ``gate`` is closed, creating and writing waits."""

    def __init__(self) -> None:
        super().__init__("test", lambda: 1)
        self.full = False
        self.gate = NativeGate()
        self.entered: queue.SimpleQueue[str] = get_original("queue", "SimpleQueue")()
        self.batches: list[list[int]] = []
        self.closes = 0
        self.gates_reads = False

    def pass_gate(self, what: str) -> None:
        self.entered.put(what)
        assert self.gate.wait(10)

    def create(self, header: SessionHeader) -> Writer:
        self.pass_gate("create")
        return Writer(self, super().create(header))

    def open(self, session_id: SessionId) -> Writer:
        return Writer(self, super().open(session_id))

    def read(self, session_id: SessionId, from_seq: int = 0) -> Iterator[Event]:
        if self.gates_reads:
            self.pass_gate("read")
        return super().read(session_id, from_seq)


class Writer:
    def __init__(self, storage: Storage, inner: MemoryWriter) -> None:
        self._storage = storage
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def close(self) -> None:
        self._storage.closes += 1
        self._inner.close()

    def append(self, events: Sequence[Event]) -> None:
        self._storage.pass_gate("append")
        if self._storage.full:
            raise StorageFull("no room")
        self._inner.append(events)
        self._storage.batches.append([event.seq for event in events])


class Shop:
    """A started store, and the means to replace it."""

    def __init__(self, window_s: float) -> None:
        self.storage = Storage()
        self.books = StoreBooks()
        self.home = Address("session_store")
        self.window_s = window_s
        self.broken: queue.SimpleQueue[Failure] = queue.SimpleQueue()
        self.generation = -1
        self.start()

    def start(self, unread: tuple[Any, ...] = ()) -> None:
        self.generation += 1
        store = SessionStoreActor(
            name="session_store",
            parent=None,
            generation=self.generation,
            home=self.home,
            storage=self.storage,
            ephemeral=self.storage,
            books=self.books,
            window_s=self.window_s,
        )
        self.actor = store
        self.home.move_to(start_actor(store), unread)

    def crash(self) -> None:
        ref = self.home.ref
        ref.tell(object())
        until(lambda: not ref.is_alive)

    def ask(self, message: Any) -> Any:
        return self.home.ask(message, timeout=10)

    def reserve(self, session_id: SessionId = ONE) -> p.Opened:
        return self.ask(p.ReserveSession(SessionHeader(session_id, 1, "/"), self.broken.put))

    def append(self, *events: Event) -> None:
        self.home.tell(p.AppendEvents(ONE, events))

    def flush(self, ticket: int = 1) -> queue.SimpleQueue:
        answers: queue.SimpleQueue = queue.SimpleQueue()
        self.home.tell(p.FlushSession(ONE, Ticket(ticket), answers.put))
        return answers

    def stored(self) -> list[int]:
        return [event.seq for event in self.storage.read(ONE)]


@pytest.fixture
def shop() -> Iterator[Shop]:
    shop = Shop(window_s=3_600.0)
    yield shop
    shop.storage.gate.set()
    shop.storage.full = False
    if not shop.home.ref.is_alive:
        shop.start()
    for session_id in tuple(shop.books.held):
        shop.ask(p.CloseSession(session_id, discard=True))
    shop.home.ref.stop(timeout=10)
    shop.books.release_all()
    assert live_actors() == [] and live_tasks() == []


TURN = Event("turn/start", 0, 1, {"turn": 1})


def entered(shop: Shop, what: str) -> None:
    """Wait until native work has come to the closed gate."""
    until(lambda: not shop.storage.entered.empty())
    assert shop.storage.entered.get() == what


def aside(shop: Shop, message: Any) -> queue.SimpleQueue:
    ends: queue.SimpleQueue = queue.SimpleQueue()
    start_task(lambda _token: shop.ask(message), ends.put, name="aside")
    return ends


# --- writing ----------------------------------------------------------------------------------


def test_a_flush_is_answered_once_all_before_it_is_durable(shop):
    shop.reserve()
    shop.storage.entered.get()
    shop.storage.gate.clear()
    shop.append(*notes(0, 1))
    first = shop.flush(1)
    entered(shop, "append")
    shop.append(*notes(1, 2))
    second = shop.flush(2)
    shop.ask(p.ReleaseSession(SessionId("other")))  # the mailbox has been read up to here
    assert first.empty() and second.empty()
    shop.storage.gate.set()
    assert first.get(timeout=10) == turn_io.Flushed(Ticket(1), None)
    assert second.get(timeout=10) == turn_io.Flushed(Ticket(2), None)
    assert shop.storage.batches == [[0], [1]]


def test_events_are_written_without_a_flush_when_the_window_is_over():
    shop = Shop(window_s=0.01)
    shop.reserve()
    for seq in range(3):
        shop.append(*notes(seq, seq + 1))
        until(lambda seq=seq: len(shop.storage.batches) > seq)
    assert shop.stored() == [0, 1, 2]
    shop.ask(p.CloseSession(ONE))
    shop.home.ref.stop(timeout=10)


def test_a_window_that_is_over_while_its_events_are_flushed_stops_no_later_one(shop):
    shop.reserve()
    shop.append(*notes(0, 1))
    held = shop.books.held[ONE]
    assert shop.flush().get(timeout=10).failure is None
    held.window_over()
    shop.append(*notes(1, 2))
    shop.ask(p.ReleaseSession(SessionId("other")))
    assert held._timer is not None
    held.window_over()
    assert shop.flush().get(timeout=10).failure is None
    assert shop.stored() == [0, 1]


def test_a_disk_that_refuses_is_told_of_and_the_order_is_kept_for_the_next_flush(shop):
    shop.reserve()
    shop.storage.full = True
    shop.append(*notes(0, 2))
    assert shop.flush().get(timeout=10).failure.code == "STORAGE_FULL"
    assert shop.broken.get(timeout=10).code == "STORAGE_FULL"
    shop.storage.full = False
    shop.append(*notes(2, 3))
    assert shop.flush().get(timeout=10).failure is None
    assert shop.stored() == [0, 1, 2]


def test_what_comes_during_a_write_that_fails_stays_behind_it(shop):
    shop.reserve()
    shop.storage.entered.get()
    shop.storage.gate.clear()
    shop.append(*notes(0, 2))
    answer = shop.flush()
    entered(shop, "append")
    shop.append(*notes(2, 3))
    shop.ask(p.ReleaseSession(SessionId("other")))
    shop.storage.full = True
    shop.storage.gate.set()
    assert answer.get(timeout=10).failure is not None
    shop.storage.full = False
    assert shop.flush().get(timeout=10).failure is None
    assert shop.stored() == [0, 1, 2]


def test_an_event_out_of_order_hurts_its_own_session_only(shop):
    shop.reserve()
    ref = shop.home.ref
    shop.append(*notes(5, 6))
    assert shop.flush().get(timeout=10).failure.code == "EVENT_REFUSED"
    assert ref.is_alive and shop.reserve(SessionId("two")).header.id == "two"


def test_a_flush_of_a_session_that_is_closed_fails(shop):
    assert shop.flush().get(timeout=10).failure is not None


# --- taking and giving up ---------------------------------------------------------------------


def test_a_session_is_held_once(shop):
    shop.reserve()
    for ask in (
        p.ReserveSession(SessionHeader(ONE, 1, "/"), shop.broken.put),
        p.OpenSession(ONE, shop.broken.put),
        p.PrepareSession(ONE),
        p.LoadSession(ONE),
    ):
        with pytest.raises(SessionBusy):
            shop.ask(ask)


def test_what_closes_an_interrupted_turn_is_stored_when_it_is_opened(shop):
    shop.reserve()
    shop.append(TURN)
    shop.ask(p.CloseSession(ONE))
    opened = shop.ask(p.OpenSession(ONE, shop.broken.put))
    assert [event.type for event in opened.closers] == ["turn/end"]
    shop.ask(p.CloseSession(ONE))
    assert [event.type for event in shop.storage.read(ONE)] == ["turn/start", "turn/end"]


def test_a_discarded_session_leaves_nothing(shop):
    shop.reserve()
    shop.append(*notes(0, 2))
    shop.ask(p.CloseSession(ONE, discard=True))
    assert shop.storage.batches == []
    with pytest.raises(SessionNotFound):
        shop.storage.header(ONE)
    assert shop.reserve().state.next_seq == 0


def test_a_close_tells_what_could_not_be_made_durable_and_frees_the_session(shop):
    shop.reserve()
    shop.append(*notes(0, 1))
    assert shop.flush().get(timeout=10).failure is None
    shop.storage.full = True
    shop.append(*notes(1, 2))
    # As what it is: a run whose last events are not durable has not completed.
    with pytest.raises(StorageFull) as caught:
        shop.ask(p.CloseSession(ONE))
    assert caught.value.code == "STORAGE_FULL"
    shop.storage.full = False
    assert shop.ask(p.OpenSession(ONE, shop.broken.put)).state.next_seq == 1


def test_a_close_that_fails_while_its_store_is_dead_is_told_of_by_the_next(shop):
    shop.reserve()
    shop.append(*notes(0, 1))
    assert shop.flush().get(timeout=10).failure is None
    while not shop.storage.entered.empty():
        shop.storage.entered.get()
    shop.storage.gate.clear()
    shop.append(*notes(1, 2))
    first = aside(shop, p.CloseSession(ONE))
    entered(shop, "append")
    shop.crash()
    assert isinstance(first.get(timeout=10).error, ActorGone)
    shop.storage.full = True
    shop.storage.gate.set()
    shop.start()
    until(lambda: ONE not in shop.books.held)
    with pytest.raises(StorageFull):
        shop.ask(p.CloseSession(ONE))
    assert shop.ask(p.CloseSession(ONE)) is None
    shop.storage.full = False
    assert shop.ask(p.OpenSession(ONE, shop.broken.put)).state.next_seq == 1
    assert shop.ask(p.CloseSession(ONE)) is None and shop.stored() == [0]


def test_nothing_is_taken_in_while_a_session_is_closed(shop):
    shop.reserve()
    shop.append(*notes(0, 1))
    shop.storage.entered.get()
    shop.storage.gate.clear()
    closed = aside(shop, p.CloseSession(ONE))
    entered(shop, "append")
    shop.append(*notes(1, 2))
    shop.ask(p.ReleaseSession(SessionId("other")))
    assert shop.books.held[ONE]._pending == []
    shop.storage.gate.set()
    assert closed.get(timeout=10).error is None
    assert shop.stored() == [0]


def test_an_opening_that_is_given_up_holds_nothing_afterwards(shop):
    shop.storage.gate.clear()
    reserved = aside(shop, p.ReserveSession(SessionHeader(ONE, 1, "/"), shop.broken.put))
    entered(shop, "create")
    shop.ask(p.CloseSession(ONE, discard=True))
    assert isinstance(reserved.get(timeout=10).error, ActorGone)
    shop.storage.gate.set()
    until(lambda: not live_tasks() and ONE not in shop.storage._sessions)
    assert shop.books.held == {} and shop.books.taking == {}
    assert shop.reserve().header.id == ONE


def test_a_transaction_that_is_killed_while_the_store_opens_leaves_nothing(shop):
    wiring = SimpleNamespace(store=shop.home)
    life = Lifecycle(wiring, lambda preset: None, lambda *parts: None)  # type: ignore[arg-type]
    create = p.CreateAgent(AgentOptions("m/m", "/"), SessionHeader(ONE, 1, "/"))
    shop.storage.gate.clear()
    ends: queue.SimpleQueue = queue.SimpleQueue()
    task = start_task(lambda _token: life.prepare(ONE, create), ends.put, name="create")
    entered(shop, "create")
    task.kill(0.0)
    assert isinstance(ends.get(timeout=10).error, TaskKilled)
    shop.storage.gate.set()
    until(lambda: not live_tasks() and ONE not in shop.storage._sessions)
    assert shop.books.held == {} and shop.reserve().header.id == ONE


# --- crashes ----------------------------------------------------------------------------------


def test_recovering_reads_what_was_not_written_yet_and_stores_what_closes_it(shop):
    shop.reserve()
    shop.append(TURN)
    recovered = shop.ask(p.RecoverSession(ONE))
    assert recovered.state.next_seq == 2 and [e.type for e in recovered.closers] == ["turn/end"]
    assert shop.flush().get(timeout=10).failure is None
    assert shop.stored() == [0, 1]
    with pytest.raises(SessionNotFound):
        shop.ask(p.RecoverSession(SessionId("other")))


def test_a_recovery_that_outlasts_its_session_writes_nothing_into_the_next_life_of_it(shop):
    shop.reserve()
    shop.append(TURN)
    assert shop.flush().get(timeout=10).failure is None
    while not shop.storage.entered.empty():
        shop.storage.entered.get()
    shop.storage.gates_reads = True
    shop.storage.gate.clear()
    recovery = aside(shop, p.RecoverSession(ONE))
    entered(shop, "read")
    shop.ask(p.CloseSession(ONE))
    opened = shop.ask(p.OpenSession(ONE, shop.broken.put))
    assert [event.type for event in opened.closers] == ["turn/end"]
    shop.storage.gate.set()
    assert isinstance(recovery.get(timeout=10).error, ActorGone)
    shop.storage.gates_reads = False
    assert shop.flush().get(timeout=10).failure is None
    assert shop.stored() == [0, 1] and shop.broken.empty()


def test_a_recovery_that_the_next_store_does_again_closes_the_turn_once(shop):
    shop.reserve()
    shop.append(TURN)
    assert shop.flush().get(timeout=10).failure is None
    while not shop.storage.entered.empty():
        shop.storage.entered.get()
    shop.storage.gates_reads = True
    shop.storage.gate.clear()
    ends: queue.SimpleQueue = queue.SimpleQueue()
    ask = lambda _token: shop.home.ask_again(p.RecoverSession(ONE), timeout=10)  # noqa: E731
    start_task(ask, ends.put, name="aside")
    entered(shop, "read")
    shop.crash()
    shop.start()
    entered(shop, "read")
    shop.storage.gate.set()
    assert [event.type for event in ends.get(timeout=10).value.closers] == ["turn/end"]
    shop.storage.gates_reads = False
    assert shop.flush().get(timeout=10).failure is None
    assert shop.stored() == [0, 1] and shop.broken.empty()


def test_the_next_incarnation_writes_what_the_last_one_had(shop):
    shop.reserve()
    shop.append(*notes(0, 2))
    shop.crash()
    shop.start()
    until(lambda: shop.storage.batches == [[0, 1]])
    with pytest.raises(SessionBusy):
        shop.reserve()


def test_what_was_left_unread_comes_before_what_was_told_in_between(shop):
    shop.reserve()
    ref = shop.home.ref
    ref.tell(object())
    shop.append(*notes(0, 1))
    until(lambda: not ref.is_alive)
    unread = shop.actor._unread
    shop.append(*notes(1, 2))
    shop.start(unread)
    assert shop.flush().get(timeout=10).failure is None
    assert shop.stored() == [0, 1]


def test_a_close_that_the_crash_interrupted_is_asked_again_and_done_once(shop):
    shop.reserve()
    shop.append(*notes(0, 1))
    shop.storage.entered.get()
    shop.storage.gate.clear()
    ends: queue.SimpleQueue = queue.SimpleQueue()
    close = p.CloseSession(ONE)
    start_task(lambda _token: shop.home.ask_again(close, timeout=10), ends.put, name="close")
    entered(shop, "append")
    shop.crash()
    shop.start()
    shop.storage.gate.set()
    assert ends.get(timeout=10).error is None
    assert shop.books.held == {} and shop.stored() == [0]
    assert shop.storage.closes == 1


def test_without_a_store_all_is_written_and_every_lock_is_given_back(shop):
    shop.reserve()
    shop.append(*notes(0, 2))
    shop.crash()
    shop.books.release_all()
    assert shop.stored() == [0, 1]
    shop.start()
    assert shop.ask(p.OpenSession(ONE, shop.broken.put)).state.next_seq == 2


# --- addresses --------------------------------------------------------------------------------


def test_an_address_that_is_given_up_keeps_nothing_and_says_why(shop):
    shop.crash()
    shop.home.tell("kept")
    shop.home.give_up("the store keeps failing")
    shop.home.tell("not kept")
    assert shop.home._kept == []
    for ask in (shop.home.ask, shop.home.ask_again):
        with pytest.raises(ActorGone, match="keeps failing"):
            ask("anything", timeout=10)


def test_asking_again_ends_when_nobody_will_come(shop):
    shop.crash()
    ends: queue.SimpleQueue = queue.SimpleQueue()
    start_task(lambda _token: shop.home.ask_again("anything", timeout=60), ends.put, name="ask")
    Signal().wait(0.001)
    assert ends.empty()
    shop.home.give_up("the store keeps failing")
    assert isinstance(ends.get(timeout=10).error, ActorGone)
