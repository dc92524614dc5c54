"""From the text of an answer to its value, and what is said of one that does not fit."""

from __future__ import annotations

import json

import pytest

from dsh_actors.adapters.json_schema import AnswerSchema
from dsh_actors.core.answers import (
    MAX_ANSWER_DEPTH,
    AnswerRefused,
    json_text,
    parse_answer,
    rejection_message,
    schema_in,
    schema_section,
    shown_errors,
    with_schema_section,
    without_schema_section,
)
from dsh_actors.core.events import Event
from dsh_actors.core.outcome import Circumstances, OutcomeFold, RunEnd
from dsh_actors.testing.demo_values import demo_value


@pytest.mark.parametrize(
    "answer",
    [
        '{"n": 1}',
        ' \n {"n": 1}\n\n',
        '```json\n{"n": 1}\n```',
        '\n```\n{"n":\n 1}\n```\n',
        '~~~~ JSON\r\n{"n": 1}\r\n~~~~',
    ],
)
def test_bare_json_and_one_code_fence_are_taken(answer: str) -> None:
    assert parse_answer(answer) == {"n": 1}
    assert json.loads(json_text(answer)) == {"n": 1}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("", "no text"),
        ("```json\n\n```", "no text"),
        ('Here it is: {"n": 1}', "not JSON"),
        ('{"n": 1} and more', "not JSON"),
        ('```json\n{"n": 1}\n```\n```json\n{"n": 2}\n```', "not JSON"),
        ('```json\n{"n": 1}\n```\nThat is it.', "not JSON"),
        ('{"n": 1, "n": 2}', "'n' stands twice"),
        ('{"n": NaN}', "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("1e999", "too large"),
        ("9" * 301, "more than 300 digits"),
        ("9" * 10_000, "more than 300 digits"),
        ('"\\ud800"', "surrogate"),
        ("[" * (MAX_ANSWER_DEPTH + 1) + "]" * (MAX_ANSWER_DEPTH + 1), "nested deeper"),
        ("[" * 100_000, "nested deeper"),
    ],
)
def test_what_is_no_json_or_read_differently_is_refused_with_the_reason(answer: str, says: str) -> None:
    with pytest.raises(AnswerRefused, match=says):
        parse_answer(answer)


def test_the_deepest_answer_and_a_fence_inside_a_text_are_taken() -> None:
    deep = "[" * MAX_ANSWER_DEPTH + "]" * MAX_ANSWER_DEPTH
    assert json.dumps(parse_answer(deep)) == deep
    assert parse_answer('"```\\nx\\n```"') == "```\nx\n```"
    assert parse_answer("-0.0") == 0 and str(parse_answer("-0.0")) == "0.0"  # the log has no other


def test_what_goes_back_is_bounded_and_names_the_errors() -> None:
    errors = shown_errors([f"$.{n}: {'x' * 1_000}" for n in range(1_000)])
    message = rejection_message(errors)
    assert len(message) < 5_000
    assert "$.0: xxx" in message and "there are more errors" in message
    assert shown_errors(["$: one"]) == ["$: one"]


def test_the_section_of_a_schema_takes_the_place_of_another_one() -> None:
    one, two = schema_section({"type": "object"}), schema_section({"const": "</answer_schema>\n"})
    whole = with_schema_section("You are.", one)
    assert whole == f"You are.\n\n{one}"
    assert with_schema_section(whole, one) is whole
    assert with_schema_section(f"{whole}\n\nAnd more.", two) == f"You are.\n\nAnd more.\n\n{two}"
    assert without_schema_section(with_schema_section(whole, two)) == "You are."


# --- how a run ends ---------------------------------------------------------------------------


def ended(*facts: tuple[str, dict]) -> RunEnd:
    fold = OutcomeFold()
    for seq, (kind, data) in enumerate([("turn/start", {"turn": 1}), ("step/start", {}), *facts]):
        fold.apply(Event(kind, seq, 1, data))
    return fold.end(Circumstances(session_id="s"))


def said(text: str) -> tuple[str, dict]:
    return "assistant/message", {"message": {"content": [{"type": "text", "text": text}]}}


DONE = ("turn/end", {"reason": {"kind": "completed"}})
NO = ("answer/rejected", {"errors": ["$.n: is no number", "$.m: neither"], "attempt": 3})


def test_an_answer_that_fits_is_given_as_a_value_and_without_its_fence() -> None:
    end = ended(said('```json\n{"n": 1}\n```'), ("answer/structured", {"value": {"n": 1}}), DONE)
    assert (end.exit_code, end.structured, end.answer) == (0, {"n": 1}, '{"n": 1}')
    assert "schema" not in end.to_json()


def test_an_answer_that_never_fits_ends_with_the_schema_and_its_text() -> None:
    end = ended(said("no"), NO, DONE)
    assert (end.reason, end.exit_code, end.answer, end.partial) == ("schema", 5, "no", True)
    assert end.structured is None
    assert end.to_json()["schema"] == {"errors": NO[1]["errors"]}
    assert "$.n: is no number (and 1 more)" in end.message


def test_a_limit_comes_before_the_schema_and_both_are_named() -> None:
    limit = ("limit/reached", {"kind": "max_steps", "value": 1})
    end = ended(said("no"), NO, limit, ("turn/end", {"reason": {"kind": "aborted", "reason": {}}}))
    assert (end.reason, end.exit_code, end.partial) == ("max_steps", 4, True)
    assert "--max-steps 1 reached" in end.message and "$.n: is no number" in end.message
    assert end.to_json()["schema"]["errors"] == NO[1]["errors"]


def test_a_verdict_holds_for_the_newest_reply_only() -> None:
    end = ended(said("no"), NO, said("{}"), ("answer/structured", {"value": {}}), DONE)
    assert (end.exit_code, end.structured) == (0, {})
    first = (said("{}"), ("answer/structured", {"value": {}}), DONE)
    end = ended(*first, ("turn/start", {"turn": 2}), said("?"), NO, DONE)
    assert (end.exit_code, end.structured) == (5, None)
    end = ended(said("{}"), ("answer/structured", {"value": {}}), said("free words"), DONE)
    assert (end.exit_code, end.structured, end.answer) == (0, None, "free words")


def test_an_unfitting_answer_weighs_more_than_a_denial_and_a_fitting_one_less() -> None:
    call = {"type": "tool-call", "id": "c", "name": "bash"}
    made = ("assistant/message", {"message": {"content": [call]}})
    refused = {"content": [{"toolCallId": "c", "isError": True}]}
    begin = (made, ("tool/result", {"message": refused, "meta": {"denied": {"rule": "r"}}}))
    end = ended(*begin, said("no"), NO, DONE)
    assert (end.exit_code, len(end.denied)) == (5, 1)
    end = ended(*begin, said("{}"), ("answer/structured", {"value": {}}), DONE)
    assert (end.exit_code, end.structured) == (6, {})


def test_a_null_is_a_value_too() -> None:
    end = ended(said("```\nnull\n```"), ("answer/structured", {"value": None}), DONE)
    assert (end.exit_code, end.structured, end.answer) == (0, None, "null")


# --- the demo's answers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "required": ["a", "b"], "properties": {"a": {"type": "string", "minLength": 40}}},
        {"$ref": "#/$defs/x~1y", "$defs": {"x/y": {"type": "array", "minItems": 3, "items": {"const": 4}}}},
        {"anyOf": [{"type": "integer", "minimum": 7}, {"type": "null"}]},
        {"enum": ["yes", "no"]},
        {"type": ["number", "null"], "maximum": 0},
    ],
)
def test_the_demo_answers_with_a_value_of_the_schema_that_its_prompt_asks_for(schema: dict) -> None:
    asked = schema_in(f"You are.\n\n{schema_section(schema)}\n\nMore.")
    assert asked == schema
    assert AnswerSchema.of(schema).errors(demo_value(schema)) == []
