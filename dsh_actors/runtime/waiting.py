"""Waiting that a cancel token can end."""

from __future__ import annotations

from gevent.event import Event

from dsh_actors.ports import CancelToken
from dsh_actors.runtime.cancel import Cancelled

__all__ = ["pause"]


def pause(seconds: float, cancel: CancelToken) -> None:
    """Let the calling greenlet wait. Raises `Cancelled` as soon as ``cancel`` is thrown."""
    woken = Event()
    undo = cancel.on_cancel(woken.set)
    try:
        woken.wait(seconds)
    finally:
        undo()
    if cancel.reason is not None:
        raise Cancelled(cancel.reason)
