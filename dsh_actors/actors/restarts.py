"""How often an actor may be started anew."""

from __future__ import annotations

__all__ = ["MAX_RESTARTS", "RESTART_WINDOW_S", "Restarts"]

MAX_RESTARTS = 3
RESTART_WINDOW_S = 60.0
"""More than `MAX_RESTARTS` within this time, and the actor is given up."""


class Restarts:
    """Of one actor, in all its incarnations."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        # A list, for thousands of agents: it is short.
        self._times: list[float] = []

    def may_restart(self, now: float) -> bool:
        """Note that it has died; whether it may come back. ``now`` is on the monotonic clock."""
        times = self._times
        while times and now - times[0] > RESTART_WINDOW_S:
            del times[0]
        times.append(now)
        return len(times) <= MAX_RESTARTS
