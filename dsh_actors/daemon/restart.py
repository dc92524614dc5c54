"""After a restart: the runs that the last process did not finish are taken up, a few at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dsh_actors.core.options import Limits
from dsh_actors.daemon.live import LiveAgent
from dsh_actors.daemon.waking import awake, cut_run
from dsh_actors.errors import AgentNotFound, HarnessError, HostFull, error_chain
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.tasks import TaskEnd, start_task

if TYPE_CHECKING:
    from dsh_actors.daemon.live_table import LiveTable

__all__ = ["Restart", "put_to_sleep"]

AT_ONCE = 8
LOOK_S = 5.0


class Restart:
    """Resumes agents in the background, oldest first. They wait for room as long as it takes."""

    def __init__(self, table: LiveTable, owed: Iterable[str]) -> None:
        self._table = table
        self._owed = deque(owed)

    def start(self) -> None:
        for _ in range(min(AT_ONCE, len(self._owed))):
            start_task(lambda _token: self._work(), _ended, name="daemon/restart")

    def close(self) -> None:
        """What has not been taken up stays as it is, for the next start."""
        self._owed.clear()

    def _work(self) -> None:
        while self._owed:
            agent_id = self._owed.popleft()
            try:
                with self._table.doors.through(agent_id):
                    awake(self._table, agent_id, wait_s=0.0)
            except AgentNotFound:
                continue  # it was disposed of meanwhile
            except HostFull:
                # Without its door: whoever speaks to it meanwhile is not kept waiting.
                if not self._table.closing:
                    self._owed.appendleft(agent_id)
                    self._table.room.wait_for_change(LOOK_S)
            except Exception as error:  # whatever is wrong with one, the others are resumed
                self._put_off(agent_id, error)

    def _put_off(self, agent_id: str, error: Exception) -> None:
        """It sleeps until somebody speaks to it, unless it has failed for good."""
        if self._table.closing:
            return
        LOGGER.warning("agent %s was not resumed: %s", agent_id, error_chain(error))
        try:
            row = self._table.read(agent_id)
        except HarnessError:
            return  # it is gone, or the table cannot be read just now: the next start looks again
        if row.state == "running":
            row.state, row.error = "asleep", error_chain(error)
            self._table.writer.note(row)  # the disk may be what is wrong
            self._table.waits.settle(agent_id, None)


def put_to_sleep(table: LiveTable, ids: Iterable[str], message: str = "the daemon was stopped") -> None:
    """Let cut runs be over, as interrupted, without waking their agents."""
    for agent_id in ids:
        row = table.read(agent_id)
        live = LiveAgent(table, row, Limits())
        try:
            cut = cut_run(table, row)
        except HarnessError as error:
            table.fail(row, error.message)
            continue
        live.take_up_run(cut.fold)
        is_over = cut.fold.has_ended and not cut.is_open and not cut.left
        end = live.end_run() if is_over else live.end_run("interrupted", message)
        row.state = "asleep"
        table.writer.save(row)
        table.waits.settle(agent_id, end)
        table.tell(live)


def _ended(end: TaskEnd[None]) -> None:
    if end.error is not None:
        LOGGER.error("resuming agents ended: %s", error_chain(end.error))
