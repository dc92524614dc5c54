"""Signals of a run: the first asks for a graceful end, the second ends the process at once.

Outside of a run a signal is an exception, so that whatever is half done is cleaned up.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dsh_actors.core.exit_codes import describe_error, exit_code_of
from dsh_actors.core.options import GRACE_S
from dsh_actors.errors import HarnessError
from dsh_actors.runtime.signals import on_signals, raise_in_main
from dsh_actors.runtime.tasks import deadline

if TYPE_CHECKING:
    from dsh_actors.harness import Harness

__all__ = ["CLOSE_S", "SignalWatch", "Stopped", "close_harness", "raising_signals"]

CLOSE_S = 5.0
"""How long a harness may take to end where nobody is in a hurry."""

_LAST_WORDS_S = 0.5
"""How long a forced end may take."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalWatch:
    """Listens for INT, TERM and HUP while it is open.

    ``on_first`` is called in a greenlet of its own. A second signal gives ``on_second`` a moment for what
    can be written without waiting, and leaves; the guard process ends the children that are left.
    """

    def __init__(self, *, simple_exit: bool = False) -> None:
        self.name: str | None = None
        self.deadline: float | None = None
        self.on_first: Callable[[], None] | None = None
        self.on_second: Callable[[], None] | None = None
        self._is_leaving = False
        self._simple_exit = simple_exit
        # A caller that had a signal ignored (nohup) meant it.
        heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._undo = on_signals(dict.fromkeys(heeded, self._on_signal))

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self.name is not None:
            self._leave(name)
        self.name = name
        self.deadline = time.monotonic() + GRACE_S
        if self.on_first is not None:
            self.on_first()

    def _leave(self, name: str) -> None:
        try:
            if self.on_second is not None and not self._is_leaving:
                self._is_leaving = True
                with deadline(_LAST_WORDS_S):
                    self.on_second()
        finally:
            os._exit(exit_code_of("interrupted", name, simple=self._simple_exit))

    def close(self) -> None:
        self._undo()


class Stopped(KeyboardInterrupt):
    """A signal as an exception; ``signal`` is its name."""

    def __init__(self, signal: str) -> None:
        super().__init__(signal)
        self.signal = signal


@contextmanager
def raising_signals() -> Iterator[None]:
    """INT, TERM and HUP raise `Stopped` in the main greenlet, unless the caller had them ignored."""
    previous = {number: signal.getsignal(number) for number in _SIGNALS}
    heeded = [number for number, handler in previous.items() if handler not in (signal.SIG_IGN, None)]
    for number in heeded:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, previous[number])


def _raise(number: int, _frame: object) -> None:
    raise_in_main(Stopped(signal.Signals(number).name))


def close_harness(harness: Harness, stop_at: float | None, usual_s: float) -> str | None:
    """End a harness in ``usual_s`` seconds, or in what a stop at the monotonic ``stop_at`` leaves of them.

    Returns what went wrong, which no longer changes the outcome.
    """
    left = usual_s if stop_at is None else max(0.5, stop_at - time.monotonic())
    try:
        with deadline(left + 0.5):
            harness.close(left)
    except HarnessError as error:
        return f"closing: {describe_error(error)}"
    return None
