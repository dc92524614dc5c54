"""Answering a promise that may have been answered already: its actor may have died in between."""

from __future__ import annotations

from typing import Any

from dsh_actors.errors import HarnessError
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.tasks import TaskEnd

__all__ = ["fail", "pass_on", "succeed"]


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
