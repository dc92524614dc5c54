"""A sub-agent that is a process of its own: ``dsh run --json``, or a command that writes the same lines.

Knows nothing of agents: a prompt goes in by standard input, events and an outcome come out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dsh_actors.core.bounded_output import BoundedOutput, exit_words, visible
from dsh_actors.core.outcome import RunEnd
from dsh_actors.core.run_lines import RunLines, run_end_of
from dsh_actors.core.text import JsonObject
from dsh_actors.ports import CancelToken, ProcessResult, ProcessRunner
from dsh_actors.runtime.cancel import CancelSource
from dsh_actors.runtime.timers import Timer, after

__all__ = ["ChildResult", "OutsideRequest", "run_child"]

LINGER_S = 5.0
"""How long a child may take to exit once it has told its outcome."""
_WORDS_BYTES = 2_000
"""What is kept of its standard error, to say why it failed."""


@dataclass(frozen=True, slots=True)
class OutsideRequest:
    """What to run: ``argv`` in ``cwd`` with ``env`` and nothing else; ``prompt`` is its standard input.

    ``idle_s`` is how long it may write nothing. ``on_event`` hears every event, in the hub: quickly.
    """

    name: str
    session_id: str
    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(hash=False, repr=False)
    prompt: str = field(repr=False)
    idle_s: float
    on_event: Callable[[JsonObject], None] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ChildResult:
    """``end`` is the outcome as the child told it. Without one ``problem`` says why, and what to call it."""

    end: RunEnd | None
    reason: str = "completed"
    problem: str = ""


def run_child(processes: ProcessRunner, request: OutsideRequest, cancel: CancelToken) -> ChildResult:
    """Run it to its end, with everything that it starts. When ``cancel`` is thrown its group gets TERM, and
    may still tell its outcome.

    Raises `ToolError` where it cannot be started.
    """
    return _Child(request).run(processes, cancel)


class _Child:
    def __init__(self, request: OutsideRequest) -> None:
        self._request = request
        self._lines = RunLines()
        self._words = BoundedOutput(_WORDS_BYTES)
        self._stopper = CancelSource()
        self._timer: Timer | None = None
        self._heard_at = time.monotonic()

    def run(self, processes: ProcessRunner, cancel: CancelToken) -> ChildResult:
        request = self._request
        process = processes.start(
            request.argv,
            cwd=request.cwd,
            env=request.env,
            on_output=self._on_output,
            on_errors=self._words.add,
            stdin=request.prompt.encode("utf-8", "surrogateescape"),
        )
        self._timer = after(request.idle_s, self._look)
        undo = cancel.on_cancel(lambda: self._stopper.cancel("stopped"))
        try:
            result = process.wait(timeout_s=float("inf"), cancel=self._stopper.token)
        finally:
            undo()
            self._timer.cancel()
        self._lines.close()
        return self._result(result)

    def _on_output(self, piece: bytes) -> None:
        self._heard_at = time.monotonic()
        was_over = self._lines.is_over
        for event in self._lines.feed(piece):
            self._request.on_event(event)
        if self._lines.fault is not None:
            self._stopper.cancel("fault")
        elif self._lines.end is not None and not was_over and self._timer is not None:
            self._timer.cancel()
            self._timer = after(LINGER_S, lambda: self._stopper.cancel("lingering"))

    def _look(self) -> None:
        """Whether it has written anything lately."""
        left = self._heard_at + self._request.idle_s - time.monotonic()
        if left <= 0:
            self._stopper.cancel("silent")
        else:
            self._timer = after(left, self._look)

    def _result(self, result: ProcessResult) -> ChildResult:
        name, lines, why = self._request.name, self._lines, self._stopper.token.reason
        if lines.end is not None:
            try:
                return ChildResult(run_end_of(lines.end, self._request.session_id))
            except ValueError as error:
                return ChildResult(None, "internal", f"{name}: {error}")
        if lines.fault is not None:
            return ChildResult(None, "internal", f"{name}: {lines.fault}")
        if why == "silent":
            problem = f"{name} wrote nothing for {self._request.idle_s:g} s and was ended"
            return ChildResult(None, "timeout", problem)
        if why is not None:
            return ChildResult(None, "interrupted", f"{name} was stopped and told no outcome")
        text, _ = visible(*self._words.parts(), _WORDS_BYTES)
        problem = f"{name} ended without an outcome: {exit_words(result.exit_code or 0)}"
        return ChildResult(None, "internal", f"{problem}; {text.strip()}" if text.strip() else problem)
