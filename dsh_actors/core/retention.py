"""Which stored sessions have had their time: a pure choice from ages, sizes and ranks.

A sub-agent's session belongs to its parent's: both stay or both go, and their age is that of the
one changed last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsh_actors.core.ids import SessionId

__all__ = ["KeptSession", "Retention", "choose"]


@dataclass(frozen=True, slots=True)
class KeptSession:
    """``parent`` is set for a sub-agent's session. ``updated``: ms since the epoch; ``size``: bytes."""

    id: SessionId
    parent: SessionId | None
    updated: int
    size: int
    status: str


@dataclass(frozen=True, slots=True)
class Retention:
    """``older_than_ms``: remove what did not change for so long. ``max_bytes``: then remove the oldest
    until the rest is no larger. ``keep``: the newest so many stay in any case; given alone, only they do.
    """

    older_than_ms: int | None = None
    keep: int | None = None
    max_bytes: int | None = None


def choose(sessions: Sequence[KeptSession], rule: Retention, now_ms: int) -> list[KeptSession]:
    """What to remove, the oldest first and sub-agents before their parent. Live ones are never chosen."""
    families = _families(sessions)
    families.sort(key=lambda family: (max(s.updated for s in family), family[-1].id))
    protected = len(families) - (rule.keep or 0)
    only_rank = rule.older_than_ms is None and rule.max_bytes is None and rule.keep is not None
    total = sum(session.size for session in sessions)
    chosen: list[KeptSession] = []
    for rank, family in enumerate(families):
        if rank >= protected:
            break
        if any(session.status == "live" for session in family):
            continue
        age = now_ms - max(session.updated for session in family)
        is_old = rule.older_than_ms is not None and age > rule.older_than_ms
        is_too_much = rule.max_bytes is not None and total > rule.max_bytes
        if only_rank or is_old or is_too_much:
            chosen.extend(family)
            total -= sum(session.size for session in family)
    return chosen


def _families(sessions: Sequence[KeptSession]) -> list[list[KeptSession]]:
    """Each root session with all below it, the root last. A sub-agent without its parent is a root."""
    by_id = {session.id: session for session in sessions}
    families: dict[SessionId, list[KeptSession]] = {}
    for session in sessions:
        root, seen = session, {session.id}
        while root.parent is not None and root.parent in by_id and root.parent not in seen:
            root = by_id[root.parent]
            seen.add(root.id)
        families.setdefault(root.id, []).append(session)
    for root_id, family in families.items():
        family.sort(key=lambda session: (session.id == root_id, session.updated, session.id))
    return list(families.values())
