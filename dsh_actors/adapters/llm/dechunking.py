"""Takes the frames off a chunked body, as much at once as has arrived.

The standard library reads each chunk by itself, which costs more than the event in it. Pure.
"""

from __future__ import annotations

import http.client

__all__ = ["MAX_LINE", "MAX_TRAILERS", "Dechunker"]

MAX_LINE = 65_536
MAX_TRAILERS = 100

_SIZE, _TRAILERS, _END, _AFTER_DATA = 0, -1, -2, -3


class Dechunker:
    """One body. ``has_ended`` is true once its last chunk and its trailers are there.

    ``is_faulty``: the next `feed` raises. Chunk extensions and trailers are dropped.
    """

    __slots__ = ("_left", "_rest", "_trailers", "is_faulty")

    def __init__(self) -> None:
        self.is_faulty = False
        self._rest = b""
        self._trailers = 0
        # What comes next: so many bytes of data, or one of the states.
        self._left = _SIZE

    @property
    def has_ended(self) -> bool:
        return self._left == _END

    def feed(self, raw: bytes) -> bytes:
        """Add what was read; the data that is now there, none where a chunk has just begun or ended.

        Data before a fault comes first, the fault with the next call.
        Raises `http.client.IncompleteRead` for a chunk without a size, `http.client.HTTPException` for
        lines and trailers without end.
        """
        if self._rest:
            raw = self._rest + raw
        data: list[bytes] = []
        at, end = 0, len(raw)
        while at < end and self._left != _END:
            if self._left > 0:
                piece = raw[at : at + self._left]
                data.append(piece)
                at += len(piece)
                self._left = self._left - len(piece) or _AFTER_DATA
            elif self._left == _AFTER_DATA:
                if end - at < 2:
                    break
                at += 2
                self._left = _SIZE
            else:
                line_end = raw.find(b"\n", at)
                if line_end < 0 and end - at <= MAX_LINE:
                    break
                try:
                    self._line(raw[at:line_end] if line_end >= 0 else None)
                except http.client.HTTPException:
                    self.is_faulty = True
                    if data:
                        break
                    raise
                at = line_end + 1
        self._rest = raw[at:] if at < end else b""
        return data[0] if len(data) == 1 else b"".join(data)

    def _line(self, line: bytes | None) -> None:
        """Take a line that is no data, None for one without end."""
        if line is None or len(line) > MAX_LINE:
            raise http.client.LineTooLong("chunk size or trailer")
        if self._left == _SIZE:
            size = _size_of(line)
            if size < 0:
                raise http.client.IncompleteRead(b"")
            self._left = size or _TRAILERS
            return
        self._trailers += 1
        if line.strip() == b"":
            self._left = _END
        elif self._trailers > MAX_TRAILERS:
            raise http.client.HTTPException(f"got more than {MAX_TRAILERS} trailers")


def _size_of(line: bytes) -> int:
    """The size that a chunk's first line gives, negative where it gives none."""
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        return -1
