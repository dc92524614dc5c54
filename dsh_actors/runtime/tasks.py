"""Blocking work beside an actor that ends in exactly one message, however it ends.

A bare greenlet loses its exception; nothing outside this package starts one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import gevent
from gevent import Greenlet

from dsh_actors.errors import HarnessError
from dsh_actors.ports import CancelToken
from dsh_actors.runtime.cancel import Cancelled, CancelSource
from dsh_actors.runtime.exits import forward_exit
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.slots import Slots
from dsh_actors.runtime.timers import after

__all__ = [
    "Cancelled",
    "DeadlinePassed",
    "Slots",
    "Task",
    "TaskEnd",
    "TaskKilled",
    "deadline",
    "live_tasks",
    "start_task",
]

T = TypeVar("T")

_live: set[Task] = set()


class TaskKilled(BaseException):
    """Thrown into a task that did not end in its grace time. No ordinary error: work must not catch it."""


class DeadlinePassed(HarnessError):
    """A `deadline` block took longer than it may."""

    code = "TIMEOUT"


@dataclass(frozen=True, slots=True)
class TaskEnd(Generic[T]):
    """How a task ended: ``error`` is `None` when the work returned ``value``."""

    value: T | None
    error: BaseException | None


class Task:
    """Running work. Made by `start_task`."""

    __slots__ = ("__weakref__", "_deliver", "_greenlet", "_is_begun", "_source", "ended", "name")

    def __init__(
        self, work: Callable[[CancelToken], Any], deliver: Callable[[TaskEnd[Any]], None], name: str
    ) -> None:
        self.name = name
        self.ended = False
        """Whether the end has been delivered, or is being delivered."""
        self._deliver = deliver
        self._source = CancelSource()
        self._is_begun = False
        self._greenlet = Greenlet(self._run, work)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"

    def start(self) -> None:
        """For `start_task`."""
        _live.add(self)
        self._greenlet.start()

    def cancel(self, reason: object) -> None:
        """Throw the work's token; the work decides when to end. A task not begun yet still begins."""
        self._source.cancel(reason)

    def kill(self, grace_s: float, reason: object = "killed") -> None:
        """Cancel, and if the task has not ended ``grace_s`` seconds later, end it by `TaskKilled`.

        Returns at once. Work that has not begun never begins; its end is delivered before the return.
        """
        self._source.cancel(reason)
        if self.ended:
            return
        if not self._is_begun:
            self._greenlet.kill(block=False)
            self._finish(TaskEnd(None, TaskKilled(f"{self.name} was killed before it began")))
        else:
            after(grace_s, self._throw)

    def join(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds for the end to be delivered; whether it is."""
        self._greenlet.join(timeout_s)
        return self.ended

    def _throw(self) -> None:
        if not self.ended:
            self._greenlet.kill(TaskKilled(f"{self.name} was killed"), block=False)

    def _run(self, work: Callable[[CancelToken], Any]) -> None:
        self._is_begun = True
        # Not kept here: an error's traceback leads to this frame, and would hold itself in memory.
        self._finish(_end_of(work, self._source.token))

    def _finish(self, end: TaskEnd[Any]) -> None:
        self.ended = True
        _live.discard(self)
        deliver, self._deliver = self._deliver, _nowhere
        try:
            deliver(end)
        except Exception:
            # `deliver` is the caller's; there is nobody else to tell.
            LOGGER.exception("the end of task %s could not be delivered", self.name)
        if isinstance(end.error, KeyboardInterrupt):
            # Ctrl-C hits whichever greenlet runs; it was meant for the program.
            forward_exit(end.error)


def _end_of(work: Callable[[CancelToken], T], token: CancelToken) -> TaskEnd[T]:
    # Its frame is a part of the traceback, and must not refer to the error.
    try:
        return TaskEnd(work(token), None)
    except BaseException as error:
        # Anything at all: foreign code runs here, and its end must be heard of.
        return TaskEnd(None, error)


def _nowhere(end: TaskEnd[Any]) -> None:
    """Stands in for a `deliver` that was called, so that its references can go."""


def start_task(work: Callable[[CancelToken], T], deliver: Callable[[TaskEnd[T]], None], *, name: str) -> Task:
    """Run ``work`` in a greenlet of its own and call ``deliver`` with its end exactly once.

    ``deliver`` should only tell an actor: it must be quick, and an error of its own is only logged.
    """
    task = Task(work, deliver, name)
    task.start()
    return task


def live_tasks() -> list[str]:
    """The names of the tasks that have not ended, sorted."""
    return sorted(task.name for task in _live)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """End the block by `DeadlinePassed` after ``seconds``. Deadlines nest; each raises for itself only."""
    timer = gevent.Timeout.start_new(seconds)
    try:
        yield
    except gevent.Timeout as error:
        if error is not timer:
            raise
        raise DeadlinePassed(f"It took longer than {seconds:g} s.") from None
    finally:
        timer.close()
