"""Answering a promise that may have been answered already: its actor may have died in between."""

from __future__ import annotations

from typing import Any

from dsh_actors.errors import ActorGone, HarnessError
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.tasks import TaskEnd, TaskKilled

__all__ = ["fail", "pass_on", "presentable", "settle", "succeed"]


def succeed(promise: GeventFuture, value: Any) -> None:
    if not promise.is_set:
        promise.set(value)


def fail(promise: GeventFuture, error: BaseException | None) -> None:
    if not promise.is_set:
        promise.fail(error or HarnessError("the work ended without a result"))


def pass_on(promise: GeventFuture, end: TaskEnd[Any]) -> None:
    """Answer with how a task ended."""
    if end.error is not None:
        fail(promise, end.error)
    else:
        succeed(promise, end.value)


def settle(promise: GeventFuture, error: BaseException | None) -> None:
    """Answer that something is done, or why not."""
    if error is not None:
        fail(promise, error)
    else:
        succeed(promise, None)


def presentable(error: BaseException | None, reason: HarnessError | None = None) -> BaseException | None:
    """An error that an asker may be told: not one that would end more than the asking.

    ``reason`` is why a task that was killed was killed.
    """
    if error is None or isinstance(error, Exception | KeyboardInterrupt | SystemExit):
        return error
    if isinstance(error, TaskKilled):
        return reason or ActorGone(str(error))
    return HarnessError(f"it was ended by {type(error).__name__}: {error}")
