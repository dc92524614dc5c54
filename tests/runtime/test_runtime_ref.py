"""Refs: tell never waits or raises, ask always ends."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import gevent
import pykka
import pytest

from dsh_actors.errors import ActorGone, ProtocolError
from dsh_actors.runtime.actor import BaseActor, start_actor
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.ref import ACTOR_TIMEOUT, Ref

WAIT_S = 20.0


class Caller(BaseActor):
    def receive(self, message: Any) -> Any:
        return message() if callable(message) else message


def started(name: str = "caller") -> Ref[Any]:
    return start_actor(Caller(name=name))


def test_a_timed_out_ask_leaves_the_work_running() -> None:
    ref = started()
    go_on, done = threading.Event(), threading.Event()

    def work() -> None:
        assert go_on.wait(WAIT_S)
        done.set()

    with pytest.raises(ActorGone, match=r"caller did not answer within 0\.01 s") as late:
        ref.ask(work, timeout=0.01)
    assert late.value.code == ACTOR_TIMEOUT == "ACTOR_TIMEOUT"
    assert ref.is_alive
    go_on.set()
    assert done.wait(WAIT_S)
    ref.stop(timeout=WAIT_S)


def test_a_deferred_reply_is_waited_for_within_the_same_timeout() -> None:
    ref, began = started(), time.monotonic()
    with pytest.raises(ActorGone) as late:
        ref.ask(GeventFuture, timeout=0.02)
    assert late.value.code == ACTOR_TIMEOUT
    assert time.monotonic() - began < 10
    ref.stop(timeout=WAIT_S)


def test_a_timeout_of_the_asker_itself_is_not_taken_for_the_ask() -> None:
    ref = started()
    forever = threading.Event()
    with pytest.raises(gevent.Timeout), gevent.Timeout(0.01):
        ref.ask(forever.wait, timeout=WAIT_S)
    forever.set()
    ref.stop(timeout=WAIT_S)


def test_a_dead_actor_drops_what_it_is_told_and_refuses_what_it_is_asked() -> None:
    actor = Caller(name="caller")
    ref = start_actor(actor)
    ref.stop(timeout=WAIT_S)
    assert not ref.is_alive
    ref.tell("anyone?")
    assert actor.mailbox_depth == 0
    with pytest.raises(ActorGone, match="caller is not running") as gone:
        ref.ask("anyone?", timeout=WAIT_S)
    assert gone.value.code == "ACTOR_GONE"


def test_an_actor_that_asks_itself_or_waits_for_its_own_end_is_told_so_at_once() -> None:
    ref = started()
    with pytest.raises(ProtocolError, match="cannot ask itself"):
        ref.ask(lambda: ref.ask("me", timeout=WAIT_S), timeout=WAIT_S)
    with pytest.raises(ProtocolError, match="own end"):
        ref.ask(lambda: ref.stop(timeout=WAIT_S), timeout=WAIT_S)
    ref.stop(timeout=WAIT_S)


def test_stopping_a_busy_actor_reports_a_timeout_and_happens_later() -> None:
    ref = started()
    go_on = threading.Event()
    ref.tell(go_on.wait)
    with pytest.raises(ActorGone) as late:
        ref.stop(timeout=0.01)
    assert late.value.code == ACTOR_TIMEOUT
    go_on.set()
    ref.stop(timeout=WAIT_S)
    assert not ref.is_alive


def test_whoever_stops_an_ending_actor_waits_for_its_end() -> None:
    cleaned = threading.Event()

    class Slow(Caller):
        def stopped(self) -> None:
            assert cleaned.wait(WAIT_S)

    actor = Slow(name="slow")
    ref = start_actor(actor)
    actor.stop()
    gevent.sleep(0)
    gevent.sleep(0)
    assert not ref.is_alive
    with pytest.raises(ActorGone) as late:
        ref.stop(timeout=0.01)
    assert late.value.code == ACTOR_TIMEOUT
    cleaned.set()
    ref.stop(timeout=WAIT_S)


def test_refs_are_equal_by_actor_and_usable_as_keys() -> None:
    one, two = Caller(name="same"), Caller(name="same")
    assert one.ref == one.ref
    assert one.ref != two.ref
    assert {one.ref: 1, two.ref: 2}[one.ref] == 1
    assert repr(one.ref) == "<Ref same>"


def test_a_ref_does_not_keep_a_stopped_actor_in_memory() -> None:
    actor = Caller(name="short")
    ref, memory = start_actor(actor), weakref.ref(actor)
    ref.stop(timeout=WAIT_S)
    del actor
    gc.collect()
    assert memory() is None
    assert not ref.is_alive


def test_the_error_of_a_handler_keeps_its_traceback_however_often_it_is_raised() -> None:
    future = GeventFuture()
    try:
        int("no number")
    except ValueError:
        future.set_exception()
    lengths = set()
    for _ in range(3):
        with pytest.raises(ValueError, match="no number") as caught:
            future.get(timeout=0)
        lengths.add(len(caught.traceback))
    assert len(lengths) == 1


def test_a_future_is_set_once_and_obeys_pykka() -> None:
    future = GeventFuture()
    with pytest.raises(pykka.Timeout):
        future.get(timeout=0.001)
    assert not future.is_set
    future.set(4)
    assert future.is_set
    assert future.map(lambda value: value + 1).get(timeout=0) == 5
    for again in (lambda: future.set(5), lambda: future.fail(ValueError())):
        with pytest.raises(ProtocolError, match="already"):
            again()
    assert future.get() == 4
