"""What the bytes of a text file say about its encoding, as far as a tool must know before it writes."""

from __future__ import annotations

__all__ = ["BOM", "is_utf8", "wide_encoding"]

BOM = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8."""

# The longer first: a mark of UTF-32 begins like one of UTF-16.
_WIDE = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


def wide_encoding(start: bytes) -> str | None:
    """``UTF-16`` or ``UTF-32`` where a file that begins so says it is that by its byte order mark."""
    return next((name for mark, name in _WIDE if start.startswith(mark)), None)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
