"""Operating system signals as ordinary calls in a greenlet, never in the middle of other code."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping

import gevent

from dsh_actors.runtime.log import LOGGER

__all__ = ["on_signals", "raise_in_main"]


def raise_in_main(error: BaseException) -> None:
    """For a handler of the interpreter: raise ``error`` in the main greenlet, also while that waits.

    It may be called by whatever the signal interrupted. Raised in the hub, the error would be printed first.
    """
    hub = gevent.get_hub()
    if gevent.getcurrent() is hub.parent:
        raise error
    hub.loop.run_callback_threadsafe(hub.parent.throw, error)


def on_signals(handlers: Mapping[signal.Signals, Callable[[int], None]]) -> Callable[[], None]:
    """Call ``handlers[signal](number)`` in a new greenlet for each signal received.

    Returns the undo, which puts the previous handling back. Not for SIGCHLD, which gevent owns.
    """
    previous = {number: signal.getsignal(number) for number in handlers}
    watchers = [
        gevent.signal_handler(number, _call, callback, int(number)) for number, callback in handlers.items()
    ]

    def undo() -> None:
        while watchers:
            watchers.pop().cancel()
        while previous:
            number, handler = previous.popitem()
            # Unknown (None) is a handler that C code has set: it cannot be put back from here.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    return undo


def _call(callback: Callable[[int], None], number: int) -> None:
    try:
        callback(number)
    except Exception:
        # The callback is the caller's; gevent would print the error on stderr.
        LOGGER.exception("the handler for signal %d failed", number)
