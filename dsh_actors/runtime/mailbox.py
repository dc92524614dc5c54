"""An actor's mailbox: one reader, and no more memory than an idle actor of many thousands may have."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from gevent.hub import Waiter

__all__ = ["Mailbox", "Parked"]


class Parked(BaseException):
    """Raised into the reading loop of an actor that gives its greenlet back until there is a message."""


class Mailbox:
    """Used in the hub's thread only. ``may_park`` is asked when a reader finds it empty.

    Where it says yes, `get` raises `Parked`, and `on_message` names who starts to read again.
    """

    __slots__ = ("_items", "_wake", "may_park")

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._wake: Callable[[], object] | None = None
        self.may_park: Callable[[], bool] | None = None

    def put(self, item: Any) -> None:
        """Returns at once."""
        self._items.append(item)
        wake = self._wake
        if wake is not None:
            self._wake = None
            wake()

    def get(self) -> Any:
        """The oldest item; waits for one."""
        items = self._items
        if items:
            return items.popleft()
        if self.may_park is not None and self.may_park():
            raise Parked
        while not items:
            waiter = Waiter()
            self._wake = partial(waiter.hub.loop.run_callback, waiter.switch, None)
            try:
                waiter.get()
            finally:
                self._wake = None
        return items.popleft()

    def on_message(self, wake: Callable[[], object]) -> None:
        """Call back once, at the next `put`."""
        self._wake = wake

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)
