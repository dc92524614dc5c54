"""The JSON Schema of every line of ``dsh run --json``: the published contract of the event stream."""

from __future__ import annotations

from dsh_actors.cli.render import SCHEMA_VERSION
from dsh_actors.core.events import KNOWN_TYPES
from dsh_actors.core.exit_codes import EXIT_CODES, EXIT_TABLE, SIGNAL_CODES
from dsh_actors.core.text import JsonObject

__all__ = ["line_schema"]

_TEXT: JsonObject = {"type": "string"}
_TEXT_OR_NULL: JsonObject = {"type": ["string", "null"]}
_COUNT: JsonObject = {"type": "integer", "minimum": 0}
_TEXTS: JsonObject = {"type": "array", "items": _TEXT}


def line_schema() -> JsonObject:
    """One of: ``run.start`` (first), events of the session, heartbeats, ``run.end`` (last, once)."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of dsh run --json, schema version {SCHEMA_VERSION}",
        "oneOf": [_run_start(), _heartbeat(), _session_event(), _run_end()],
    }


def _object(kind: JsonObject, members: JsonObject, optional: JsonObject | None = None) -> JsonObject:
    properties = {"type": kind, **members}
    return {
        "type": "object",
        "properties": properties | (optional or {}),
        "required": list(properties),
        "additionalProperties": False,
    }


def _run_start() -> JsonObject:
    return _object(
        {"const": "run.start"},
        {"schema_version": {"const": SCHEMA_VERSION}, "session_id": _TEXT_OR_NULL},
        {"model": _TEXT_OR_NULL, "cwd": _TEXT, "resumed": {"type": "boolean"}},
    )


def _heartbeat() -> JsonObject:
    members = {"elapsed_s": {"type": "number", "minimum": 0}, "step": _COUNT, "tool": _TEXT_OR_NULL}
    return _object({"const": "heartbeat"}, members)


def _session_event() -> JsonObject:
    """The envelope of a fact in the session's log. A type that is not listed is marked ignorable."""
    members = {"seq": _COUNT, "time": _COUNT, "data": {"type": "object"}}
    optional = {
        "ignorable": {"const": True},
        "surfaceOp": {
            "oneOf": [
                {"const": "append"},
                {
                    "type": "object",
                    "properties": {"op": {"const": "replace"}, "start": _COUNT, "end": _COUNT},
                    "required": ["op", "start", "end"],
                },
            ]
        },
        "sourceEventSeqs": {"type": "array", "items": _COUNT},
    }
    kind = {
        "type": "string",
        "not": {"enum": ["run.start", "run.end", "heartbeat"]},
        "examples": sorted(KNOWN_TYPES),
    }
    return _object(kind, members, optional)


def _run_end() -> JsonObject:
    tokens = {
        "type": "object",
        "properties": dict.fromkeys(("input", "cache_read", "cache_write", "output", "reasoning"), _COUNT),
        "required": ["input", "cache_read", "cache_write", "output", "reasoning"],
    }
    codes = sorted({row.code for row in EXIT_TABLE} | set(SIGNAL_CODES.values()))
    usage: JsonObject = {"type": "object", "properties": {"own": tokens, "children": tokens}}
    members = {
        "status": {"enum": [row.name for row in EXIT_TABLE]},
        "reason": {"enum": sorted(EXIT_CODES)},
        "exit_code": {"enum": codes},
        "session_id": _TEXT_OR_NULL,
        "message": _TEXT,
        "answer": _TEXT_OR_NULL,
        "structured": {},
        "partial": {"type": "boolean"},
        "turns": _COUNT,
        "steps": _COUNT,
        "tool_calls": _COUNT,
        "usage": usage | {"required": ["own", "children"]},
        "cost": {"type": ["number", "null"]},
        "duration_ms": _COUNT,
        "denied": {"type": "array", "items": {"type": "object", "required": ["tool"]}},
        "tool_errors": _COUNT,
        "abandoned": _TEXTS,
        "retries": _COUNT,
        "sandbox": _TEXT_OR_NULL,
        "warnings": _TEXTS,
    }
    optional = {
        "limit": {"type": "object", "properties": {"kind": _TEXT, "value": {"type": "number"}}},
        "signal": {"enum": sorted(SIGNAL_CODES)},
        "error": {"type": "object", "required": ["message", "code"]},
        "schema": {"type": "object", "properties": {"errors": _TEXTS}, "required": ["errors"]},
    }
    return _object({"const": "run.end"}, members, optional)
