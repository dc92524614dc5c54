"""Ends a program of somebody else by an exception in its main greenlet, whatever it is doing."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable

import gevent
from gevent import getcurrent

__all__ = ["MainInterrupts"]


class MainInterrupts:
    """Python's own handling of signals, so that code that never waits is reached too.

    Made in the main greenlet. ``on_signal(number)`` is called in whatever greenlet runs, but the hub's: it
    should be quick. One alarm may be set; it is a signal (ALRM) as well.
    """

    def __init__(self, numbers: Iterable[signal.Signals], on_signal: Callable[[int], None]) -> None:
        self._main = getcurrent()
        self._hub = gevent.get_hub()
        self._on_signal = on_signal
        self._previous = {number: signal.getsignal(number) for number in (*numbers, signal.SIGALRM)}
        for number in self._previous:
            signal.signal(number, self._handle)

    def _handle(self, number: int, _frame: object) -> None:
        if getcurrent() is self._hub:
            gevent.spawn_raw(self._on_signal, number)  # where it may wait
        else:
            self._on_signal(number)

    def alarm(self, seconds: float) -> None:
        """Let SIGALRM come in so many seconds, once; another alarm takes the place of this one."""
        signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))

    def throw(self, error: BaseException) -> None:
        """Raise ``error`` in the main greenlet: at once if it runs, else where it waits."""
        if getcurrent() is self._main:
            raise error
        self._hub.loop.run_callback_threadsafe(self._main.throw, error)

    def close(self) -> None:
        """Put the previous handling back."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._previous.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
