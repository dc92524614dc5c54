"""One-shot timers on the hub, and the real clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gevent

from dsh_actors.runtime.log import LOGGER

__all__ = ["MAX_DELAY_S", "SystemClock", "Timer", "after", "when_waiting"]

MAX_DELAY_S = 2_147_483.647
"""The longest delay. Longer ones are cut to it."""


class Timer:
    """A callback to come. Made by `after`."""

    __slots__ = ("_callback", "_watcher")

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback
        self._watcher: Any = gevent.get_hub().loop.timer(min(max(0.0, seconds), MAX_DELAY_S))
        # The loop's own time may be stale after a long computation; the timer would be early.
        self._watcher.start(self._fire, update=True)

    def cancel(self) -> None:
        """Make sure that the callback does not run from now on. May be called at any time."""
        watcher, self._watcher, self._callback = self._watcher, None, None
        if watcher is not None:
            watcher.stop()
            watcher.close()

    def _fire(self) -> None:
        callback = self._callback
        self.cancel()
        if callback is not None:
            _contained(callback)


def after(seconds: float, callback: Callable[[], None]) -> Timer:
    """Call ``callback`` once, ``seconds`` from now, unless the timer is cancelled.

    It runs in the hub: it must be quick and cannot wait. Tell an actor in it.
    """
    return Timer(seconds, callback)


def when_waiting(callback: Callable[[], None]) -> None:
    """Call ``callback`` once, as soon as the running greenlet waits for something. It runs in the hub."""
    gevent.get_hub().loop.run_callback(_contained, callback)


def _contained(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        # The callback is the caller's; gevent would print the error on stderr.
        LOGGER.exception("a callback in the hub failed")


class SystemClock:
    """`ports.Clock` by the operating system."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
