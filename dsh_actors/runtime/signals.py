"""Operating system signals as ordinary calls in a greenlet, never in the middle of other code."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

import gevent
from gevent import socket

from dsh_actors.runtime.log import LOGGER

__all__ = ["on_signals", "raise_in_main", "waking_signals"]


def raise_in_main(error: BaseException) -> None:
    """For a handler of the interpreter: raise ``error`` in the main greenlet, also while that waits.

    It may be called by whatever the signal interrupted. Raised in the hub, the error would be printed first.
    """
    hub = gevent.get_hub()
    if gevent.getcurrent() is hub.parent:
        raise error
    hub.loop.run_callback_threadsafe(hub.parent.throw, error)


@contextmanager
def waking_signals() -> Iterator[None]:
    """While greenlets wait, the interpreter's own handlers are called at once.

    A signal that comes just before the hub goes to sleep would else be heeded only when something else
    wakes it.
    """
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    previous = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    # It must not keep a hub alive that has nothing else to wait for.
    watcher = gevent.get_hub().loop.io(ours.fileno(), 1, ref=False)
    watcher.start(_drain, ours)
    try:
        yield
    finally:
        watcher.stop()
        watcher.close()
        signal.set_wakeup_fd(previous)
        ours.close()
        theirs.close()


def _drain(ours: socket.socket) -> None:
    # Running any code of Python in the hub is what has the handlers called.
    with suppress(BlockingIOError):
        ours.recv(4096)


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
