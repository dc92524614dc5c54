"""A live line for a script: agents at work and done, steps, tokens, cost and time, on standard error."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import Any

from dsh_actors.cli.streams import STREAMS
from dsh_actors.core.budget import Budget
from dsh_actors.core.scope import Scope
from dsh_actors.runtime.output import Writer
from dsh_actors.runtime.timers import Timer, after

__all__ = ["AgentCounts", "ScriptProgress"]

_REFRESH_S = 0.2


class AgentCounts:
    """How many agents of a harness work and how many are gone, sub-agents included."""

    def __init__(self, scope: Scope) -> None:
        self._running: set[str] = set()
        self.started = self.done = 0
        scope.observe("agent/created", self._on_created)
        scope.observe("agent/status", self._on_status)
        scope.observe("agent/disposed", self._on_disposed)

    @property
    def running(self) -> int:
        return len(self._running)

    def _on_created(self, _payload: Mapping[str, Any]) -> None:
        self.started += 1

    def _on_status(self, payload: Mapping[str, Any]) -> None:
        if payload["status"] == "running":
            self._running.add(payload["session"])
        else:
            self._running.discard(payload["session"])

    def _on_disposed(self, payload: Mapping[str, Any]) -> None:
        self._running.discard(payload["session"])
        self.done += 1


class ScriptProgress:
    """Overwrites itself on a terminal; elsewhere there is a line whenever an agent begins or ends."""

    def __init__(self, counts: AgentCounts, pool: Budget, started: float, wanted: bool | None) -> None:
        self._counts = counts
        self._pool = pool
        self._started = started
        self._is_live = STREAMS.stderr_is_terminal()
        self._is_on = self._is_live if wanted is None else wanted
        self._writer = Writer(2)
        self._width = 0
        self._last = (0, 0)
        self._timer: Timer | None = None
        if self._is_on:
            self._tick()

    def _tick(self) -> None:
        counts = (self._counts.running, self._counts.done)
        if self._is_live:
            text = self._text()[: max(10, shutil.get_terminal_size().columns) - 1]
            self._show("\r" + text + " " * (self._width - len(text)))
            self._width = len(text)
        elif counts != self._last:
            self._last = counts
            self._show(f"dsh: {self._text()}\n")
        self._timer = after(_REFRESH_S, self._tick)

    def _text(self) -> str:
        pool, seconds = self._pool, int(time.monotonic() - self._started)
        parts = [f"{self._counts.running} running", f"{self._counts.done} done", f"{pool.steps} steps"]
        parts.append(f"{pool.tokens:,} tokens")
        if pool.cost:
            parts.append(f"cost {pool.cost:.4f}")
        return " | ".join([*parts, f"{seconds // 60}:{seconds % 60:02d}"])

    def _show(self, text: str) -> None:
        # A reader that takes nothing is not waited for: what it missed is old by then.
        if not self._writer.queued_bytes:
            self._writer.write(text.encode("utf-8", "replace"))

    def close(self) -> None:
        """Stop, and leave the terminal's line as it was."""
        if self._timer is not None:
            self._timer.cancel()
        if self._is_on and not self._is_live and self._last != (self._counts.running, self._counts.done):
            self._show(f"dsh: {self._text()}\n")
        if self._is_live and self._width:
            self._show("\r" + " " * self._width + "\r")
        self._writer.flush(0.1)
