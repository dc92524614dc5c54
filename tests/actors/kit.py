"""What the tests of the actors share."""

from __future__ import annotations

import time
from collections.abc import Callable

from gevent.event import Event as Signal

from dsh_actors.core.events import Event


def until(condition: Callable[[], bool]) -> None:
    """Let the others run until it is so, native threads too."""
    ends, never = time.monotonic() + 10, Signal()
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        never.wait(0.001)


def notes(first: int, below: int) -> tuple[Event, ...]:
    """Events that nothing depends on."""
    return tuple(Event("run/note", seq, 1, {}, ignorable=True) for seq in range(first, below))
