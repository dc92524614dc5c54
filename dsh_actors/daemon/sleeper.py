"""Puts agents to sleep that have been idle for long, and all of them when the host closes."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from dsh_actors.errors import HarnessError, error_chain
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.tasks import Task, TaskEnd, start_task
from dsh_actors.runtime.timers import Timer, after

if TYPE_CHECKING:
    from dsh_actors.daemon.live_table import LiveTable

__all__ = ["Sleeper"]

AT_ONCE = 16
MIN_LOOK_S = 0.05
MAX_LOOK_S = 5.0


class Sleeper:
    """Looks at the agent that is idle the longest, now and then."""

    def __init__(self, table: LiveTable, idle_after_s: float) -> None:
        self._table = table
        self._idle_after_s = idle_after_s
        self._timer: Timer | None = None
        self._task: Task | None = None
        self._is_closed = False

    def start(self) -> None:
        if not self._is_closed:
            look_s = min(MAX_LOOK_S, max(MIN_LOOK_S, self._idle_after_s / 10))
            self._timer = after(look_s, self._look)

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.join(60.0)

    def _look(self) -> None:
        idle = self._table.room.idle
        if not idle or time.monotonic() - next(iter(idle.values())) < self._idle_after_s:
            self.start()
            return
        self._task = start_task(lambda _token: self._sweep(), self._swept, name="daemon/sleep")

    def _sweep(self) -> None:
        idle = self._table.room.idle
        while idle and not self._is_closed:
            agent_id, since = next(iter(idle.items()))
            if time.monotonic() - since < self._idle_after_s:
                return
            if not self._table.sleep_if_idle(agent_id) and idle.get(agent_id) == since:
                # Somebody needs it: it is looked at again after the same time.
                self._table.room.is_idle(agent_id)

    def _swept(self, end: TaskEnd[None]) -> None:
        self._task = None
        if end.error is not None:
            LOGGER.error("putting agents to sleep failed: %s", error_chain(end.error))
        self.start()

    def end(self, ids: tuple[str, ...], timeout_s: float) -> None:
        """End these agents, many at a time; runs that are not over stay owed."""
        waiting = deque(ids)

        def work() -> None:
            while waiting:
                self._end(waiting.popleft(), timeout_s)

        tasks = [start_task(lambda _token: work(), _ignore, name="daemon/close") for _ in range(AT_ONCE)]
        for task in tasks:
            task.join(timeout_s + 300.0)

    def _end(self, agent_id: str, timeout_s: float) -> None:
        table = self._table
        with table.doors.through(agent_id):
            live = table.live.get(agent_id)
            if live is None:
                return
            try:
                table.cut(live, timeout_s)
            except HarnessError as error:
                LOGGER.error("closing agent %s: %s", agent_id, error_chain(error))


def _ignore(_end: TaskEnd[None]) -> None:
    """What went wrong with an agent has been logged."""
