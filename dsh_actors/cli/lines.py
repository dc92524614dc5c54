"""Text and JSON as lines for programs, files and terminals. Light: every command imports it."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterable
from typing import Any

__all__ = ["for_terminal", "json_line", "write_atomically"]

_TERMINAL_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def json_line(value: Any) -> bytes:
    """One compact line of UTF-8, with every character escaped that a terminal would obey."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if "\x7f" in text or not text.isascii():
        text = _TERMINAL_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text.encode("utf-8", "replace") + b"\n"


def for_terminal(text: str) -> str:
    """``text`` with control characters as visible escapes: a terminal would obey them."""
    return _TERMINAL_CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def write_atomically(path: str, data: bytes | Iterable[bytes]) -> None:
    """Put ``data`` in the place of the file at once: a reader sees the old or the new, never a part.

    A path that exists and is no regular file (``/dev/stderr``, a pipe) is written to; only the calling
    greenlet waits for its reader, so that signals and deadlines can end that. Raises OSError.
    """
    pieces = (data,) if isinstance(data, bytes) else data
    if os.path.lexists(path) and not os.path.isfile(path):
        _write_special(path, pieces)
        return
    target_path = os.path.realpath(path)
    handle, temporary = tempfile.mkstemp(prefix=".dsh-", dir=os.path.dirname(target_path) or ".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        os.replace(temporary, target_path)
    except BaseException:
        # Also on a signal: no half-written file stays behind.
        os.unlink(temporary)
        raise


def _write_special(path: str, pieces: Iterable[bytes]) -> None:
    from dsh_actors.runtime.files import run_native  # few commands need it

    descriptor = run_native(os.open, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[run_native(os.write, descriptor, left) :]
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
