"""The lines of a run in another process: what is taken for one, and what its end says."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core import run_lines
from dsh_actors.core.run_lines import RunLines, run_end_of

START = {"type": "run.start", "schema_version": 1, "session_id": "x"}
EVENT = {"type": "turn/start", "seq": 0, "time": 1, "data": {"turn": 1}}
BEAT = {"type": "heartbeat", "elapsed_s": 1}
END = {"type": "run.end", "status": "completed", "reason": "completed", "answer": "grün", "steps": 2}


def dumped(*values: object) -> bytes:
    return b"".join(json.dumps(value, ensure_ascii=False).encode() + b"\n" for value in values)


def fed(data: bytes, size: int = 1 << 20) -> tuple[RunLines, list[Any]]:
    lines, events = RunLines(), []
    for start in range(0, len(data), size):
        events += lines.feed(data[start : start + size])
    lines.close()
    return lines, events


@given(st.integers(1, 400))
def test_pieces_of_any_size_give_the_same_events_and_end(size: int) -> None:
    lines, events = fed(dumped(START, BEAT, EVENT, EVENT, END), size)
    assert (events, lines.end, lines.fault) == ([EVENT, EVENT], END, None)


def test_a_last_line_needs_no_end() -> None:
    lines, _ = fed(dumped(START, END)[:-1])
    assert lines.end == END


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"npm WARN deprecated\n", "line 1 of its output is no JSON: npm WARN deprecated"),
        (dumped(START) + b"\xff\x00\n", "line 2 of its output is no JSON: "),
        (dumped(START, [1]), "line 2 of its output is no object with a type"),
        (dumped(START, {"type": 5}), "line 2 of its output is no object with a type"),
        (dumped(EVENT, START), "line 1 of its output is turn/start, not run.start"),
        (dumped(START, START), "line 2 of its output is another run.start"),
        (dumped(START) + b"[" * 100_000 + b"\n", "line 2 of its output is no JSON: [[["),
    ],
)
def test_what_is_no_run_is_named_with_its_place(data: bytes, fault: str) -> None:
    lines, events = fed(data + dumped(END))
    assert lines.fault is not None and lines.fault.startswith(fault)
    assert (lines.end, events) == (None, [])


def test_a_line_without_an_end_takes_no_more_room_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lines, "MAX_LINE_BYTES", 1 << 20)
    lines, _ = fed(dumped(START) + b"x" * (3 << 20), 65_536)
    assert lines.fault == "line 2 of its output is longer than 1 MiB"


def test_what_follows_the_end_counts_for_nothing() -> None:
    lines, events = fed(dumped(START, END, EVENT) + b"garbage\n")
    assert (lines.end, lines.fault, events) == (END, None, [])


def test_an_end_is_an_outcome_with_everything_it_tells() -> None:
    tokens = {"input": 5, "cache_read": 4, "cache_write": 0, "output": 3, "reasoning": 1}
    told = {
        **END,
        "usage": {"own": tokens, "children": dict.fromkeys(tokens, 0)},
        "cost": 0.5,
        "denied": [{"tool": "bash"}],
        "structured": [1],
        "sandbox": "bwrap",
        "warnings": ["mind the gap", 5],
        "limit": {"kind": "max_steps", "value": 1},
        "reason": "max_steps",
    }
    end = run_end_of(told, "mine")
    assert (end.reason, end.exit_code, end.session_id, end.answer) == ("max_steps", 4, "mine", "grün")
    assert (end.usage["own"], end.cost, end.steps, end.structured) == (tokens, 0.5, 2, [1])
    assert (end.sandbox, end.warnings) == ("bwrap", ("mind the gap",))
    assert end.denied == ({"tool": "bash"},) and end.limit == told["limit"]


@pytest.mark.parametrize(
    ("member", "value"),
    [
        *(("usage", 5), ("usage", {"own": []}), ("cost", "much"), ("cost", -1), ("cost", 10**400)),
        *(("steps", "2"), ("denied", {})),
    ],
)
def test_numbers_that_are_none_count_as_nothing(member: str, value: object) -> None:
    end = run_end_of({**END, member: value}, "mine")
    assert end.completed and sum(end.usage["own"].values()) == 0 and end.cost is None


@pytest.mark.parametrize("wrong", [{"reason": "fine"}, {"reason": None}, {"reason": ["x"]}, {"answer": 5}])
def test_an_end_without_an_outcome_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        run_end_of({**END, **wrong}, "mine")


@pytest.mark.parametrize(
    ("member", "value"),
    [("denied", [{"a": math.nan}]), ("limit", {"value": math.inf}), ("structured", {"a": math.nan})],
)
def test_what_no_log_could_hold_is_no_outcome(member: str, value: object) -> None:
    with pytest.raises(ValueError, match="cannot be kept"):
        run_end_of({**END, member: value}, "mine")


def test_an_end_that_is_nested_too_deeply_is_a_fault() -> None:
    deep = b"[" * 700 + b"]" * 700
    lines, _ = fed(dumped(START) + b'{"type":"run.end","reason":"completed","structured":' + deep + b"}\n")
    assert lines.end is None and "nested deeper" in (lines.fault or "")


def test_a_foreign_end_may_say_no_more_than_its_status_and_answer() -> None:
    end = run_end_of({"type": "run.end", "status": "completed", "answer": "hi"}, "mine")
    assert (end.completed, end.answer, end.message) == (True, "hi", "completed")
