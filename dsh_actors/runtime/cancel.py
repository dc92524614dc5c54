"""One-way cancel switches (`ports.CancelToken`). Plain Python: no greenlet, cheap to make by the thousand."""

from __future__ import annotations

from collections.abc import Callable

from dsh_actors.errors import HarnessError
from dsh_actors.runtime.log import LOGGER

__all__ = ["CancelSource", "Cancelled"]


class Cancelled(HarnessError):
    """Work was given up because its token was thrown; ``reason`` is the token's."""

    code = "CANCELLED"

    def __init__(self, reason: object) -> None:
        super().__init__(f"Cancelled: {reason}")
        self.reason = reason


class _Token:
    __slots__ = ("_callbacks", "_reason")

    def __init__(self) -> None:
        self._reason: object | None = None
        self._callbacks: dict[object, Callable[[], None]] = {}

    @property
    def reason(self) -> object | None:
        return self._reason

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        callbacks, key = self._callbacks, object()
        # Registered before the look at the reason: a native thread may do this during a `cancel`.
        callbacks[key] = callback
        if self._reason is not None and callbacks.pop(key, None) is not None:
            # Only this one: the others belong to the thread that throws, and may wake greenlets there.
            _run(callback)

        def undo() -> None:
            callbacks.pop(key, None)

        return undo

    def throw(self, reason: object) -> None:
        if self._reason is None:
            self._reason = reason
            self.run_callbacks()

    def run_callbacks(self) -> None:
        callbacks = self._callbacks
        while callbacks:
            try:
                _, callback = callbacks.popitem()
            except KeyError:  # another thread took the last one
                return
            _run(callback)


def _run(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        # A callback is foreign code (closing a socket, telling an actor); the others must run.
        LOGGER.exception("a cancel callback failed")


class CancelSource:
    """Holds the right to throw ``token``; hand out the token only."""

    __slots__ = ("token",)

    def __init__(self) -> None:
        self.token = _Token()

    def cancel(self, reason: object) -> None:
        """Throw the token and run its callbacks, the newest first. Later calls do nothing.

        Raises `ValueError` for ``None``, which stands for a token that was not thrown.
        """
        if reason is None:
            raise ValueError("a cancel needs a reason")
        self.token.throw(reason)
