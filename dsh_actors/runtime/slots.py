"""A bounded number of places for work, waited for in order, left at once when the waiter is cancelled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from gevent.event import Event

from dsh_actors.ports import CancelToken
from dsh_actors.runtime.cancel import Cancelled

__all__ = ["Slots"]


class Slots:
    """``n`` slots. Whoever waits longest gets the next one. Raises `ValueError` unless ``n`` is positive."""

    def __init__(self, n: int) -> None:
        if n < 1:
            raise ValueError(f"slots must be at least 1, not {n}")
        self.limit = n
        self._in_use = 0
        self._waiting: OrderedDict[int, Event] = OrderedDict()
        self._next_key = 0

    @property
    def in_use(self) -> int:
        """How many slots are taken."""
        return self._in_use

    @property
    def waiting(self) -> int:
        """How many greenlets wait for a slot."""
        return len(self._waiting)

    @contextmanager
    def taken(self, cancel: CancelToken) -> Iterator[None]:
        """Hold a slot for the block. Raises `Cancelled`, holding none, if ``cancel`` is thrown before."""
        self.acquire(cancel)
        try:
            yield
        finally:
            self.release()

    def acquire(self, cancel: CancelToken) -> None:
        """Take a slot until `release`. Raises `Cancelled`, holding none, if ``cancel`` is thrown before."""
        if cancel.reason is not None:
            raise Cancelled(cancel.reason)
        if self._in_use < self.limit:
            self._in_use += 1
            return
        key, woken = self._next_key, Event()
        self._next_key += 1
        self._waiting[key] = woken
        undo = cancel.on_cancel(woken.set)
        try:
            woken.wait()
            if cancel.reason is not None:
                raise Cancelled(cancel.reason)
        except BaseException:
            # Cancelled, or killed, or timed out, while waiting; the slot may have been given already.
            if self._waiting.pop(key, None) is None:
                self.release()
            raise
        finally:
            undo()

    def release(self) -> None:
        """Give a slot that was acquired to whoever waits longest."""
        if self._waiting:
            # The slot passes on without being free in between, so nobody can overtake.
            _, woken = self._waiting.popitem(last=False)
            woken.set()
        else:
            self._in_use -= 1
