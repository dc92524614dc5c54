"""The lines of a tasks file or of standard input, read as they are needed, however many or long they are."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from dsh_actors.cli.prompt_input import MAX_PROMPT_BYTES
from dsh_actors.runtime.files import run_native

__all__ = ["MAX_LINE_BYTES", "Line", "LineReader"]

MAX_LINE_BYTES = MAX_PROMPT_BYTES
"""A longer line is none: it is passed over and never held in memory."""

_PIECE = 256 << 10


@dataclass(frozen=True, slots=True)
class Line:
    """``data`` is None for a line that is too long. ``read_share``: how much of a file is read by then."""

    number: int
    data: bytes | None
    read_share: float | None


class LineReader:
    """Iterates over the lines that are not blank. Reads no more than it is asked for, up to a buffer.

    Raises OSError for what cannot be read. `stop` ends it at the next chance, also where it waits.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        status = os.fstat(fd)
        self._is_file = stat.S_ISREG(status.st_mode)
        self._size = status.st_size if self._is_file else 0
        self._read = 0
        self._buffer = bytearray()
        self._wake_read, self._wake_write = os.pipe()
        self._is_stopped = False

    def __iter__(self) -> Iterator[Line]:
        number, is_too_long, searched = 0, False, 0
        buffer = self._buffer
        while piece := self._piece():
            buffer += piece
            start = 0
            while (end := buffer.find(b"\n", max(start, searched))) >= 0:
                number += 1
                raw = bytes(buffer[start:end])
                start, searched = end + 1, 0
                if is_too_long or len(raw) > MAX_LINE_BYTES:
                    yield Line(number, None, self._share(len(buffer) - start))
                elif raw.strip():
                    yield Line(number, raw, self._share(len(buffer) - start))
                if self._is_stopped:
                    return
                is_too_long = False
            del buffer[:start]
            if len(buffer) > MAX_LINE_BYTES:
                is_too_long = True
                buffer.clear()
            searched = len(buffer)
        if is_too_long:
            yield Line(number + 1, None, 1.0)
        elif buffer.strip() and not self._is_stopped:
            yield Line(number + 1, bytes(buffer), 1.0)

    def stop(self) -> None:
        """Give no more lines."""
        if not self._is_stopped:
            self._is_stopped = True
            os.write(self._wake_write, b"x")

    def close(self) -> None:
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _piece(self) -> bytes:
        """The next bytes; none at the end, or when it was stopped."""
        if self._is_stopped:
            return b""
        if self._is_file:
            piece = run_native(os.read, self._fd, _PIECE)
        else:
            ready, _, _ = select.select([self._fd, self._wake_read], [], [])
            piece = b"" if self._wake_read in ready else os.read(self._fd, _PIECE)
        self._read += len(piece)
        return piece

    def _share(self, unused: int) -> float | None:
        return (self._read - unused) / self._size if self._size else None
