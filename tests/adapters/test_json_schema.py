"""Schemas that are refused, values that do not fit, and checks that would take for ever."""

from __future__ import annotations

import json
from typing import Any

import gevent
import pytest

from dsh_actors.adapters import json_schema
from dsh_actors.adapters.json_schema import AnswerSchema
from dsh_actors.errors import UsageError

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (["type"], "JSON object"),
        ({"type": "colour"}, r"\$\.type"),
        ({"properties": {"a": {"minimum": "3"}}}, r"\$\.properties\.a\.minimum"),
        ({"pattern": "("}, r"\$\.pattern"),
        ({"$ref": "https://example.org/schema.json"}, "which is not in it"),
        ({"properties": {"a": {"$ref": "other.json#/a"}}}, "which is not in it"),
        ({"$schema": DRAFT_7, "items": [{"$ref": "file:///etc/passwd"}]}, "which is not in it"),
        ({"$ref": "#/$defs/missing"}, "does not have"),
        ({"title": "x" * 2_000_000}, "larger than"),
        ({"const": float("nan")}, "no JSON form"),
        ({"enum": [{1}]}, "no JSON form"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_with_the_place(schema: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        AnswerSchema.of(schema)


def test_a_schema_nested_without_end_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"not": schema}
    with pytest.raises(UsageError, match="nested deeper"):
        AnswerSchema.of(schema)


@pytest.mark.parametrize(
    ("schema", "value", "errors"),
    [
        ({"type": "object", "required": ["n"]}, {}, ["$: 'n' is a required property"]),
        ({"items": {"type": "integer"}}, [1, "x", 2, "y"], ["$[1]: 'x' is not", "$[3]: 'y' is not"]),
        ({"additionalProperties": {"properties": {"c": {"const": 2}}}}, {"a b": {"c": 1}}, ['$["a b"].c: 2']),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"maximum": 3}}}, 4, ["$: 4 is greater"]),
        (
            {"anyOf": [{"type": "null"}, {"properties": {"x": {"type": "null"}}}]},
            {"x": 1},
            ["nearest: $.x: 1 is not of type 'null'"],
        ),
        ({"pattern": "^a+$"}, "b", ["$: 'b' does not match '^a+$'"]),
        ({"patternProperties": {"^n_": {"type": "integer"}}}, {"n_a": "x", "m": "x"}, ["$.n_a: 'x' is not"]),
        ({"uniqueItems": True}, [1, True, "1", {"a": [1]}, {"a": [1.0]}], ['the item {"a": [1.0]}']),
        ({"additionalProperties": False, "patternProperties": {"^a": {}}}, {"a": 1, "b": 2}, ["$: 'b' do"]),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(schema: Any, value: Any, errors: list[str]) -> None:
    found = AnswerSchema.of(schema).errors(value)
    assert len(found) == len(errors)
    assert all(wanted in line for wanted, line in zip(errors, found, strict=True)), found


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"uniqueItems": True}, [1, True, 0, False, "1", None, [1], [True], {"a": 1}, {"b": 1}]),
        ({"format": "email"}, "no address"),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 3, "exclusiveMinimum": True}, 4),
        ({"properties": {"child": {"$ref": "#"}}, "type": "object"}, {"child": {"child": {}}}),
        ({"pattern": r"^\s*\S.*$"}, "word " * 2_000),
        ({"additionalProperties": False, "patternProperties": {"^(a+)+$": {}}}, {"aaa": 1}),
        ({}, [None]),
    ],
)
def test_what_fits_fits(schema: Any, value: Any) -> None:
    assert AnswerSchema.of(schema).errors(value) == []


def test_a_value_of_any_size_gives_few_errors_of_few_words() -> None:
    found = AnswerSchema.of({"items": {"type": "integer"}}).errors(["x" * 1_000_000] * 100)
    assert len(found) == 20 and max(map(len, found)) < 600


def test_a_schema_that_refers_to_itself_without_end_is_told_as_that() -> None:
    assert "without end" in AnswerSchema.of({"$ref": "#"}).errors(1)[0]


def turns_of_others(work: Any) -> int:
    """How often somebody else had a turn while ``work`` ran."""
    worker, turns = gevent.spawn(work), 0
    while not worker.ready():
        gevent.sleep(0)
        turns += 1
    worker.get()
    return turns


def test_a_pattern_that_backtracks_for_ever_is_ended_and_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_schema, "APART_S", 1)
    schema = AnswerSchema.of({"items": {"pattern": "^(a+)+$"}})
    found: list[str] = []
    assert turns_of_others(lambda: found.extend(schema.errors(["a" * 40 + "!"]))) > 10
    assert found == ["$: checking it took longer than 1 s"]


def test_a_long_walk_is_ended_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schema, "CHECK_S", 0.3)
    branch = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}, {"type": "null"}]}
    schema = AnswerSchema.of({"properties": {"a": branch}, "required": ["z"]})
    value: dict[str, Any] = {}
    for _ in range(40):
        value = {"a": value}
    found: list[str] = []
    assert turns_of_others(lambda: found.extend(schema.errors(value))) > 10
    assert found == ["$: checking it took longer than 0.3 s"]


def test_equal_items_of_a_long_list_are_found_in_one_walk() -> None:
    items = [{"n": n, "text": [str(n)]} for n in range(20_000)]
    schema = AnswerSchema.of({"uniqueItems": True})
    assert schema.errors(items) == []
    assert json.dumps(items[7]) in schema.errors([*items, items[7]])[0]
