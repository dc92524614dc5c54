"""What ends a script from outside: signals and limits of time. After a grace everything ends with it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dsh_actors.cli.stopping import Stopped
from dsh_actors.core.end_texts import deadline_text, warning_before
from dsh_actors.core.exit_codes import exit_code_of
from dsh_actors.core.options import GRACE_S
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import HarnessError
from dsh_actors.runtime.interrupts import MainInterrupts
from dsh_actors.runtime.tasks import TaskEnd, deadline, start_task
from dsh_actors.runtime.timers import Timer, after

if TYPE_CHECKING:
    from dsh_actors.harness import AgentRef, Harness

__all__ = ["ScriptStop", "TimeUp", "ending_of"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_WORDS_S = 0.5


class TimeUp(KeyboardInterrupt):
    """``--timeout`` or ``--deadline`` passed; ``reason`` is which."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"--{reason} passed")
        self.reason = reason


def ending_of(error: Stopped | TimeUp) -> tuple[str, str | None]:
    """The reason of the end, and the name of the signal."""
    return (error.reason, None) if isinstance(error, TimeUp) else ("interrupted", error.signal)


class ScriptStop:
    """Open while a script runs. The first reason to stop is raised in the script, as a KeyboardInterrupt.

    ``last_words`` gets a moment when the grace is over, or at a second signal, before the process ends.
    """

    def __init__(
        self, started: float, last_words: Callable[[Stopped | TimeUp], None], *, simple_exit: bool
    ) -> None:
        self.error: Stopped | TimeUp | None = None
        self.deadline: float | None = None
        """When everything must have ended (monotonic), once there is a reason to stop."""
        self.is_over = False
        """Whether the script has ended, so that nothing is raised in it any more."""
        self._started = started
        self._last_words = last_words
        self._simple_exit = simple_exit
        self._harness: Harness | None = None
        self._time_up: TimeUp | None = None
        self._timer: Timer | None = None
        heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._interrupts = MainInterrupts(heeded, self._on_signal)

    def watch(self, harness: Harness, timeout_s: float | None, deadline_s: float | None) -> None:
        """Begin to keep the limits of time; agents are told some time before a deadline."""
        self._harness = harness
        limits = [(timeout_s, "timeout"), (deadline_s, "deadline")]
        given = [(seconds, reason) for seconds, reason in limits if seconds is not None]
        if given:
            seconds, reason = min(given)
            self._time_up = TimeUp(reason)
            self._interrupts.alarm(self._started + seconds - time.monotonic())
        if deadline_s is not None:
            warn = warning_before(deadline_s)
            left = max(0.0, self._started + warn - time.monotonic())
            self._timer = after(left, lambda: self._warn(deadline_s - warn))

    def _warn(self, left_s: float) -> None:
        text = deadline_text(left_s)
        self._for_all(lambda ref: ref.inject(text) if ref.status().status == "running" else None)

    def close(self) -> None:
        """Signals do what they did before."""
        if self._timer is not None:
            self._timer.cancel()
        self._interrupts.close()

    def _on_signal(self, number: int) -> None:
        if number != signal.SIGALRM:
            name = signal.Signals(number).name
            if self.error is not None:
                self._leave(Stopped(name))
            self._stop(Stopped(name))
        elif self.error is not None:
            self._leave(self.error)
        elif self._time_up is not None:
            self._stop(self._time_up)

    def _stop(self, error: Stopped | TimeUp) -> None:
        self.error = error
        self.deadline = time.monotonic() + GRACE_S
        # A script that goes on all the same is ended by the alarm, whatever it does.
        self._interrupts.alarm(GRACE_S)
        cause: JsonObject = {"kind": "user"}
        if isinstance(error, TimeUp):
            cause = {"kind": "hook", "reason": error.reason}
        self._for_all(lambda ref: ref.cancel(cause))
        if not self.is_over:
            self._interrupts.throw(error)

    def _for_all(self, act: Callable[[AgentRef], object]) -> None:
        """Do something with every agent, in the background."""
        harness = self._harness
        if harness is None:
            return

        def work(_token: object) -> None:
            for ref in harness.agents():
                try:
                    act(ref)
                except HarnessError:
                    continue  # this one is gone; the others are still to hear

        start_task(work, _ignore, name="script/all-agents")

    def _leave(self, error: Stopped | TimeUp) -> None:
        reason, name = ending_of(error)
        try:
            with deadline(_LAST_WORDS_S):
                self._last_words(error)
        finally:
            os._exit(exit_code_of(reason, name, simple=self._simple_exit))


def _ignore(_end: TaskEnd[None]) -> None:
    """Whoever could not be reached is disposed of at the end."""
