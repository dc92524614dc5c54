"""One at a time for each agent: waking, sleeping, sending and disposing do not overlap."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Doors"]


class _Door:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0


class Doors:
    """Locks by name, there only while somebody uses them."""

    def __init__(self) -> None:
        self._doors: dict[str, _Door] = {}

    @contextmanager
    def through(self, name: str) -> Iterator[None]:
        """Be the only one of this name; waits for whoever is."""
        door = self._use(name)
        try:
            with door.lock:
                yield
        finally:
            self._leave(name, door)

    @contextmanager
    def if_free(self, name: str) -> Iterator[bool]:
        """As `through`, without waiting: whether it is ours."""
        door = self._use(name)
        is_ours = door.lock.acquire(blocking=False)
        try:
            yield is_ours
        finally:
            if is_ours:
                door.lock.release()
            self._leave(name, door)

    def _use(self, name: str) -> _Door:
        door = self._doors.setdefault(name, _Door())
        door.users += 1
        return door

    def _leave(self, name: str, door: _Door) -> None:
        door.users -= 1
        if not door.users:
            del self._doors[name]
