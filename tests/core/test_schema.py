"""The JSON Schema subset: what it refuses, what it accepts, and that nothing makes it raise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.schema import MAX_VIOLATIONS, check_schema, violations

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "full name"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
        "odd key": {"type": "null"},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def test_a_schema_of_the_subset_has_no_complaint() -> None:
    assert check_schema(PERSON) == []
    assert check_schema({}) == []


def test_every_complaint_about_a_schema_is_reported_with_its_place() -> None:
    schema = {
        "type": "object",
        "minProperties": 1,
        "properties": {
            "a": {"type": "text"},
            "b": {"type": "string", "pattern": "x"},
            "c": {"oneOf": [{}]},
            "d": 3,
            "e": {"items": {}},
            "f": {"enum": []},
        },
        "required": ["z", "a", "a"],
        "additionalProperties": {},
    }
    assert check_schema(schema) == [
        "$: unsupported keyword 'minProperties'",
        "$.required: names a property twice",
        "$.required: 'z' is not declared in properties",
        "$.additionalProperties: must be true or false",
        "$.properties.a.type: must be one of object, array, string, number, integer, boolean, null",
        "$.properties.b: unsupported keyword 'pattern'",
        "$.properties.c.oneOf: must be a list of at least two schemas",
        "$.properties.d: a schema must be an object, not an integer",
        "$.properties.e: items needs type 'array'",
        "$.properties.f.enum: must be a list of at least one value",
    ]


def test_a_cyclic_schema_is_refused() -> None:
    schema: dict[str, Any] = {"type": "array"}
    schema["items"] = schema
    assert len(check_schema(schema)) == 1


def test_a_fitting_value_has_no_violation() -> None:
    assert violations(PERSON, {"name": "x", "age": 3.0, "tags": ["a"], "odd key": None}) == []


def test_violations_name_their_path_in_order() -> None:
    value = {"age": "3", "tags": ["a", 1, "c"], "odd key": 0, "more": 1}
    assert violations(PERSON, value) == [
        "$.name: is missing",
        "$.more: is not a known property",
        "$.age: must be an integer, not a string",
        "$.tags[1]: must be a string, not an integer",
        '$.tags[2]: must be one of "a", "b", not "c"',
        '$["odd key"]: must be null, not an integer',
    ]


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"type": "number"}, True, False),
        ({"type": "integer"}, False, False),
        ({"type": "integer"}, 2.0, True),
        ({"type": "integer"}, 2.5, False),
        ({"type": "number"}, 2, True),
        ({"const": 1}, True, False),
        ({"const": 1}, 1.0, True),
        ({"enum": [0, "x"]}, False, False),
        ({"const": {"a": [1, {"b": None}]}}, {"a": [1, {"b": None}]}, True),
        ({"const": {"a": [1, {"b": None}]}}, {"a": [1, {"b": 0}]}, False),
        ({"type": "object"}, {"anything": 1}, True),
        ({"properties": {}}, 5, True),
        ({}, {"a": [None]}, True),
        ({"type": "string"}, "\ud800", False),
        ({"type": "number"}, float("nan"), False),
        ({"type": "number"}, -0.0, False),
        ({}, {1: 2}, False),
        ({}, {"a": object()}, False),
    ],
)
def test_single_keywords(schema: dict[str, Any], value: Any, fits: bool) -> None:
    assert (violations(schema, value) == []) is fits


def test_exactly_one_alternative_must_fit() -> None:
    schema = {"oneOf": [{"type": "integer"}, {"type": "number"}, {"type": "string"}]}
    assert violations(schema, "x") == []
    assert violations(schema, 1.5) == []
    assert violations(schema, 1) == ["$: fits 2 of 3 alternatives, not exactly one"]
    assert violations(schema, None) == ["$: fits none of 3 alternatives ($: must be an integer, not null)"]


def test_nested_alternatives_are_judged_from_the_inside() -> None:
    inner = {"oneOf": [{"const": 1}, {"const": 2}]}
    schema = {"type": "array", "items": {"oneOf": [inner, {"type": "string"}]}}
    assert violations(schema, [1, "x", 2]) == []
    assert [text.partition(":")[0] for text in violations(schema, [1, 3])] == ["$[1]"]


def test_defaults_are_not_applied() -> None:
    schema = {"type": "object", "properties": {"a": {"default": 1}}, "required": ["a"]}
    value: dict[str, Any] = {}
    assert violations(schema, value) == ["$.a: is missing"]
    assert value == {}


def test_depth_and_number_are_bounded() -> None:
    schema: dict[str, Any] = {"type": "integer"}
    value: Any = "x"
    for _ in range(200):
        schema, value = {"type": "array", "items": schema}, [value]
    assert check_schema(schema) == []
    assert violations(schema, value) == ["$" + "[0]" * 200 + ": must be an integer, not a string"]
    many = violations({"type": "array", "items": {"type": "null"}}, [1] * 5000)
    assert len(many) == MAX_VIOLATIONS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
KEYWORDS = ("type", "oneOf", "properties", "required", "additionalProperties", "items", "enum", "const", "x")


@given(st.dictionaries(st.sampled_from(KEYWORDS), JSON, max_size=4) | JSON)
def test_checking_any_schema_never_raises(schema: Any) -> None:
    assert isinstance(check_schema(schema), list)


@given(JSON)
def test_a_value_fits_its_own_constant_and_validation_never_raises(value: Any) -> None:
    for found in (violations({"const": value}, value), violations(PERSON, value)):
        assert all(text.startswith("$") for text in found)
    if violations({}, value) == []:
        assert violations({"const": value}, value) == []
