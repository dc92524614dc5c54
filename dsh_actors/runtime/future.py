"""A Pykka future over gevent's `AsyncResult`: waiting for it blocks the calling greenlet only."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, TypeAlias

import pykka
from gevent.event import AsyncResult

from dsh_actors.errors import ProtocolError

__all__ = ["GeventFuture"]

OptExcInfo: TypeAlias = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]


class GeventFuture(pykka.Future[Any]):
    """One reply, set once. Setting it a second time raises `ProtocolError`."""

    def __init__(self) -> None:
        super().__init__()
        self._result = AsyncResult()
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None

    @property
    def is_set(self) -> bool:
        """Whether the reply, a value or an error, is there."""
        return bool(self._result.ready())

    def wait(self, timeout: float | None) -> bool:
        """Wait at most ``timeout`` seconds; whether the reply is there. Only another's timeout is raised."""
        self._result.wait(timeout)
        return bool(self._result.ready())

    def outcome(self) -> Any:
        """The value that was set, or raise the error that was set. Call it after `wait`."""
        if self._error is not None:
            # The traceback as it was set: it would grow by each greenlet that raises the error.
            raise self._error.with_traceback(self._traceback)
        return self._result.value

    def get(self, *, timeout: float | None = None) -> Any:
        """As Pykka defines it: raises `pykka.Timeout` after ``timeout`` seconds."""
        if self._get_hook is not None:
            return super().get(timeout=timeout)
        if not self.wait(timeout):
            raise pykka.Timeout(f"{timeout} seconds")
        return self.outcome()

    def set(self, value: Any | None = None) -> None:
        self._refuse_second()
        self._result.set(value)

    def set_exception(self, exc_info: OptExcInfo | None = None) -> None:
        self._refuse_second()
        kind, error, traceback = exc_info if exc_info is not None else sys.exc_info()
        if error is None:
            error = kind() if kind is not None else ProtocolError("There is no error to report.")
        self._error, self._traceback = error, traceback
        self._result.set(None)

    def fail(self, error: BaseException) -> None:
        """Set ``error`` as the reply."""
        self.set_exception((type(error), error, error.__traceback__))

    def _refuse_second(self) -> None:
        if self._result.ready() or self._get_hook is not None:
            raise ProtocolError("This reply has been given already.")
