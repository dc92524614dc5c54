"""The process's standard streams: UTF-8 whatever the locale, and known to be there or not."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

__all__ = ["STREAMS", "Streams"]


class Streams:
    """What the caller connected. One a process."""

    def __init__(self) -> None:
        self.has_stdin = True
        self.has_stdout = True
        self._lost = False

    def prepare(self, *, stdin_missing: bool) -> None:
        """Make the text streams of Python fit for any text."""
        self.has_stdin = not stdin_missing
        self.has_stdout = sys.stdout is not None
        sys.stdout = sys.stdout or _text(_Nowhere(self._lose))
        sys.stderr = sys.stderr or _text(_Nowhere(lambda: None))
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")

    def flush(self) -> None:
        """Raises `BrokenPipeError` or another `OSError` where the output cannot be delivered."""
        for stream in (sys.stdout, sys.stderr):
            if not stream.closed:  # a program of the user's may have closed it
                stream.flush()
        if self._lost:
            raise BrokenPipeError("standard output is closed")

    def _lose(self) -> None:
        self._lost = True

    def stdin_is_terminal(self) -> bool:
        return self.has_stdin and os.isatty(0)

    def stdout_is_terminal(self) -> bool:
        return self.has_stdout and os.isatty(1)

    def stderr_is_terminal(self) -> bool:
        """Whether a live line makes sense there."""
        return os.isatty(2) and os.environ.get("TERM") != "dumb"


class _Nowhere(io.RawIOBase):
    """Stands in for a stream that the caller closed, and tells when something was meant for it."""

    def __init__(self, on_write: Callable[[], None]) -> None:
        self._on_write = on_write

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._on_write()
        return len(data)


def _text(raw: io.RawIOBase) -> TextIO:
    return io.TextIOWrapper(io.BufferedWriter(raw), "utf-8")


STREAMS = Streams()
