"""Signals of a run: the first asks for a graceful end, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from dsh_actors.core.exit_codes import exit_code_of
from dsh_actors.runtime.signals import on_signals

__all__ = ["GRACE_S", "SignalWatch"]

GRACE_S = 5.5
"""From the first signal to the end: children have 5 s after TERM, the rest is for the last words."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalWatch:
    """Listens for INT, TERM and HUP while it is open.

    ``on_first`` is called in a greenlet of its own. A second signal leaves without another word; the
    guard process ends the children that are left.
    """

    def __init__(self, *, simple_exit: bool = False) -> None:
        self.name: str | None = None
        self.deadline: float | None = None
        self.on_first: Callable[[], None] | None = None
        self._simple_exit = simple_exit
        # A caller that had a signal ignored (nohup) meant it.
        heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._undo = on_signals(dict.fromkeys(heeded, self._on_signal))

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self.name is not None:
            os._exit(exit_code_of("interrupted", name, simple=self._simple_exit))
        self.name = name
        self.deadline = time.monotonic() + GRACE_S
        if self.on_first is not None:
            self.on_first()

    def close(self) -> None:
        self._undo()
