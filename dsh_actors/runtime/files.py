"""Blocking file work in native threads: only the calling greenlet waits.

What runs there must not touch the hub, refs, or the locks, sockets and sleeps of the patched
standard library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from gevent import Greenlet
from gevent.monkey import get_original
from gevent.threadpool import ThreadPool

from dsh_actors.errors import ProtocolError
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.patching import use_native_import_locks

__all__ = [
    "DEFAULT_POOL_SIZE",
    "TOOL_POOL_SIZE",
    "NativePool",
    "configure_native_pool",
    "run_native",
    "run_tool_native",
    "start_native",
]

DEFAULT_POOL_SIZE = 16
TOOL_POOL_SIZE = 16
"""Tools have threads of their own: one that hangs must not keep a session from being written."""

P = ParamSpec("P")
T = TypeVar("T")

_thread_id: Callable[[], int] = get_original("_thread", "get_ident")


class NativePool:
    """At most ``size`` native threads, each started when it is first needed."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._threads: Any = None
        self._in_hand = 0
        """Calls that run or wait for a thread."""

    def run(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what ``fn`` returns or raise what it raises, traceback included.

        If the waiting greenlet is killed or timed out the call still finishes; its error is logged.
        Called from a native thread, it runs ``fn`` right there.
        """
        threads = self._started()
        if _thread_id() != threads.hub.thread_ident:
            return fn(*args, **kwargs)
        value, error = _wait(self._spawn(threads, fn, args, kwargs), fn)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return value  # type: ignore[no-any-return]  # gevent is untyped

    def start(self, fn: Callable[[], T], deliver: Callable[[T | None, BaseException | None], None]) -> None:
        """Run ``fn`` and call ``deliver(value, error)`` in the hub when it has ended; returns at once.

        ``deliver`` must be quick, like a timer's callback: tell an actor in it.
        """
        threads = self._started()

        def ended(done: Any) -> None:
            value, error = done.value
            try:
                deliver(value, error)
            except Exception:
                # `deliver` is the caller's; gevent would print the error on stderr.
                LOGGER.exception("the end of a native call could not be delivered")

        def begin() -> None:
            self._spawn(threads, fn, (), {}).rawlink(ended)

        if self._in_hand < self.size:
            begin()
        else:
            Greenlet.spawn(begin)  # it waits for a thread, which the caller, or the hub, must not

    def _spawn(self, threads: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._in_hand += 1
        try:
            pending = threads.spawn(_outcome, fn, args, kwargs)
        except BaseException:
            self._in_hand -= 1
            raise
        pending.rawlink(self._settled)
        return pending

    def _settled(self, _pending: Any) -> None:
        self._in_hand -= 1

    def _started(self) -> Any:
        threads = self._threads
        if threads is None:
            use_native_import_locks()
            threads = self._threads = ThreadPool(self.size)
        return threads

    def close(self) -> None:
        """End the threads; waits for calls that run."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.kill()


def _outcome(fn: Callable[..., T], args: Any, kwargs: Any) -> tuple[T | None, BaseException | None]:
    try:
        return fn(*args, **kwargs), None
    except BaseException as error:
        # gevent prints what a native call raises, so an error travels as a value.
        return None, error


def _wait(pending: Any, fn: Callable[..., Any]) -> Any:
    try:
        return pending.get()
    except BaseException:
        # Only the waiting can fail here: `_outcome` returns what the call raised.
        pending.rawlink(lambda done: _report_abandoned(fn, done.value))
        raise


def _report_abandoned(fn: Callable[..., Any], outcome: tuple[Any, BaseException | None] | None) -> None:
    name = getattr(fn, "__qualname__", repr(fn))
    error = outcome[1] if outcome is not None else None
    if error is None:
        LOGGER.warning("native call %s finished after its caller had gone", name)
    else:
        LOGGER.error("native call %s failed after its caller had gone", name, exc_info=error)


_shared: NativePool | None = None
_tools = NativePool(TOOL_POOL_SIZE)


def configure_native_pool(size: int) -> None:
    """Set the number of native threads for `run_native`, once, before its first use.

    Raises `ValueError` for a size below 1, `ProtocolError` if the pool exists with another size.
    """
    global _shared
    if size < 1:
        raise ValueError(f"the native pool needs at least 1 thread, not {size}")
    if _shared is None:
        _shared = NativePool(size)
    elif _shared.size != size:
        raise ProtocolError(f"The native pool has {_shared.size} threads already.")


def start_native(fn: Callable[[], T], deliver: Callable[[T | None, BaseException | None], None]) -> None:
    """Run ``fn`` in the shared native threads without waiting for it; see `NativePool.start`."""
    _pool().start(fn, deliver)


def run_native(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``fn`` in the shared native threads and wait for it; see `NativePool.run`."""
    return _pool().run(fn, *args, **kwargs)


def run_tool_native(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a tool's ``fn`` in the native threads of the tools and wait for it; see `NativePool.run`."""
    return _tools.run(fn, *args, **kwargs)


def _pool() -> NativePool:
    global _shared
    if _shared is None:
        _shared = NativePool(DEFAULT_POOL_SIZE)
    return _shared
