"""Forking a session: where it may be cut, and the log and header of the child.

The child begins with a copy of its parent's events, closed by one marker, and goes on by itself. What
its parent had pending is not inherited (`core/state.py` folds no inbox change of the seed).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import UsageError

__all__ = ["END_SEED", "Seed", "child_header", "find_seed", "plan_fork", "seed_events"]

END_SEED = "session/end-seed"


@dataclass(frozen=True, slots=True)
class Seed:
    """What a child inherits: the first ``length`` events. ``marked``: the last is an end-seed marker."""

    length: int
    marked: bool = False
    last_time: int = 0


def find_seed(session_id: SessionId, events: Iterable[Event], at_seq: int | None = None) -> Seed:
    """The seed that ends with event ``at_seq``, or with the last one. Reads no further than it must.

    Raises `UsageError` with code ``INVALID_BOUNDARY`` or ``OPEN_TURN``.
    """
    if at_seq is not None and (type(at_seq) is not int or at_seq < 0):
        raise _invalid(f"{at_seq!r} is no place in session {session_id}")
    length, last_closed, open_since = 0, None, None
    last: Event | None = None
    rest = iter(events)
    for last in rest if at_seq is None else islice(rest, min(at_seq + 1, sys.maxsize)):
        length = last.seq + 1
        if last.type == "turn/start":
            open_since = last.seq
        elif last.type == "turn/end":
            open_since, last_closed = None, last.seq
    if at_seq is not None and length <= at_seq:
        raise _invalid(f"session {session_id} has no event {at_seq}; it has {length}")
    if open_since is not None:
        where = f"session {session_id}@{length - 1}"
        end = next((event for event in rest if event.type in ("turn/start", "turn/end")), None)
        if end is not None and end.type == "turn/end":
            hint = f"fork {session_id}@{end.seq}, where that turn ended"
        else:
            hint = "resume it first, which closes the turn"
        if last_closed is not None:
            hint += f", or {session_id}@{last_closed}, where the turn before it ended"
        message = f"cannot fork {where}: it is inside the turn that began at event {open_since}"
        raise UsageError(message, code="OPEN_TURN", hint=hint)
    if last is None:
        return Seed(0)
    return Seed(length, last.type == END_SEED, last.time)


def child_header(parent: SessionHeader, seed: Seed, child_id: SessionId, now_ms: int) -> SessionHeader:
    """A session of its own with its lineage: it works where its parent did, with the same preset."""
    return SessionHeader(
        child_id,
        now_ms,
        parent.cwd,
        parent_session=parent.id,
        seed_length=seed.length,
        agent_preset=parent.agent_preset,
    )


def seed_events(seed: Seed, events: Iterable[Event], now_ms: int) -> Iterator[Event]:
    """The child's first events: the inherited ones and the marker, unless they end with one."""
    yield from islice(events, seed.length)
    if not seed.marked:
        yield Event(END_SEED, seed.length, max(now_ms, seed.last_time), {})


def plan_fork(
    header: SessionHeader, events: Iterable[Event], child_id: SessionId, at_seq: int | None, now_ms: int
) -> tuple[SessionHeader, Iterator[Event]]:
    """The header and the first events of a child of the session ``header`` with the log ``events``.

    ``events`` is read twice where it can be; of a bare iterator the seed is kept in memory. Raises
    what `find_seed` raises, before anything is made.
    """
    if isinstance(events, Iterator):
        # One event past the boundary is never needed, so a cut copy stays as small as the seed.
        wanted = None if type(at_seq) is not int or at_seq < 0 else at_seq + 1
        events = list(islice(events, wanted))
    seed = find_seed(header.id, events, at_seq)
    return child_header(header, seed, child_id, now_ms), seed_events(seed, events, now_ms)


def _invalid(message: str) -> UsageError:
    return UsageError(message, code="INVALID_BOUNDARY")
