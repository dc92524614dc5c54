"""JSON Schemas of everything that the HTTP interface takes and gives, in the subset of `core/schema`.

They are the components of the OpenAPI description, and what requests are checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from dsh_actors.core.policy import POLICY_NAMES
from dsh_actors.core.schema import violations
from dsh_actors.core.text import JsonObject, JsonValue

__all__ = ["COMPONENTS", "ref", "resolved", "schema_faults"]

TEXT: JsonObject = {"type": "string"}
WHOLE: JsonObject = {"type": "integer"}
NUMBER: JsonObject = {"type": "number"}
FLAG: JsonObject = {"type": "boolean"}
TEXTS: JsonObject = {"type": "array", "items": TEXT}
ANY_OBJECT: JsonObject = {"type": "object"}


def ref(name: str) -> JsonObject:
    """A reference to one of `COMPONENTS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: JsonObject, description: str | None = None) -> JsonObject:
    alternatives: JsonObject = {"oneOf": [schema, {"type": "null"}]}
    return alternatives | ({"description": description} if description else {})


def _said(schema: JsonObject, description: str) -> JsonObject:
    return {**schema, "description": description}


def _object(required: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> JsonObject:
    """A closed object: what is not named here is refused."""
    properties = {**required, **(optional or {})}
    schema: JsonObject = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": list(required)} if required else {})


_DURATION: JsonObject = {"oneOf": [NUMBER, TEXT], "description": "seconds, or a text such as 90s, 5m, 2h"}

_LIMITS = _object(
    {},
    {
        "max_steps": WHOLE,
        "max_tool_calls": WHOLE,
        "max_tokens": WHOLE,
        "max_cost": NUMBER,
        "timeout": _DURATION,
        "deadline": _DURATION,
        "tool_timeout": _DURATION,
        "max_retries": WHOLE,
        "max_agents": WHOLE,
        "max_concurrent_agents": WHOLE,
        "max_depth": WHOLE,
    },
)

_TASK = _object(
    {},
    {
        "id": _said({"oneOf": [TEXT, WHOLE]}, "the task's name in a batch; an agent's id is session_id"),
        "prompt": _said(TEXT, "the first message; without one the agent waits for messages"),
        "model": _said(TEXT, "PROVIDER/MODEL"),
        "cwd": _said(TEXT, "the directory to work in, absolute"),
        "system_prompt": TEXT,
        "append_system_prompt": TEXT,
        "tools": TEXTS,
        "deny_tools": TEXTS,
        "add_dirs": TEXTS,
        "approve": _said(TEXT, f"{', '.join(POLICY_NAMES)}, or the path of a rule file"),
        "sandbox": {"type": "string", "enum": ["auto", "require", "off"]},
        "reasoning": TEXT,
        "max_output": WHOLE,
        "session_id": TEXT,
        "resume": _said(TEXT, "the session to go on with"),
        "fork": _said(TEXT, "the session to begin with a copy of: ID or ID@SEQ"),
        "ephemeral": FLAG,
        "schema": _said(ANY_OBJECT, "the JSON Schema that the answer shall fit"),
        "schema_retries": _said(WHOLE, "how often an answer that does not fit is sent back"),
        "limits": _LIMITS,
    },
)

STATES = ("running", "idle", "asleep", "failed", "disposed")

_AGENT: JsonObject = {
    "type": "object",
    "required": ["id", "state", "parent", "cwd", "model", "created", "updated"],
    "properties": {
        "id": TEXT,
        "state": {"type": "string", "enum": list(STATES)},
        "parent": _or_null(TEXT, "the agent that started it"),
        "cwd": _or_null(TEXT),
        "model": _or_null(TEXT),
        "title": _or_null(TEXT),
        "turn": _or_null(WHOLE),
        "step": _or_null(WHOLE),
        "tool": _or_null(TEXT, "the tool at work"),
        "next_turn": _said(WHOLE, "messages that wait for a turn of their own"),
        "next_step": _said(WHOLE, "messages that wait for the next step"),
        "tokens": WHOLE,
        "cost": _or_null(NUMBER, "null where a price is not known"),
        "currency": _or_null(TEXT),
        "created": _said(WHOLE, "ms since the epoch"),
        "updated": _said(WHOLE, "ms since the epoch"),
        "approvals": _said(WHOLE, "open questions"),
        "work": {
            "type": "array",
            "description": "its sub-agents and background jobs that go on; kind is agent, or a job's tool",
            "items": _object({"id": TEXT, "kind": TEXT, "label": TEXT}),
        },
        "error": _or_null(TEXT, "why it failed"),
        "last_end": _or_null(ref("RunEnd")),
    },
}

_RUN_END: JsonObject = {
    "type": "object",
    "description": "the run.end of `dsh help events`",
    "required": ["type", "status", "reason", "exit_code", "answer"],
    "properties": {
        "type": {"type": "string", "const": "run.end"},
        "status": TEXT,
        "reason": TEXT,
        "exit_code": WHOLE,
        "session_id": _or_null(TEXT),
        "message": TEXT,
        "answer": _or_null(TEXT),
        "partial": FLAG,
        "usage": ANY_OBJECT,
        "cost": _or_null(NUMBER),
    },
}

_APPROVAL = _object(
    {
        "id": TEXT,
        "agent": TEXT,
        "tool": TEXT,
        "arguments": ANY_OBJECT,
        "reason": TEXT,
        "deadline": _said(WHOLE, "ms since the epoch; denied then"),
    }
)

_HEALTH = _object(
    {
        "status": {"type": "string", "enum": ["ok", "stopping"]},
        "version": TEXT,
        "pid": WHOLE,
        "uptime_s": NUMBER,
        "connections": WHOLE,
    }
)

COMPONENTS: dict[str, JsonObject] = {
    "Error": _object({"error": _object({"code": TEXT, "message": TEXT}, {"hint": TEXT})}),
    "TaskSpec": _TASK,
    "AgentInfo": _AGENT,
    "Agents": _object(
        {
            "agents": {"type": "array", "items": ref("AgentInfo")},
            "next": _or_null(TEXT, "give it as `after` for the next page"),
        }
    ),
    "Message": _object(
        {"text": _said(TEXT, "not blank")},
        {
            "how": {
                "type": "string",
                "enum": ["send", "steer", "inject"],
                "description": "send (the default): a turn of its own; steer: the next step; inject: the "
                "next step, without waking the agent",
            }
        },
    ),
    "Delivered": _object({"message_id": TEXT}),
    "Cancel": _object({}, {"keep_inbox": FLAG}),
    "Fork": _object(
        {},
        {
            "at_seq": _said(WHOLE, "the last event that is copied, where no turn is under way"),
            "session_id": TEXT,
            "prompt": TEXT,
        },
    ),
    "RunEnd": _RUN_END,
    "Waited": _object({"done": FLAG, "end": _or_null(ref("RunEnd"))}),
    "Wait": _object(
        {"ids": _said(TEXTS, "one at least")},
        {"any": FLAG, "timeout_s": _said(NUMBER, "0 or more seconds; without it no end")},
    ),
    "WaitedAll": _object(
        {"done": FLAG, "ends": _said(ANY_OBJECT, "of those that are done: a RunEnd, null for who never ran")}
    ),
    "Approval": _APPROVAL,
    "Approvals": _object({"approvals": {"type": "array", "items": ref("Approval")}}),
    "Decision": _object({"decision": {"type": "string", "enum": ["allow", "deny"]}}),
    "Decided": _object({"id": TEXT, "outcome": {"type": "string", "enum": ["allowed", "denied"]}}),
    "Health": _HEALTH,
    "Done": _object({"ok": FLAG}),
    "OpenAPI": ANY_OBJECT,
}


def resolved(schema: JsonValue) -> JsonValue:
    """``schema`` with its references filled in."""
    if isinstance(schema, list):
        return [resolved(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    name = schema.get("$ref")
    if isinstance(name, str):
        return _component(name.rpartition("/")[2])
    return {key: resolved(value) for key, value in schema.items()}


@cache
def _component(name: str) -> JsonValue:
    return resolved(COMPONENTS[name])


def schema_faults(schema: JsonObject, value: JsonValue) -> list[str]:
    """What in ``value`` does not fit, each with its place; empty if it fits."""
    return violations(resolved(schema), value)
