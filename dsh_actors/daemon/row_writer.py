"""Writes rows in native threads, whatever has gathered in one transaction: a few of them or a thousand."""

from __future__ import annotations

from functools import partial

from dsh_actors.daemon.registry import AgentRow, Change, Registry
from dsh_actors.errors import StorageError, error_chain
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.tasks import TaskEnd, start_task
from dsh_actors.runtime.timers import Timer, after

__all__ = ["RowWriter"]

WINDOW_S = 0.5
"""How long what nobody waits for is gathered: after a crash the log tells it all again. So long it waits,
too, before it is tried once more when the disk has refused it."""


class RowWriter:
    """The one writer of a registry. Used in the hub's thread only."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._noted: dict[str, AgentRow] = {}
        self._writing: dict[str, AgentRow] = {}
        self._saving: dict[str, AgentRow] = {}
        self._urgent: list[tuple[Change, GeventFuture]] = []
        self._timer: Timer | None = None
        self._is_busy = False
        self._flushing: list[GeventFuture] = []
        self._is_closed = False

    def note(self, row: AgentRow) -> None:
        """Write the row as it will be in a moment; waits for nothing. A row that goes is not written.

        Nothing happens once the writer is closed.
        """
        if self._is_closed:
            return
        self._noted[row.id] = row
        if self._timer is None:
            self._timer = after(WINDOW_S, self._window_over)

    def newest(self, agent_id: str) -> AgentRow | None:
        """A row that is not written yet. Whoever changes it notes it again."""
        return self._noted.get(agent_id) or self._saving.get(agent_id) or self._writing.get(agent_id)

    def save(self, row: AgentRow, options: str | None = None) -> None:
        """Write the row as it is and wait. Raises `StorageFull` or `StorageError`, with nothing written."""
        self._noted.pop(row.id, None)
        if options is None:  # nobody sees a new one before it is written
            self._saving[row.id] = row
        try:
            self._put(Change.of(row, options))
        finally:
            if self._saving.get(row.id) is row:
                del self._saving[row.id]

    def remove(self, agent_id: str) -> None:
        """Raises as `save` does."""
        self._noted.pop(agent_id, None)
        self._put(Change(agent_id, None))

    def flush(self) -> None:
        """Wait until all that was noted is written, or has failed to be."""
        done = GeventFuture()
        self._flushing.append(done)
        self._go_on()
        done.wait(None)

    def close(self) -> None:
        """Wait for what is being written, and take no more notes."""
        while self._is_busy or self._urgent:
            self.flush()
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _put(self, change: Change) -> None:
        done = GeventFuture()
        self._urgent.append((change, done))
        self._go_on()
        done.get()

    def _window_over(self) -> None:
        self._timer = None
        self._go_on(is_due=True)

    def _go_on(self, *, is_due: bool = False) -> None:
        if self._is_busy:
            return
        if not self._urgent and not (self._noted and (is_due or self._flushing)):
            if not self._noted:
                self._flushed()
            return
        urgent, self._urgent = self._urgent, []
        noted = self._writing = self._noted
        self._noted = {}
        # A row that is saved is not noted any more: one that is noted all the same has changed since.
        changes = [*(change for change, _ in urgent), *map(Change.of, noted.values())]
        self._is_busy = True
        # A task: this may run in the hub, where nothing may wait for a free native thread.
        start_task(
            lambda _token: run_native(self._registry.write, changes),
            partial(self._written, [done for _, done in urgent]),
            name="daemon/rows",
        )

    def _written(self, waiting: list[GeventFuture], end: TaskEnd[None]) -> None:
        self._is_busy, error = False, end.error
        writing, self._writing = self._writing, {}
        if error is not None:
            LOGGER.error("the table of agents could not be written: %s", error_chain(error))
            for row in writing.values():
                self._noted.setdefault(row.id, row)
            # Later: a disk that is full is as full at once.
            self._flushed()
            if self._noted and self._timer is None and not self._is_closed:
                self._timer = after(WINDOW_S, self._window_over)
        for done in waiting:
            if error is None:
                done.set(None)
            else:
                done.fail(_copy(error))
        self._go_on(is_due=self._timer is None)

    def _flushed(self) -> None:
        flushing, self._flushing = self._flushing, []
        for done in flushing:
            done.set(None)


def _copy(error: BaseException) -> BaseException:
    """One for each who waits: an error that is raised in several places grows by each."""
    return type(error)(error.message, hint=error.hint) if isinstance(error, StorageError) else error
