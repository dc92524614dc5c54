"""Whether a tool's schema is within what DeepSeek's strict mode takes, by its documentation. Pure."""

from __future__ import annotations

from typing import Any

__all__ = ["strict_fault"]

_TYPES = frozenset({"object", "string", "number", "integer", "boolean", "array"})
_REFUSED = ("minLength", "maxLength", "minItems", "maxItems")
_FORMATS = frozenset({"email", "hostname", "ipv4", "ipv6", "uuid"})
_GROUPS = ("$defs", "$def", "definitions")
_SHAPES: tuple[tuple[str, type, str], ...] = (
    *((key, dict, "object") for key in (*_GROUPS, "properties")),
    *((key, list, "list") for key in ("anyOf", "required")),
)


def strict_fault(schema: Any, where: str = "") -> str | None:
    """The first thing in ``schema`` that strict mode refuses, in words; None where it fits."""
    if not isinstance(schema, dict):
        return f"{where or 'the schema'} is no object"
    place = where or "the schema"
    if "$ref" in schema:
        return None
    for key in _REFUSED:
        if key in schema:
            return f"{place} has {key}"
    if "format" in schema and not _is_one(schema["format"], _FORMATS):
        return f"{place} has the format {schema['format']!r}"
    for key, shape, words in _SHAPES:
        if not isinstance(schema.get(key, shape()), shape):
            return f"{place} has {key} that is no {words}"
    parts = [(option, place) for option in schema.get("anyOf", ())]
    for group in _GROUPS:
        parts += [(part, f"{group}.{name}") for name, part in schema.get(group, {}).items()]
    kind = schema.get("type")
    if kind is None and not parts and "enum" not in schema:
        return f"{place} has no type"
    if kind is not None and not _is_one(kind, _TYPES):
        return f"{place} has the type {kind!r}"
    if kind == "array":
        parts.append((schema.get("items"), f"{place}[]"))
    if kind == "object":
        fault, members = _object_fault(schema, place)
        if fault is not None:
            return fault
        parts += [(part, f"{where}.{name}" if where else name) for name, part in members.items()]
    return next((fault for part, name in parts if (fault := strict_fault(part, name))), None)


def _object_fault(schema: dict[str, Any], place: str) -> tuple[str | None, dict[str, Any]]:
    members = schema.get("properties", {})
    if schema.get("additionalProperties") is not False:
        return f"{place} lacks additionalProperties: false", members
    required = schema.get("required", [])
    optional = [name for name in sorted(members) if name not in required]
    if optional:
        return f"{place} does not require {', '.join(optional)}", members
    return None, members


def _is_one(value: Any, words: frozenset[str]) -> bool:
    """Whether ``value`` is one of the words; several types or formats in a list are none."""
    return isinstance(value, str) and value in words
