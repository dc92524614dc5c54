"""The JSON Schema subset for tool arguments and structured answers.

Keywords: type, oneOf, properties, required, additionalProperties, items, enum, const, and the
annotations description, title, default, examples. Everything here is iterative and total.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from dsh_actors.core.text import JsonValue, require_lossless, shorten
from dsh_actors.errors import EventRefused

__all__ = ["MAX_VIOLATIONS", "check_schema", "violations"]

MAX_VIOLATIONS = 100
"""`violations` stops looking after this many."""

_ANNOTATIONS = frozenset({"description", "title", "default", "examples"})
_KEYWORDS = _ANNOTATIONS | {
    "type",
    "oneOf",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "const",
}
_OWNER = {"properties": "object", "required": "object", "additionalProperties": "object", "items": "array"}
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")

_TESTS: dict[str, Callable[[JsonValue], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
    ),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def check_schema(schema: JsonValue) -> list[str]:
    """Everything in ``schema`` that the subset does not have, each with its place; empty if it is fine."""
    try:
        require_lossless(schema, "schema")
    except EventRefused as error:
        return [error.message]
    found: list[str] = []
    work: list[tuple[JsonValue, str]] = [(schema, "$")]
    while work:
        node, path = work.pop()
        if not isinstance(node, dict):
            found.append(f"{path}: a schema must be an object, not {_kind(node)}")
            continue
        children: list[tuple[JsonValue, str]] = []
        for keyword, value in node.items():
            if keyword not in _KEYWORDS:
                found.append(f"{path}: unsupported keyword {keyword!r}")
            elif keyword in _OWNER and node.get("type") != _OWNER[keyword]:
                found.append(f"{path}: {keyword} needs type {_OWNER[keyword]!r}")
            elif keyword not in _ANNOTATIONS:
                _check_keyword(keyword, value, node, path, found, children)
        work.extend(reversed(children))
    return found


def _check_keyword(
    keyword: str,
    value: JsonValue,
    node: dict[str, Any],
    path: str,
    found: list[str],
    children: list[tuple[JsonValue, str]],
) -> None:
    """Check one keyword's own shape; subschemas go to ``children``."""
    match keyword:
        case "type" if not isinstance(value, str) or value not in _TESTS:
            found.append(f"{path}.type: must be one of {', '.join(_TESTS)}")
        case "oneOf" if not isinstance(value, list) or len(value) < 2:
            found.append(f"{path}.oneOf: must be a list of at least two schemas")
        case "oneOf":
            children += [(child, f"{path}.oneOf[{index}]") for index, child in enumerate(value)]
        case "properties" if not isinstance(value, dict):
            found.append(f"{path}.properties: must be an object of schemas")
        case "properties":
            children += [(child, _member(f"{path}.properties", key)) for key, child in value.items()]
        case "required":
            _check_required(value, node, path, found)
        case "additionalProperties" if not isinstance(value, bool):
            found.append(f"{path}.additionalProperties: must be true or false")
        case "items":
            children.append((value, f"{path}.items"))
        case "enum" if not isinstance(value, list) or not value:
            found.append(f"{path}.enum: must be a list of at least one value")


def _check_required(value: JsonValue, node: dict[str, Any], path: str, found: list[str]) -> None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        found.append(f"{path}.required: must be a list of property names")
        return
    if len(set(value)) != len(value):
        found.append(f"{path}.required: names a property twice")
    declared = node.get("properties")
    declared = declared if isinstance(declared, dict) else {}
    found += [
        f"{path}.required: {name!r} is not declared in properties" for name in value if name not in declared
    ]


def violations(schema: JsonValue, value: JsonValue) -> list[str]:
    """What in ``value`` does not fit a checked ``schema``, as ``path: what is wrong``; empty if it fits.

    Defaults are not applied, extra properties are allowed unless refused, and a boolean is no number.
    A value that JSON cannot hold is one violation.
    """
    try:
        require_lossless(value, "value")
    except EventRefused as error:
        return [f"$: {error.message}"]
    return _Validation().run(schema, value)


class _Validation:
    """The work list of one validation. Alternatives of ``oneOf`` collect into lists of their own."""

    def __init__(self) -> None:
        self._work: list[Callable[[], None]] = []

    def run(self, schema: JsonValue, value: JsonValue) -> list[str]:
        found: list[str] = []
        self._visit(schema, value, "$", found)
        while self._work and len(found) < MAX_VIOLATIONS:
            self._work.pop()()
        return found[:MAX_VIOLATIONS]

    def _later(self, schema: JsonValue, value: JsonValue, path: str, sink: list[str]) -> None:
        self._work.append(lambda: self._visit(schema, value, path, sink))

    def _visit(self, schema: JsonValue, value: JsonValue, path: str, sink: list[str]) -> None:
        if not isinstance(schema, dict) or len(sink) >= MAX_VIOLATIONS:
            return
        kind = schema.get("type")
        if isinstance(kind, str) and kind in _TESTS and not _TESTS[kind](value):
            sink.append(f"{path}: must be {_article(kind)}, not {_kind(value)}")
            return
        if "const" in schema and not _equal(schema["const"], value):
            sink.append(f"{path}: must be {_show(schema['const'])}, not {_show(value)}")
        if "enum" in schema and not any(_equal(option, value) for option in schema["enum"]):
            options = ", ".join(map(_show, schema["enum"]))
            sink.append(f"{path}: must be one of {shorten(options, 300)}, not {_show(value)}")
        if "oneOf" in schema:
            self._alternatives(schema["oneOf"], value, path, sink)
        if isinstance(value, dict):
            self._members(schema, value, path, sink)
        elif isinstance(value, list) and "items" in schema:
            self._items(schema["items"], value, 0, path, sink)

    def _items(
        self, schema: JsonValue, values: list[JsonValue], index: int, path: str, sink: list[str]
    ) -> None:
        """Visit one item; the rest waits as one piece of work, however long the list is."""
        if index < len(values):
            self._work.append(lambda: self._items(schema, values, index + 1, path, sink))
            self._visit(schema, values[index], f"{path}[{index}]", sink)

    def _members(self, schema: dict[str, Any], value: dict[str, Any], path: str, sink: list[str]) -> None:
        properties = schema.get("properties", {})
        sink += [
            f"{_member(path, name)}: is missing" for name in schema.get("required", ()) if name not in value
        ]
        for key in reversed(value):
            if key in properties:
                self._later(properties[key], value[key], _member(path, key), sink)
        if schema.get("additionalProperties", True) is False:
            unknown = (key for key in value if key not in properties)
            sink += [f"{_member(path, key)}: is not a known property" for key in unknown]

    def _alternatives(self, options: list[JsonValue], value: JsonValue, path: str, sink: list[str]) -> None:
        sinks: list[list[str]] = [[] for _ in options]

        def judge() -> None:
            matching = [index for index, found in enumerate(sinks) if not found]
            if len(matching) > 1:
                sink.append(f"{path}: fits {len(matching)} of {len(options)} alternatives, not exactly one")
            elif not matching:
                closest = min(sinks, key=len)[0]
                sink.append(f"{path}: fits none of {len(options)} alternatives ({shorten(closest, 200)})")

        self._work.append(judge)
        for option, found in zip(options, sinks, strict=True):
            self._later(option, value, path, found)


def _equal(left: JsonValue, right: JsonValue) -> bool:
    """Equality of JSON values: 1 equals 1.0, but no boolean equals a number."""
    work = [(left, right)]
    while work:
        a, b = work.pop()
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            work.extend((a[key], b[key]) for key in a)
        elif isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            work.extend(zip(a, b, strict=True))
        elif isinstance(a, bool) is not isinstance(b, bool) or a != b:
            return False
    return True


def _member(path: str, key: str) -> str:
    return f"{path}.{key}" if _IDENTIFIER.match(key) else f"{path}[{_show(key)}]"


def _show(value: JsonValue) -> str:
    if isinstance(value, dict | list):
        return _kind(value) if value else json.dumps(value)
    return shorten(json.dumps(value, ensure_ascii=False), 80)


def _kind(value: JsonValue) -> str:
    for name in ("null", "boolean", "integer", "number", "string", "array", "object"):
        if _TESTS[name](value):
            return _article(name)
    return f"a {type(value).__name__}"


def _article(kind: str) -> str:
    return kind if kind == "null" else f"{'an' if kind[0] in 'aoi' else 'a'} {kind}"
