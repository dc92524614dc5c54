"""Server-sent events as bytes."""

from __future__ import annotations

import json

from dsh_actors.core.events import Event
from dsh_actors.core.text import JsonObject

__all__ = ["BEGIN", "KEEP_ALIVE", "event_block", "session_event"]

BEGIN = b"retry: 1000\n\n"
"""First in every stream: the headers go out at once, and clients come back after a second."""

KEEP_ALIVE = b": still here\n\n"


def session_event(event: Event) -> bytes:
    """An event of a session: its seq is the id to come back with."""
    return event_block(event.type, event.to_json(), str(event.seq))


def event_block(name: str, data: JsonObject, event_id: str | None = None) -> bytes:
    """One event. JSON has no line break of its own, so the data is one line."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {name}\ndata: {text}\n\n".encode("utf-8", "replace")
