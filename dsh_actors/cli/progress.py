"""A live line on a terminal and signs of life for machines, both by timer and never in the way."""

from __future__ import annotations

import shutil
import time

from dsh_actors.cli.options import RunArguments
from dsh_actors.cli.render import RunOutput
from dsh_actors.cli.streams import STREAMS
from dsh_actors.core.outcome import OutcomeFold
from dsh_actors.runtime.timers import Timer, after

__all__ = ["Heartbeat", "Progress"]

_REFRESH_S = 0.2


class Heartbeat:
    """A line every ``interval_s`` seconds: an object under ``--json``, else text on standard error."""

    def __init__(self, output: RunOutput, fold: OutcomeFold, arguments: RunArguments, started: float) -> None:
        self._output = output
        self._fold = fold
        self._interval_s = arguments.heartbeat
        self._is_json = arguments.json_lines
        self._started = started
        self._timer: Timer | None = None
        self._arm()

    def _arm(self) -> None:
        if self._interval_s is not None:
            self._timer = after(self._interval_s, self._beat)

    def _beat(self) -> None:
        elapsed = round(time.monotonic() - self._started, 3)
        step, tool = self._fold.steps, self._fold.tool
        if self._is_json:
            beat = {"type": "heartbeat", "elapsed_s": elapsed, "step": step, "tool": tool}
            self._output.passing_line(beat)
        else:
            doing = f", {tool}" if tool else ""
            self._output.pulse(f"dsh: running for {elapsed:.0f} s, step {step}{doing}")
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Progress:
    """Step, tool, tokens, share of the context window, cost and time, on one line of standard error.

    It is gone when the run ends. It uses no escape codes: the line is overwritten by a carriage return
    and blanks. Where standard error is no terminal, each new step or tool gets a line of its own.
    """

    def __init__(self, output: RunOutput, fold: OutcomeFold, arguments: RunArguments, started: float) -> None:
        self._output = output
        self._fold = fold
        self._started = started
        self._is_live = STREAMS.stderr_is_terminal()
        wanted = arguments.progress
        self._is_on = (self._is_live and not arguments.json_lines) if wanted is None else wanted
        self._width = 0
        self._last: tuple[int, str | None] | None = None
        self._timer: Timer | None = None
        if self._is_on:
            self._tick()

    def _tick(self) -> None:
        if self._is_live:
            self._redraw()
        elif (self._fold.steps, self._fold.tool) != self._last and self._fold.steps:
            self._last = (self._fold.steps, self._fold.tool)
            self._output.pulse(f"dsh: {self._text()}")
        self._timer = after(_REFRESH_S, self._tick)

    def _redraw(self) -> None:
        columns = max(10, shutil.get_terminal_size().columns)
        text = self._text()[: columns - 1]
        self._output.show("\r" + text + " " * (self._width - len(text)))
        self._width = len(text)

    def _text(self) -> str:
        fold, tokens = self._fold, self._fold.tokens
        total = tokens.input + tokens.cache_read + tokens.cache_write + tokens.output
        seconds = int(time.monotonic() - self._started)
        parts = [f"step {fold.steps}", fold.tool or "model", f"{total:,} tokens"]
        if fold.context is not None and fold.context_window is not None:
            parts.append(f"context {100 * fold.context // fold.context_window}%")
        if fold.cost is not None:
            parts.append(f"cost {fold.cost:.4f}")
        return " | ".join([*parts, f"{seconds // 60}:{seconds % 60:02d}"])

    def close(self) -> None:
        """Stop, and leave the terminal's line as it was."""
        if self._timer is not None:
            self._timer.cancel()
        if self._is_live and self._width:
            self._output.show("\r" + " " * self._width + "\r")
