"""What the daemon tells of an agent: `AgentInfo`, as frozen data and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

from dsh_actors.core.outcome import RunEnd
from dsh_actors.core.text import JsonObject

__all__ = ["AgentInfo", "AgentState", "end_from_json"]

AgentState = Literal["running", "idle", "asleep", "failed", "disposed"]


@dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent as it stands. ``disposed`` is seen in notices only: no list has it any more.

    ``next_turn`` and ``next_step`` count queued messages, ``approvals`` open questions. ``tokens`` and
    ``cost`` are totals since the agent is hosted, ``cost`` None where a part of it is not known. Times are
    ms since the epoch.
    """

    id: str
    state: AgentState
    parent: str | None
    cwd: str
    model: str
    title: str | None
    turn: int
    step: int | None
    tool: str | None
    next_turn: int
    next_step: int
    tokens: int
    cost: float | None
    currency: str | None
    created: int
    updated: int
    approvals: int
    error: str | None
    end_text: str | None = None
    """`last_end` as JSON text: of a hundred thousand agents hardly any is looked at."""
    work: tuple[JsonObject, ...] = ()
    """What it has started and still goes on, sub-agents and jobs: ``{"id", "kind", "label"}``."""

    @property
    def last_end(self) -> JsonObject | None:
        """The ``run.end`` of the last run that is over."""
        return None if self.end_text is None else json.loads(self.end_text)

    def to_json(self) -> JsonObject:
        known = {name: getattr(self, name) for name in _NAMES}
        return known | {"work": list(self.work), "last_end": self.last_end}


_NAMES = tuple(each.name for each in fields(AgentInfo) if each.name not in ("end_text", "work"))
_END_NAMES = frozenset(each.name for each in fields(RunEnd))
_END_TUPLES = frozenset({"denied", "abandoned", "warnings"})


def end_from_json(text: str) -> RunEnd:
    """A ``run.end`` object, as `RunEnd.to_json` made it, read back."""
    found: JsonObject = json.loads(text)
    values: dict[str, Any] = {}
    for name in _END_NAMES & found.keys():
        values[name] = tuple(found[name]) if name in _END_TUPLES else found[name]
    return RunEnd(**values)
