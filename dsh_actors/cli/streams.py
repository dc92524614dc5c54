"""The process's standard streams: UTF-8 whatever the locale, and known to be there or not."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

__all__ = ["STREAMS", "Streams"]


class Streams:
    """What the caller connected. One a process."""

    def __init__(self) -> None:
        self.has_stdin = True
        self.has_stdout = True

    def prepare(self, *, stdin_missing: bool) -> None:
        """Make the text streams of Python fit for any text."""
        self.has_stdin = not stdin_missing
        self.has_stdout = sys.stdout is not None
        sys.stdout = sys.stdout or _nowhere()
        sys.stderr = sys.stderr or _nowhere()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace")

    def flush(self) -> None:
        """Raises `BrokenPipeError` or another `OSError` where the output cannot be delivered."""
        sys.stdout.flush()
        sys.stderr.flush()

    def stdin_is_terminal(self) -> bool:
        return self.has_stdin and os.isatty(0)

    def stderr_is_terminal(self) -> bool:
        """Whether a live line makes sense there."""
        return os.isatty(2) and os.environ.get("TERM") != "dumb"


def _nowhere() -> TextIO:
    """Stands in for a stream that the caller closed; open for as long as the process lives."""
    return open(os.devnull, "w", encoding="utf-8")


STREAMS = Streams()
