"""How many agents may be live: a number, and the descriptors of the process. Idle ones make room."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from dsh_actors.errors import HostFull

__all__ = ["Descriptors", "Room", "open_descriptors"]

MAX_RESERVE = 512
"""Descriptors kept for what live agents open when they work: connections, pipes, files."""

PER_AGENT = 4
"""Descriptors that an agent may open until they are counted again: lock, log, connection, pipe."""

MAX_TRIES = 16
RETRY_AFTER_S = 5


class Descriptors:
    """The open descriptors of this process against its limit. Counted now and then."""

    def __init__(self) -> None:
        self._counted = 0
        self._left = 0

    def has_room(self) -> bool:
        """Whether one more agent can be opened without coming near the limit."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return True
        most = limit - min(MAX_RESERVE, limit // 2)
        self._left -= 1
        if self._left <= 0:
            self._counted = open_descriptors()
            # The nearer the limit, the more often: what is open already opens more as it works.
            self._left = (most - self._counted) // (2 * PER_AGENT)
        return self._left > 0


def open_descriptors() -> int:
    """How many this process has; 0 where that cannot be told."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0  # not Linux, or none left even for this: then the limit itself says no


class Sleep(Protocol):
    def __call__(self, agent_id: str, *, is_pressed: bool = False) -> bool: ...


class Room:
    """The places of live agents. ``sleep`` puts an idle one to sleep at once; whether it did."""

    def __init__(self, max_live: int, wait_s: float, sleep: Sleep) -> None:
        self.max_live = max_live
        self._wait_s = wait_s
        self._sleep = sleep
        self._descriptors = Descriptors()
        self._taken = 0
        self._is_closed = False
        self._waiting: list[threading.Event] = []
        self.idle: OrderedDict[str, float] = OrderedDict()
        """Idle agents and since when (monotonic), the longest first."""

    @property
    def taken(self) -> int:
        return self._taken

    def take(self, wait_s: float | None = None) -> None:
        """Take a place, at the cost of the agent that was idle the longest; wait where all are at work.

        Raises `HostFull` after ``wait_s`` seconds, or when the host closes.
        """
        ends = time.monotonic() + (self._wait_s if wait_s is None else wait_s)
        while self._is_closed or not self._is_free():
            # Before it is looked for one that may sleep: what changes meanwhile counts.
            with self._change() as changed:
                if not self._is_closed and self._sleep_one():
                    continue
                left = ends - time.monotonic()
                if left <= 0 or self._is_closed:
                    raise HostFull(self._reason(), retry_after_s=RETRY_AFTER_S, hint="try again later")
                changed.wait(left)
        self._taken += 1

    def wait_for_change(self, timeout_s: float) -> None:
        """Until it is worth another try, at most ``timeout_s`` seconds."""
        with self._change() as changed:
            changed.wait(timeout_s)

    @contextmanager
    def _change(self) -> Iterator[threading.Event]:
        changed = threading.Event()
        self._waiting.append(changed)
        try:
            yield changed
        finally:
            self._waiting.remove(changed)

    def give_back(self) -> None:
        self._taken -= 1
        self._changed()

    def is_idle(self, agent_id: str) -> None:
        """It has nothing to do from now on."""
        self.idle.pop(agent_id, None)
        self.idle[agent_id] = time.monotonic()
        self._changed()

    def is_busy(self, agent_id: str) -> None:
        self.idle.pop(agent_id, None)

    def _is_free(self) -> bool:
        return self._taken < self.max_live and self._descriptors.has_room()

    def close(self) -> None:
        """Nobody gets a place any more; who waits for one hears of it."""
        self._is_closed = True
        self._changed()

    def _reason(self) -> str:
        if self._is_closed:
            return "the daemon is closing"
        if self._taken >= self.max_live:
            return f"{self._taken} agents are at work, and no more may be at once (max_live)"
        return "the process has hardly any file descriptor left for one more agent"

    def _sleep_one(self) -> bool:
        idle = list(self.idle)[:MAX_TRIES]
        if any(self._sleep(agent_id) for agent_id in idle):
            return True
        return any(self._sleep(agent_id, is_pressed=True) for agent_id in idle)

    def _changed(self) -> None:
        for changed in self._waiting:
            changed.set()
