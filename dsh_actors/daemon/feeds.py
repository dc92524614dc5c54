"""What happens now, for any number of readers: one bounded ring a stream, and a place in it for each reader.

A writer never waits and a reader costs no queue. One that lags behind the ring is told that it has lost
something; one that does not take what it is being sent is cut off.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Generic, TypeVar

from dsh_actors.runtime.waiting import Bell

__all__ = ["Feed", "Reader"]

T = TypeVar("T")


class Feed(Generic[T]):
    """The newest ``limit`` items. ``push`` is for observers: it is quick and never waits."""

    def __init__(self, limit: int) -> None:
        self._items: deque[T] = deque(maxlen=limit)
        self._readers: set[Reader[T]] = set()
        self.end = 0
        """The place of the next item."""
        self.is_closed = False

    @property
    def begin(self) -> int:
        """The place of the oldest item that is left."""
        return self.end - len(self._items)

    @property
    def readers(self) -> int:
        return len(self._readers)

    def push(self, item: T) -> None:
        self._items.append(item)
        self.end += 1
        oldest = self.begin
        for reader in self._readers:
            reader.heed(oldest)

    def between(self, place: int) -> list[T]:
        """The items from ``place`` on, which the ring still has."""
        newest = list(islice(reversed(self._items), max(0, self.end - place)))
        newest.reverse()
        return newest

    def reader(self, cut: Callable[[], None], place: int | None = None) -> Reader[T]:
        """Begin to read, at the end unless at ``place``. ``cut`` ends a reader that takes nothing more."""
        reader = Reader(self, cut, self.end if place is None else place)
        self._readers.add(reader)
        return reader

    def leave(self, reader: Reader[T]) -> None:
        self._readers.discard(reader)

    def close(self) -> None:
        """Every reader gets what is left, and then the end."""
        self.is_closed = True
        for reader in self._readers:
            reader.bell.ring()


class Reader(Generic[T]):
    """One reader's place. Set ``is_sending`` while what was taken is on its way to it."""

    def __init__(self, feed: Feed[T], cut: Callable[[], None], place: int) -> None:
        self.bell = Bell()
        self.is_sending = False
        self.is_gone = False
        self.was_cut = False
        self._feed = feed
        self._cut = cut
        self._place = place

    def heed(self, oldest: int) -> None:
        """For the feed: something is new, and nothing is left before ``oldest``."""
        if self._place < oldest and self.is_sending and not self.was_cut:
            self.was_cut = True
            self._cut()
        self.bell.ring()

    def hang_up(self) -> None:
        """Whoever reads has gone: let it be noticed."""
        self.is_gone = True
        self.bell.ring()

    @property
    def has_lost(self) -> bool:
        """Whether items were dropped before they could be taken."""
        return self._place < self._feed.begin

    @property
    def is_over(self) -> bool:
        """Whether nothing will come any more that could be taken."""
        return self.is_gone or self.was_cut or (self._feed.is_closed and self._place >= self._feed.end)

    def take(self) -> list[T]:
        """What is new, in order. Ask `has_lost` before."""
        items = self._feed.between(self._place)
        self._place = self._feed.end
        return items

    def skip(self) -> None:
        """Go on with what comes from now on."""
        self._place = self._feed.end

    def wait(self, timeout_s: float) -> bool:
        """Wait until there may be something to do, at most ``timeout_s`` seconds; whether there is."""
        if self._place < self._feed.end or self.is_over:
            return True
        return self.bell.wait(timeout_s)

    def close(self) -> None:
        self._feed.leave(self)
