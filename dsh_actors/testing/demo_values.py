"""A value for a JSON Schema, as the demo gives it: the plainest one, made without a thought.

It knows the common keywords; a value that others forbid is rejected as any wrong answer is.
"""

from __future__ import annotations

from dsh_actors.core.text import JsonObject, JsonValue

__all__ = ["demo_value"]

_MAX_DEPTH = 20
_MAX_ITEMS = 100
_WORD = "scripted/demo"


def demo_value(schema: JsonObject) -> JsonValue:
    """A value with what ``schema`` requires and no more."""
    return _value(schema, schema, 0)


def _value(schema: JsonValue, root: JsonObject, depth: int) -> JsonValue:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    if "const" in schema:
        return schema["const"]
    for keyword in ("enum", "examples"):
        if isinstance(schema.get(keyword), list) and schema[keyword]:
            return schema[keyword][0]
    if isinstance(schema.get("$ref"), str):
        return _value(_target(schema["$ref"], root), root, depth + 1)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(keyword), list) and schema[keyword]:
            return _value(schema[keyword][0], root, depth + 1)
    kind = schema.get("type")
    return _of_kind(kind[0] if isinstance(kind, list) and kind else kind, schema, root, depth)


def _of_kind(kind: JsonValue, schema: JsonObject, root: JsonObject, depth: int) -> JsonValue:
    match kind:
        case "string":
            return _WORD[: schema.get("maxLength", len(_WORD))].ljust(schema.get("minLength", 0), ".")
        case "integer" | "number":
            return schema.get("minimum", min(1, schema.get("maximum", 1)))
        case "boolean":
            return True
        case "array":
            count = min(_MAX_ITEMS, schema.get("minItems", min(1, schema.get("maxItems", 1))))
            return [_value(schema.get("items", {}), root, depth + 1) for _ in range(count)]
        case "null":
            return None
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        return {name: _value(properties.get(name), root, depth + 1) for name in schema.get("required", ())}
    return _WORD


def _target(ref: str, root: JsonObject) -> JsonValue:
    node: JsonValue = root
    for part in ref.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        node = node.get(name) if isinstance(node, dict) else None
    return node
