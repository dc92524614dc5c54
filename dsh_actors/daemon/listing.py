"""Listing agents: rows as they are stored, with live ones as they are now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dsh_actors.daemon.info import AgentInfo
from dsh_actors.daemon.live import info_of
from dsh_actors.errors import UsageError
from dsh_actors.runtime.files import run_native

if TYPE_CHECKING:
    from dsh_actors.daemon.live_table import LiveTable

__all__ = ["STATES", "list_agents"]

STATES = ("running", "idle", "asleep", "failed")
BATCH = 2_000
"""Rows that are made into objects at a time: others run in between."""


def list_agents(table: LiveTable, state: str | None, after: str | None, limit: int | None) -> list[AgentInfo]:
    """In the order of ids. Raises `UsageError` for a state or a limit that is none."""
    if state is not None and state not in STATES:
        raise UsageError(f"there is no state {state!r}", hint=f"states are: {', '.join(STATES)}")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise UsageError(f"{limit!r} is no number of agents")
    found: list[AgentInfo] = []
    place = after or ""
    while limit is None or len(found) < limit:
        rows = run_native(table.registry.page, place, BATCH)
        for row in rows:
            info = _newest(table, row[0]) or AgentInfo(*row)
            if state is None or info.state == state:
                found.append(info)
        if len(rows) < BATCH:
            break
        place = rows[-1][0]
    return found[:limit]


def _newest(table: LiveTable, agent_id: str) -> AgentInfo | None:
    live = table.live.get(agent_id)
    if live is not None:
        return table.info(live)
    row = table.writer.newest(agent_id)
    return None if row is None else info_of(row)


