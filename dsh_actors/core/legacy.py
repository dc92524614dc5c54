"""Events of old logs of the original harness, brought to the shapes that are read today.

Only shapes known from its releases are changed; retired formats are refused. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from dsh_actors.core.events import RETIRED_TYPES, SURFACE_TYPES, Event, Replace
from dsh_actors.core.ids import SessionId
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import SessionUnsupported

__all__ = ["LegacyUpgrade"]

_HINT = "the release that wrote it is too old; there is no way to read it"


class LegacyUpgrade:
    """Upgrades the events of one log in order. An event of today's shape is passed on as it is."""

    def __init__(self, session_id: SessionId) -> None:
        self._session_id = session_id
        # A replaced result keeps the id of the one it stands for, which may itself have been made up here.
        self._result_ids: dict[int, str] = {}

    def upgrade(self, event: Event) -> Event:
        """Raises `SessionUnsupported` for a retired format. A wrong shape is left for the fold to refuse."""
        if event.type in RETIRED_TYPES:
            raise SessionUnsupported(f"event {event.seq} has the retired type {event.type!r}", hint=_HINT)
        if event.type == "request/header" and event.data.get("reason") == "fallback":
            raise SessionUnsupported(
                f"event {event.seq} is a request/header with the retired reason 'fallback'", hint=_HINT
            )
        match event.type:
            case "turn/start" if "trigger" in event.data:
                data = {key: value for key, value in event.data.items() if key != "trigger"}
                return replace(event, data=data)
            case "turn/end":
                return _upgrade_turn_end(event)
            case "steering/message":
                return self._with_message_id(_as_user_message(event))
        return self._with_message_id(event) if event.type in SURFACE_TYPES else event

    def _with_message_id(self, event: Event) -> Event:
        message = event.data if event.type == "user/message" else event.data.get("message")
        if not isinstance(message, dict):
            return event
        if "id" not in message:
            named = {"id": self._legacy_id(event), **message}
            data = named if event.type == "user/message" else {**event.data, "message": named}
            event, message = replace(event, data=data), named
        if event.type == "tool/result" and type(message["id"]) is str:
            self._result_ids[event.seq] = message["id"]
        return event

    def _legacy_id(self, event: Event) -> str:
        op = event.surface_op
        if event.type == "tool/result" and isinstance(op, Replace) and op.start in self._result_ids:
            return self._result_ids[op.start]
        return f"legacy-message:{self._session_id}:{event.seq}"


def _upgrade_turn_end(event: Event) -> Event:
    reason = event.data.get("reason")
    if not isinstance(reason, dict):
        return event
    changed: JsonObject | None = None
    match reason.get("kind"):
        case "aborted" if "reason" not in reason:
            changed = {"kind": "aborted", "reason": {"kind": "legacy"}}
        case "disposed":
            changed = {"kind": "aborted", "reason": {"kind": "disposed"}}
        case "error" if "step" in reason or not isinstance(reason.get("error"), dict):
            changed = {"kind": "error", "error": _failure(reason)}
    return event if changed is None else replace(event, data={**event.data, "reason": changed})


def _failure(reason: JsonObject) -> JsonObject:
    """Message and code of an error that stood in the reason itself, beside the step."""
    inner = reason.get("error")
    source = inner if isinstance(inner, dict) else reason
    message = inner if isinstance(inner, str) else source.get("message")
    code = source.get("code")
    return {
        "message": message if isinstance(message, str) else "",
        "code": code if isinstance(code, str) else "UNKNOWN",
    }


def _as_user_message(event: Event) -> Event:
    inner = event.data.get("message")
    data = inner if isinstance(inner, dict) else event.data
    surface_op = "append" if event.surface_op is None else event.surface_op
    return replace(event, type="user/message", data=data, surface_op=surface_op)
