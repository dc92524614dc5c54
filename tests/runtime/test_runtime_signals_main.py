"""A signal's handler of the interpreter while the main greenlet waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import gevent
import pytest
from gevent import monkey

from dsh_actors.runtime.signals import raise_in_main, waking_signals

PATIENCE_S = 20.0

start_native = monkey.get_original("_thread", "start_new_thread")
own_ident = monkey.get_original("_thread", "get_ident")


class Told(KeyboardInterrupt):
    pass


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR2, lambda *_: raise_in_main(Told()))
    yield
    signal.signal(signal.SIGUSR2, before)


def test_it_is_raised_in_a_wait_though_the_system_call_of_the_hub_was_not_interrupted() -> None:
    release = monkey.get_original("_thread", "allocate_lock")()
    release.acquire()

    def take_it() -> None:
        # A signal that another thread takes is as silent for the hub as one just before it sleeps.
        signal.pthread_kill(own_ident(), signal.SIGUSR2)
        release.acquire()

    with waking_signals():
        start_native(take_it, ())
        try:
            with pytest.raises(Told):
                threading.Event().wait(PATIENCE_S)
        finally:
            release.release()


def test_it_is_raised_at_once_where_the_main_greenlet_runs() -> None:
    with pytest.raises(Told):
        signal.raise_signal(signal.SIGUSR2)


def test_it_is_raised_in_the_main_greenlet_when_another_one_runs() -> None:
    other = gevent.spawn(signal.raise_signal, signal.SIGUSR2)
    with pytest.raises(Told):
        threading.Event().wait(PATIENCE_S)
    assert other.successful()


def test_nothing_is_left_behind() -> None:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with waking_signals():
        inside = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(inside)
    after = signal.set_wakeup_fd(before)
    assert after == before != inside
