"""The JSON Schema of every line that ``dsh batch`` writes: the published contract of its results."""

from __future__ import annotations

from typing import Any

from dsh_actors.cli.event_schema import line_schema
from dsh_actors.core.batch import SCHEMA_VERSION
from dsh_actors.core.exit_codes import EXIT_CODES, EXIT_TABLE
from dsh_actors.core.text import JsonObject

__all__ = ["result_schema"]

_TEXT: JsonObject = {"type": "string"}
_COUNT: JsonObject = {"type": "integer", "minimum": 0}
_COUNTS: JsonObject = {"type": "object", "additionalProperties": _COUNT}


def result_schema() -> JsonObject:
    """One of: ``batch.start`` (first), ``task.end`` (one a task), ``batch.end`` (last)."""
    end: Any = next(each for each in line_schema()["oneOf"] if _kind(each) == "run.end")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of dsh batch, schema version {SCHEMA_VERSION}",
        "oneOf": [_start(), _task_end(end), _batch_end(end)],
    }


def _kind(variant: JsonObject) -> Any:
    return variant["properties"]["type"].get("const")


def _object(kind: str, members: JsonObject, optional: JsonObject) -> JsonObject:
    properties = {"type": {"const": kind}, **members}
    return {
        "type": "object",
        "properties": properties | optional,
        "required": list(properties),
        "additionalProperties": False,
    }


def _start() -> JsonObject:
    return _object("batch.start", {"schema_version": {"const": SCHEMA_VERSION}, "name": _TEXT}, {})


def _task_end(end: JsonObject) -> JsonObject:
    """What the end of a run says, and which task it was. ``attempt`` is 0 where none could be made."""
    own = {
        "id": {"type": ["string", "null"]},
        "line": {"type": "integer", "minimum": 1},
        "digest": _TEXT,
        "attempt": _COUNT,
        "resumed": {"type": "boolean"},
    }
    required = [name for name in end["required"] if name != "type"]
    members = {name: end["properties"][name] for name in required}
    optional = {k: v for k, v in end["properties"].items() if k not in {"type", *required}}
    return _object("task.end", own | members, optional)


def _batch_end(end: JsonObject) -> JsonObject:
    members = {
        "status": {"enum": [row.name for row in EXIT_TABLE]},
        "reason": {"enum": sorted([*EXIT_CODES, "tasks_failed"])},
        "exit_code": end["properties"]["exit_code"],
        "name": _TEXT,
        "message": _TEXT,
        "tasks": _COUNT,
        "counts": _COUNTS,
        "skipped": _COUNTS,
        "usage": end["properties"]["usage"]["properties"]["own"],
        "cost": {"type": ["number", "null"]},
        "currency": {"type": ["string", "null"]},
        "duration_ms": _COUNT,
    }
    optional = {"signal": end["properties"]["signal"], "warnings": end["properties"]["warnings"]}
    return _object("batch.end", members, optional)
