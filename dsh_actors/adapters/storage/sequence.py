"""What every session storage checks before it stores a batch."""

from __future__ import annotations

from collections.abc import Sequence

from dsh_actors.core.events import Event
from dsh_actors.errors import EventRefused

__all__ = ["require_next"]


def require_next(events: Sequence[Event], next_seq: int) -> None:
    """Raises `EventRefused` unless the events are numbered from ``next_seq`` without a gap."""
    if [event.seq for event in events] == list(range(next_seq, next_seq + len(events))):
        return
    for due, event in enumerate(events, next_seq):
        if event.seq != due:
            raise EventRefused(f"{event.type} event {event.seq} stands where event {due} is due")
