"""Branching a session: the prefix up to a boundary becomes the seed of a new one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import UsageError

__all__ = ["plan_fork"]


def plan_fork(
    header: SessionHeader, events: Iterable[Event], child_id: SessionId, at_seq: int | None, now_ms: int
) -> tuple[SessionHeader, Iterator[Event]]:
    """The child's header and its first events: the parent's up to ``at_seq`` (inclusive), then the marker.

    ``events`` is gone through twice. Raises `UsageError` with the code ``INVALID_BOUNDARY`` or ``OPEN_TURN``.
    """
    if at_seq is not None and at_seq < 0:
        raise _invalid(at_seq)
    length, open_turn, last = 0, None, None
    for event in events:
        if at_seq is not None and event.seq > at_seq:
            break
        length, last = length + 1, event
        if event.type == "turn/start":
            open_turn = event.data.get("turn")
        elif event.type == "turn/end":
            open_turn = None
    if at_seq is not None and length != at_seq + 1:
        raise _invalid(at_seq)
    if open_turn is not None:
        raise UsageError(
            f"event {length - 1} lies inside turn {open_turn}, which has not ended there",
            code="OPEN_TURN",
            hint="choose the seq of a turn/end",
        )
    child = SessionHeader(
        child_id, now_ms, header.cwd, header.id, length, None, 0, header.agent_preset, header.version
    )
    return child, _seed(events, length, last, now_ms)


def _seed(events: Iterable[Event], length: int, last: Event | None, now_ms: int) -> Iterator[Event]:
    for event in events:
        if event.seq >= length:
            break
        yield event
    if last is None or last.type != "session/end-seed":
        yield Event("session/end-seed", length, now_ms, {})


def _invalid(at_seq: int) -> UsageError:
    return UsageError(f"there is no event {at_seq} to branch at", code="INVALID_BOUNDARY")
