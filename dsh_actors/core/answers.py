"""Structured answers, the pure part: from an answer's text to its value, and what the model is told.

Whether a value fits a schema is for `adapters/json_schema.py`; who asks for that, and when, for
`adapters/answer_desk.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from dsh_actors.core.events import Event
from dsh_actors.core.text import JsonObject, JsonValue, require_lossless, shorten, single_keys
from dsh_actors.errors import EventRefused

__all__ = [
    "MAX_ANSWER_DEPTH",
    "REJECTED",
    "STRUCTURED",
    "AnswerRefused",
    "FinalReply",
    "json_text",
    "parse_answer",
    "parse_json",
    "rejection_message",
    "rejection_summary",
    "require_plain",
    "schema_in",
    "schema_section",
    "shown_errors",
    "with_schema_section",
    "without_schema_section",
]

STRUCTURED = "answer/structured"
"""The event of an answer that fits: ``{"value"}``."""

REJECTED = "answer/rejected"
"""The event of one that does not: ``{"errors", "attempt"}``, attempts of a turn counted from 1."""

MAX_ANSWER_DEPTH = 100
"""Nesting of an answer, and of a schema: what walks through them may recurse."""

MAX_DIGITS = 300
"""Digits of an integer: what is larger is no number to most who read it."""

_MAX_ERRORS = 10
_MAX_ERROR_CHARS = 300

_FENCE = re.compile(r"\s*(`{3,}|~{3,})[ \t]*[\w.+-]*[ \t]*\r?\n(.*?)\r?\n[ \t]*\1[ \t]*\s*\Z", re.DOTALL)
_SECTION = re.compile(r"(?:\A|\n\n)<answer_schema>\n.*?\n</answer_schema>", re.DOTALL)


class AnswerRefused(ValueError):
    """A text that is no JSON value, or not one that can be kept; the text says why."""


def json_text(answer: str) -> str:
    """The JSON of an answer: the inside of its code fence, if it is nothing but one, or all of it."""
    fenced = _FENCE.match(answer)
    if fenced is not None and not re.search(rf"^[ \t]*{fenced[1]}", fenced[2], re.MULTILINE):
        return fenced[2].strip()
    return answer.strip()


def parse_answer(answer: str) -> JsonValue:
    """The value of an answer that is JSON, bare or in one code fence. Raises `AnswerRefused`."""
    text = json_text(answer)
    if not text:
        raise AnswerRefused("the answer has no text")
    return parse_json(text)


def parse_json(text: str) -> JsonValue:
    """A JSON value in the strict sense. Raises `AnswerRefused` for anything else.

    Refused too is what readers disagree on: a key given twice, NaN and Infinity, numbers of more than
    300 digits, lone surrogates, and nesting deeper than `MAX_ANSWER_DEPTH`.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_members, parse_constant=_constant, parse_int=_integer, parse_float=_real
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        begins = f"; it begins with {shorten(text, 40)!r}" if error.pos == 0 else ""
        raise AnswerRefused(f"it is not JSON: {error.msg} at {place}{begins}") from error
    except RecursionError as error:
        raise AnswerRefused(_TOO_DEEP) from error
    require_plain(value)
    return value


def require_plain(value: JsonValue) -> None:
    """Raises `AnswerRefused` for a value that the log could not hold, or that is nested too deeply."""
    _require_shallow(value)
    try:
        require_lossless(value, "a value")
    except EventRefused as error:
        raise AnswerRefused(error.message) from error


_TOO_DEEP = f"it is nested deeper than {MAX_ANSWER_DEPTH} levels"


def _members(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    try:
        return single_keys(pairs)
    except ValueError as error:
        raise AnswerRefused(str(error)) from error


def _constant(name: str) -> JsonValue:
    raise AnswerRefused(f"{name} is not a number in JSON")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise AnswerRefused(f"the number {digits[:20]}… has more than {MAX_DIGITS} digits")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise AnswerRefused(f"the number {shorten(digits, 30)} is too large")
    return value or 0.0  # the log has no form for a negative zero


def _require_shallow(value: JsonValue) -> None:
    work = [(value, 0)]
    while work:
        item, depth = work.pop()
        if isinstance(item, dict | list):
            if depth >= MAX_ANSWER_DEPTH:
                raise AnswerRefused(_TOO_DEEP)
            inner = item.values() if isinstance(item, dict) else item
            work.extend((each, depth + 1) for each in inner)


# --- what the model is told -------------------------------------------------------------------


def schema_section(schema: JsonObject) -> str:
    """The part of the system prompt that asks for an answer of this form."""
    text = json.dumps(schema, ensure_ascii=False, separators=(",", ":"))
    return (
        "<answer_schema>\n"
        "Your final answer, the reply in which you call no tool, must be one JSON value that fits the JSON "
        "Schema below, and nothing else: no words before or after it. It is checked; when it does not fit, "
        "you are told why and asked again.\n"
        f"{text}\n"
        "</answer_schema>"
    )


def with_schema_section(prompt: str, section: str) -> str:
    """A whole system prompt with ``section`` in it, in the place of one that asks for another form."""
    if section in prompt:
        return prompt
    rest = without_schema_section(prompt)
    return f"{rest}\n\n{section}" if rest else section


def schema_in(prompt: str) -> JsonObject | None:
    """The schema that a whole system prompt asks for; None where it asks for none."""
    found = _SECTION.search(prompt)
    if found is None:
        return None
    try:
        schema = json.loads(found[0].split("\n")[-2])
    except ValueError:  # somebody else's section of the same name
        return None
    return schema if isinstance(schema, dict) else None


def without_schema_section(prompt: str) -> str:
    """A whole system prompt that asks for no form of the answer."""
    return _SECTION.sub("", prompt)


def shown_errors(errors: Sequence[str]) -> list[str]:
    """A bounded list of a bounded size, as it is logged and sent back."""
    shown = [shorten(error, _MAX_ERROR_CHARS) for error in errors[:_MAX_ERRORS]]
    if len(errors) > _MAX_ERRORS:
        shown.append("there are more errors")
    return shown


def rejection_message(errors: Sequence[str]) -> str:
    """What the model reads about an answer that does not fit."""
    lines = "\n".join(f"- {error}" for error in errors)
    return (
        "Your answer does not fit the schema:\n"
        f"{lines}\n"
        "Give the whole answer again, as one JSON value that fits the schema and nothing else."
    )


def rejection_summary(errors: Sequence[str]) -> str:
    """The same for people, in one line."""
    first = errors[0] if errors else "no reason is known"
    return f"the answer does not fit the schema: {first}" + (
        f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    )


class FinalReply:
    """Follows a session's events: the text of the newest reply, and the verdict on it, if there is one."""

    __slots__ = ("text", "turn", "verdict")

    def __init__(self) -> None:
        self.text = ""
        self.turn = 0
        self.verdict: Event | None = None

    def apply(self, event: Event) -> None:
        """Take one event, in order."""
        match event.type:
            case "turn/start":
                self.turn, self.text, self.verdict = event.data["turn"], "", None
            case "assistant/message":
                blocks = event.data["message"]["content"]
                self.text = "".join(block["text"] for block in blocks if block["type"] == "text")
                self.verdict = None
            case "answer/structured" | "answer/rejected":
                self.verdict = event

    @property
    def errors(self) -> list[str] | None:
        """Why the newest reply was rejected; None if it was not."""
        if self.verdict is None or self.verdict.type != REJECTED:
            return None
        errors: Any = self.verdict.data.get("errors")
        return [error for error in errors if isinstance(error, str)] if isinstance(errors, list) else []
