"""The durable facts of a session: event envelope, known types, session header.

Names, keys and meanings are those of the original harness, so that logs can be exchanged. Facts
of our own are new types that every reader may skip (``ignorable``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dsh_actors.core.ids import SessionId
from dsh_actors.core.text import JsonObject, shape_fault
from dsh_actors.errors import EventRefused, SessionUnsupported

__all__ = [
    "KNOWN_TYPES",
    "OWN_TYPES",
    "SURFACE_TYPES",
    "Event",
    "Replace",
    "SessionHeader",
    "SurfaceOp",
    "wrong_payload",
]

SURFACE_TYPES = frozenset({"user/message", "assistant/message", "tool/result"})
"""The only events that the model may see."""

OWN_TYPES = frozenset(
    {
        "job/ended",
        "job/started",
        "request/digest",
        "limit/reached",
        "run/note",
        "session/title-llm-result",
        "subagent/started",
        "subagent/ended",
        "answer/structured",
        "answer/rejected",
    }
)
"""Types of this harness, always written with ``ignorable``."""

KNOWN_TYPES = (
    SURFACE_TYPES
    | OWN_TYPES
    | frozenset(
        [
            "turn/start",
            "turn/end",
            "step/start",
            "step/end",
            "assistant/chunk",
            "tool/call",
            "todo/write",
            "request/header",
            "request/context",
            "session/end-seed",
            "agent-preset/selected",
            "agent/inbox/spliced",
            "approval/asked",
            "approval/decided",
            "approval/policy",
            "command/run",
            "command/done",
            "compaction/start",
            "compaction/summary",
            "compaction/prune",
            "compaction/end",
            "feedback/record",
            "goal/change",
            "hook/invoked",
            "hook/result",
            "llm/retry",
            "llm/retry-started",
            "permission/preset",
            "plan/mode",
            "sandbox/mode",
            "schedule/change",
            "session/title",
            "session/title-llm-request",
            "subagent/descriptor",
            "team/member",
            "team/message/queued",
            "team/message/delivered",
            "team/task",
            "tool-workflow/run-start",
            "tool-workflow/run-end",
            "tool-workflow/agent-start",
            "tool-workflow/agent-end",
            "tool/code-dispatch-start",
            "tool/code-dispatch",
            "web/deepseek-search-llm-request",
        ]
    )
)
"""Every type a reader accepts without the ``ignorable`` mark."""

RETIRED_TYPES = frozenset({"request/header-delta", "mode/set"})


@dataclass(frozen=True, slots=True)
class Replace:
    """Put the event in the place of the surface nodes from ``start`` to ``end`` (seqs, inclusive)."""

    start: int
    end: int


SurfaceOp = Literal["append"] | Replace

_ENVELOPE = frozenset({"type", "seq", "time", "data", "ignorable", "surfaceOp", "sourceEventSeqs"})


@dataclass(frozen=True, slots=True)
class Event:
    """One appended fact. ``seq`` is its index in the log; ``time`` is ms since the epoch.

    ``source_event_seqs`` names the events it was made from: an empty tuple means "known to be
    none", ``None`` means "not known".
    """

    type: str
    seq: int
    time: int
    data: JsonObject = field(hash=False)
    surface_op: SurfaceOp | None = None
    source_event_seqs: tuple[int, ...] | None = None
    ignorable: bool = False

    def to_json(self) -> JsonObject:
        data: JsonObject = {"type": self.type, "seq": self.seq, "time": self.time, "data": self.data}
        if self.ignorable:
            data["ignorable"] = True
        op = self.surface_op
        if op is not None:
            data["surfaceOp"] = op if op == "append" else {"op": "replace", "start": op.start, "end": op.end}
        if self.source_event_seqs is not None:
            data["sourceEventSeqs"] = list(self.source_event_seqs)
        return data

    @staticmethod
    def from_json(raw: JsonObject) -> Event:
        """Read an envelope. Raises `EventRefused` for a wrong shape.

        Whether the type is known is a question for `require_known`, not for this.
        """
        try:
            kind, seq, time, data = raw["type"], raw["seq"], raw["time"], raw["data"]
        except (KeyError, TypeError) as error:
            raise EventRefused(f"not an event: {shape_fault(error)}") from error
        if not (type(kind) is str and type(seq) is int and type(time) is int and type(data) is dict):
            raise EventRefused(f"event {seq!r}: wrong type, seq, time or data")
        if len(raw) == 4:
            return Event(kind, seq, time, data)
        if len(raw) == 5 and raw.get("surfaceOp") == "append":
            return Event(kind, seq, time, data, "append")
        extra = raw.keys() - _ENVELOPE
        if extra or raw.get("ignorable", True) is not True:
            raise EventRefused(f"event {seq}: unexpected envelope member {sorted(extra) or 'ignorable'}")
        sources = raw.get("sourceEventSeqs")
        if sources is not None and not (type(sources) is list and all(type(s) is int for s in sources)):
            raise EventRefused(f"event {seq}: sourceEventSeqs must be a list of integers")
        return Event(
            kind,
            seq,
            time,
            data,
            _surface_op(raw.get("surfaceOp"), seq),
            None if sources is None else tuple(sources),
            "ignorable" in raw,
        )

    def require_known(self) -> None:
        """Raises `SessionUnsupported` if a reader without this type's owner must not go on."""
        if self.type in RETIRED_TYPES or (self.type not in KNOWN_TYPES and not self.ignorable):
            raise SessionUnsupported(
                f"event {self.seq} has the unknown type {self.type!r}",
                hint="a newer dsh may read this session",
            )


def wrong_payload(event: Event, error: Exception) -> EventRefused:
    """The refusal of an event whose payload could not be taken apart, which raised ``error``."""
    return EventRefused(f"event {event.seq}: wrong {event.type} payload: {shape_fault(error)}")


def _surface_op(raw: object, seq: int) -> SurfaceOp | None:
    if raw is None or raw == "append":
        return None if raw is None else "append"
    if isinstance(raw, dict) and raw.keys() == {"op", "start", "end"} and raw["op"] == "replace":
        start, end = raw["start"], raw["end"]
        if type(start) is int and type(end) is int:
            return Replace(start, end)
    raise EventRefused(f"event {seq}: unknown surfaceOp")


@dataclass(frozen=True, slots=True)
class SessionHeader:
    """What a session is, fixed at its creation. ``created_at`` is ms since the epoch."""

    id: SessionId
    created_at: int
    cwd: str | None = None
    parent_session: SessionId | None = None
    seed_length: int | None = None
    origin: str | None = None
    delegation_depth: int = 0
    agent_preset: str | None = None
    version: int = 0

    @property
    def agent_above(self) -> SessionId | None:
        """Whose sub-agent's session it is; None for one of its own, or a fork."""
        return self.parent_session if self.origin == "subagent" else None

    def to_json(self) -> JsonObject:
        data: JsonObject = {"version": self.version, "id": self.id, "createdAt": self.created_at}
        optional = {
            "cwd": self.cwd,
            "parentSession": self.parent_session,
            "seedLength": self.seed_length,
            "origin": self.origin,
        }
        data.update((key, value) for key, value in optional.items() if value is not None)
        data["delegationDepth"] = self.delegation_depth
        if self.agent_preset is not None:
            data["agentPreset"] = self.agent_preset
        return data

    @staticmethod
    def from_json(raw: JsonObject) -> SessionHeader:
        """Raises `EventRefused` for a wrong shape, `SessionUnsupported` for another version."""
        try:
            if raw["version"] != 0:
                raise SessionUnsupported(f"session header version {raw['version']!r} is not known here")
            header = SessionHeader(
                SessionId(raw["id"]),
                raw["createdAt"],
                raw.get("cwd"),
                raw.get("parentSession"),
                raw.get("seedLength"),
                raw.get("origin"),
                raw.get("delegationDepth", 0),
                raw.get("agentPreset"),
            )
        except (KeyError, TypeError) as error:
            raise EventRefused(f"not a session header: {shape_fault(error)}") from error
        header.require_valid()
        return header

    def require_valid(self) -> None:
        """Raises `EventRefused` naming the first member that is out of range."""
        checks = {
            "id": type(self.id) is str and self.id != "",
            "createdAt": type(self.created_at) is int and self.created_at >= 0,
            "cwd": self.cwd is None or (type(self.cwd) is str and self.cwd.startswith("/")),
            "parentSession": self.parent_session is None or type(self.parent_session) is str,
            "seedLength": self.seed_length is None
            or (type(self.seed_length) is int and self.seed_length >= 0),
            "origin": self.origin in (None, "subagent"),
            "delegationDepth": type(self.delegation_depth) is int and self.delegation_depth >= 0,
            "agentPreset": self.agent_preset is None or type(self.agent_preset) is str,
        }
        for name, good in checks.items():
            if not good:
                raise EventRefused(f"session header: wrong {name}")
