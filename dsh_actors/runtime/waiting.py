"""Waiting that a cancel token can end, and looking without waiting."""

from __future__ import annotations

import select

from gevent.event import Event
from gevent.monkey import get_original

from dsh_actors.ports import CancelToken
from dsh_actors.runtime.cancel import Cancelled

__all__ = ["Bell", "is_readable", "pause"]

# Patched, even a poll that does not wait goes through the hub.
_poll = get_original("select", "poll")


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


def is_readable(descriptor: int) -> bool:
    """Whether a read would return at once: with data, with the end of the stream, or with an error."""
    poll = _poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


class Bell:
    """Wakes the one greenlet that waits for it. It may be rung from anywhere, the hub's callbacks too."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = Event()

    def ring(self) -> None:
        self._event.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until it is rung, or was since the last waiting; whether it was, in ``timeout_s`` seconds."""
        rung = bool(self._event.wait(timeout_s))
        self._event.clear()
        return rung
