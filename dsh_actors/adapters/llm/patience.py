"""The clocks of one attempt, kept apart: connecting, the first event, the queue, silence, and the whole.

At any time one of them is the next to run out; the gateway's watchdog is set to that one.
"""

from __future__ import annotations

import time

from dsh_actors.adapters.llm.settings import ProviderConfig
from dsh_actors.core.chunks import Failure
from dsh_actors.ports import StreamControl

__all__ = ["FINISH_GRACE_S", "Patience"]

FINISH_GRACE_S = 5.0
"""How long to wait for usage and the stream's last event once the reply itself is complete."""


class Patience:
    """Made when an attempt begins; told what happens to it. ``place`` is named in the failure.

    Comments show that a request is queued and not forgotten: each allows another
    ``first_event_timeout_s``, up to ``queue_timeout_s`` after the request. Later only events count.
    """

    def __init__(self, config: ProviderConfig, control: StreamControl, place: str) -> None:
        self._config = config
        self._control = control
        self._place = place
        self._queue_end: float | None = None
        total = config.total_timeout_s
        self._end = None if total is None else time.monotonic() + total
        self._text = ""
        self._idle_text = f"silence of {config.idle_timeout_s:g} s inside the reply (idle_timeout_s)"
        self._expect(
            config.connect_timeout_s,
            f"no connection within {config.connect_timeout_s:g} s (connect_timeout_s)",
        )

    def connected(self) -> None:
        """There is a connection: sending begins, and waiting. Counts once."""
        if self._queue_end is None:
            seconds = self._config.first_event_timeout_s
            self._queue_end = time.monotonic() + self._config.queue_timeout_s
            self._expect(seconds, f"no answer within {seconds:g} s (first_event_timeout_s)")

    def queued(self) -> None:
        """Something came, but no event yet."""
        seconds = self._config.first_event_timeout_s
        left = seconds if self._queue_end is None else self._queue_end - time.monotonic()
        if left < seconds:
            limit = self._config.queue_timeout_s
            self._expect(left, f"still in the provider's queue after {limit:g} s (queue_timeout_s)")
        else:
            self._expect(seconds, f"no answer within {seconds:g} s (first_event_timeout_s)")

    def moved(self) -> None:
        """An event came, and more must follow."""
        self._expect(self._config.idle_timeout_s, self._idle_text)

    def complete(self) -> None:
        """The reply is there; only its formal end is missing."""
        self._expect(FINISH_GRACE_S, "the reply has no end")

    def failure(self) -> Failure:
        """What to say where the attempt ran out of time."""
        return Failure(f"{self._text} ({self._place})", "TIMEOUT")

    def _expect(self, seconds: float, text: str) -> None:
        if self._end is not None:
            left = self._end - time.monotonic()
            if left < seconds:
                seconds = max(left, 0.0)
                text = f"not complete within {self._config.total_timeout_s:g} s (total_timeout_s)"
        self._text = text
        self._control.expect_within(seconds, text)
