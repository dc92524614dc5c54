"""What the tests of the actors share."""

from __future__ import annotations

import time
from collections.abc import Callable

from gevent.event import Event as Signal
from gevent.monkey import get_original

from dsh_actors.core.events import Event


def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    """Let the others run until it is so, native threads too."""
    ends, never = time.monotonic() + within_s, Signal()
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        never.wait(0.001)


class NativeGate:
    """Native threads pass it while it is open. The patched `threading` has no lock that is fit for them."""

    def __init__(self) -> None:
        self._lock = get_original("_thread", "allocate_lock")()

    def set(self) -> None:
        """Open it."""
        if self._lock.locked():
            self._lock.release()

    def clear(self) -> None:
        self._lock.acquire(False)

    def wait(self, timeout_s: float) -> bool:
        is_open = self._lock.acquire(timeout=timeout_s)
        if is_open:
            self._lock.release()
        return is_open


def notes(first: int, below: int) -> tuple[Event, ...]:
    """Events that nothing depends on."""
    return tuple(Event("run/note", seq, 1, {}, ignorable=True) for seq in range(first, below))
