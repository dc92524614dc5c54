"""A session's events for one reader: what is stored, then each as it happens, in order and without a gap."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dsh_actors.core.events import Event
from dsh_actors.core.scope import Scope

__all__ = ["MAX_WAITING", "event_stream"]

MAX_WAITING = 4_096
"""Events that wait for a reader; for one that is slower than that they are read from the log again."""


def event_stream(
    scope: Scope, stored: Callable[[int], Iterator[Event]], after: int, *, follow: bool
) -> Iterator[Event]:
    """The events behind ``after`` of the agent with this scope, until it is disposed of.

    ``stored`` reads from a seq on, everything logged so far included. Without ``follow`` that is all.
    """
    next_seq = after + 1
    feed = None if scope.closed or not follow else _Feed(scope)
    try:
        while True:
            for event in stored(next_seq):
                next_seq = event.seq + 1
                yield event
            if feed is None:
                return
            while (live := feed.take()) is not None:
                if live.seq > next_seq:
                    break  # what is between was too much to wait here
                if live.seq == next_seq:
                    next_seq += 1
                    yield live
            if live is None and feed.has_ended():
                return
    finally:
        if feed is not None:
            feed.close()


class _Feed:
    """Live events from an agent to a reader in another task."""

    def __init__(self, scope: Scope) -> None:
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        self._is_over = False
        self._has_lost = False
        self._undos = (
            scope.observe("session/event", self._on_event),
            scope.observe("agent/disposed", self._on_disposed),
        )

    def has_ended(self) -> bool:
        """Whether nothing more will come. Asked again when what was lost before the end has been read."""
        if not self._is_over:
            return False
        has_lost, self._has_lost = self._has_lost, False
        return not has_lost

    def take(self) -> Event | None:
        """The next event; waits for it. None where there is none to come, or some were lost."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_over or self._has_lost)
            if self._waiting:
                return self._waiting.popleft()
            if not self._is_over:
                self._has_lost = False
            return None

    def close(self) -> None:
        for undo in self._undos:
            undo()

    def _on_event(self, event: Event) -> None:
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self._has_lost = True
            if not self._has_lost:
                self._waiting.append(event)
                self._changed.notify()

    def _on_disposed(self, _payload: Mapping[str, Any]) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
