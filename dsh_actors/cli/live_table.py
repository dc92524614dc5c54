"""Lines that are redrawn in place on a terminal, by a handful of escape codes, and leave it as it was."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Sequence
from types import TracebackType

from dsh_actors.cli.failures import one_line

__all__ = ["LiveScreen", "fit", "paint"]

# The screen beside the one with the history; the cursor is hidden, and lines are cut and not wrapped.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
_PAINTS = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class LiveScreen:
    """The whole terminal for as long as it is open, also when the end is an exception."""

    def __enter__(self) -> LiveScreen:
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write(_LEAVE)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines as they are now; something usable where the terminal does not tell."""
        try:
            found = os.get_terminal_size(1)
        except OSError:
            return 80, 24
        return found.columns or 80, found.lines or 24

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines and nothing else. They must fit: see `fit`."""
        body = "\r\n".join(line + _END_OF_LINE for line in lines)
        self._write(_HOME + body + _END_OF_SCREEN)

    def _write(self, text: str) -> None:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()


def fit(text: str, width: int, *, right: bool = False) -> str:
    """``text`` on exactly ``width`` columns: cut with an ellipsis, or filled with blanks.

    The blanks stand before it if it goes to the ``right``. What a terminal would obey becomes visible.
    """
    text = one_line(text)
    if not text.isascii():
        return _fit_wide(text, width, right)
    if len(text) > width:
        return text[: width - 1] + "…" if width > 0 else ""
    return text.rjust(width) if right else text.ljust(width)


def _fit_wide(text: str, width: int, right: bool) -> str:
    widths = [_columns(character) for character in text]
    if sum(widths) > width:
        used, kept = 0, 0
        for each in widths:
            if used + each > width - 1:
                break
            used, kept = used + each, kept + 1
        return (text[:kept] + "…" + " " * (width - 1 - used)) if width > 0 else ""
    blanks = " " * (width - sum(widths))
    return blanks + text if right else text + blanks


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def paint(text: str, *names: str) -> str:
    """``text`` in colours, where the user has nothing against them."""
    if not names or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{';'.join(_PAINTS[name] for name in names)}m{text}\x1b[0m"
