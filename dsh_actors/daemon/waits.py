"""Waiting for runs to be over, by the ids of agents: whether they are live does not matter."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from dsh_actors.core.outcome import RunEnd

__all__ = ["Wait", "Waits"]


class Wait:
    """One wait. ``ends`` has those that are over, ``open`` the others."""

    def __init__(self, ids: Iterable[str], *, for_any: bool) -> None:
        self.open = dict.fromkeys(ids)
        self.ends: dict[str, RunEnd | None] = {}
        self._for_any = for_any
        self._woken = threading.Event()

    def settle(self, agent_id: str, end: RunEnd | None) -> None:
        """It is over. The first end that is told stays."""
        if agent_id in self.open:
            del self.open[agent_id]
            self.ends[agent_id] = end
        if not self.open or self._for_any:
            self._woken.set()

    def release(self) -> None:
        """Wait no longer, whatever is over."""
        self._woken.set()

    def wait(self, timeout_s: float | None) -> None:
        """Until as many are over as were asked for, or ``timeout_s`` seconds have passed."""
        if self.open and not (self._for_any and self.ends):
            self._woken.wait(timeout_s)


class Waits:
    """The waits that are going on."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[Wait]] = {}

    @contextmanager
    def entered(self, wait: Wait) -> Iterator[None]:
        """Let the wait hear of ends."""
        ids = tuple(wait.open)
        for agent_id in ids:
            self._by_id.setdefault(agent_id, []).append(wait)
        try:
            yield
        finally:
            for agent_id in ids:
                waiting = self._by_id[agent_id]
                waiting.remove(wait)
                if not waiting:
                    del self._by_id[agent_id]

    def release_all(self) -> None:
        """Nothing more will be told: nobody waits on."""
        for waiting in self._by_id.values():
            for wait in waiting:
                wait.release()

    def settle(self, agent_id: str, end: RunEnd | None) -> None:
        """A run is over. Returns at once."""
        for wait in self._by_id.get(agent_id, ()):
            wait.settle(agent_id, end)
