"""What a batch shows on standard error while it runs: a table on a terminal, a line a result elsewhere.

It is drawn by timer, never in the way: what the stream does not take at once is left out.
"""

from __future__ import annotations

import os
import shutil
import time
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dsh_actors.cli.failures import one_line
from dsh_actors.cli.streams import STREAMS
from dsh_actors.core.batch import seconds_left
from dsh_actors.runtime.output import Writer
from dsh_actors.runtime.timers import Timer, after

if TYPE_CHECKING:
    from dsh_actors.cli.batch_run import Batch, RunningTask
    from dsh_actors.cli.batch_tasks import Task
    from dsh_actors.core.outcome import RunEnd

__all__ = ["BatchDisplay", "clock", "fitted", "table"]

_REFRESH_S = 0.25
_MAX_ROWS = 20
_ID_WIDTH = 24
_GREEN, _RED, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[0m"

Row = tuple[str, int, str, int, float]
"""Task, steps, what it is doing, tokens, seconds."""


class BatchDisplay:
    """``wanted`` None: a table on a terminal that ``has_room`` for it, nothing elsewhere.

    `close` leaves the terminal as it was.
    """

    def __init__(self, batch: Batch, wanted: bool | None, *, has_room: bool = True) -> None:
        self._batch = batch
        self._began = time.monotonic()
        self._is_live = STREAMS.stderr_is_terminal() and has_room
        self._is_on = self._is_live if wanted is None else wanted
        self._has_colour = not os.environ.get("NO_COLOR")
        self._stderr = Writer(2)
        self._height = 0
        self._timer: Timer | None = None
        if self._is_on and self._is_live:
            self._tick()
        elif self._is_on:
            batch.on_end = self._tell

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._show(self._home())
        self._stderr.flush(_REFRESH_S)

    def _tick(self) -> None:
        size = shutil.get_terminal_size()
        width, rows = max(20, size.columns) - 1, max(1, min(_MAX_ROWS, size.lines - 3))
        lines = table([_row(entry) for entry in self._batch.running.values()], width, rows)
        lines.append(self._coloured(fitted(self._summary(), width)))
        home, self._height = self._home(), len(lines)
        self._show(home + "\n".join(lines))
        self._timer = after(_REFRESH_S, self._tick)

    def _home(self) -> str:
        """To the beginning of what was drawn, which goes."""
        up = f"\x1b[{self._height - 1}A" if self._height > 1 else ""
        return f"\r{up}\x1b[J" if self._height else ""

    def _summary(self) -> str:
        batch, tally = self._batch, self._batch.tally
        elapsed = time.monotonic() - self._began
        parts = [f"{tally.done} done", f"{tally.failed} failed", f"{len(batch.running)} running"]
        skipped = tally.skipped.total()
        if skipped:
            parts.append(f"{skipped} skipped")
        parts.append(clock(elapsed))
        finished = tally.counts.total()
        share = None if batch.read_share is None else batch.read_share * (1 - _ratio(skipped, finished))
        left = seconds_left(elapsed, share, finished, len(batch.running))
        if left is not None:
            parts.append(f"about {clock(left)} left")
        return " | ".join(parts)

    def _coloured(self, text: str) -> str:
        if not self._has_colour:
            return text
        done, failed = f"{self._batch.tally.done} done", f"{self._batch.tally.failed} failed"
        text = text.replace(done, f"{_GREEN}{done}{_PLAIN}", 1)
        return text.replace(failed, f"{_RED}{failed}{_PLAIN}", 1) if self._batch.tally.failed else text

    def _tell(self, task: Task, end: RunEnd) -> None:
        name = one_line(task.id or f"line {task.line}")
        self._show(f"dsh: {name} {end.status} | {self._summary()}\n")

    def _show(self, text: str) -> None:
        if not self._stderr.queued_bytes:
            self._stderr.write(text.encode("utf-8", "replace"))


def table(rows: Sequence[Row], width: int, height: int) -> list[str]:
    """At most ``height`` lines of at most ``width`` columns; what is left out is counted."""
    shown = rows if len(rows) <= height else rows[: height - 1]
    lines = []
    for name, steps, doing, tokens, seconds in shown:
        cells = f"{fitted(one_line(name), _ID_WIDTH, pad=True)}  step {steps:<4} {doing:<12}"
        lines.append(fitted(f"{cells} {tokens:>11,} tokens  {clock(seconds):>7}", width))
    if len(shown) < len(rows):
        lines.append(fitted(f"… and {len(rows) - len(shown)} more", width))
    return lines


def fitted(text: str, width: int, *, pad: bool = False) -> str:
    """``text`` cut to ``width`` columns of a terminal, on which some characters are two wide."""
    used = 0
    for position, character in enumerate(text):
        columns = _columns(character)
        if used + columns > width:
            return text[:position] + " " * (width - used if pad else 0)
        used += columns
    return text + " " * (width - used if pad else 0)


def clock(seconds: float) -> str:
    """``3:07`` or ``1:03:07``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _row(entry: RunningTask) -> Row:
    name = entry.task.id or f"line {entry.task.line}"
    seconds = time.monotonic() - entry.started
    if entry.run is None:
        return name, 0, "starting", 0, seconds
    fold = entry.run.fold
    tokens = fold.tokens
    total = tokens.input + tokens.cache_read + tokens.cache_write + tokens.output
    return name, fold.steps, fold.tool or "model", total, seconds


def _ratio(part: int, rest: int) -> float:
    return part / (part + rest) if part + rest else 0.0
