"""Closing an interrupted turn: who is owed what, and that it is paid once."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.core.events import Event, Replace
from dsh_actors.core.messages import Message
from dsh_actors.core.repair import Closers
from dsh_actors.errors import EventRefused


class Log:
    """Builds a log event by event; the time of each event is 1000 + its seq."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, kind: str, data: dict[str, Any], **extra: Any) -> Log:
        seq = len(self.events)
        self.events.append(Event(kind, seq, 1000 + seq, data, **extra))
        return self

    def turn(self, turn: int) -> Log:
        return self.add("turn/start", {"turn": turn})

    def end_turn(self, turn: int) -> Log:
        return self.add("turn/end", {"turn": turn, "reason": {"kind": "completed"}})

    def step(self, step: int) -> Log:
        return self.add("step/start", {"turn": 1, "step": step})

    def end_step(self, step: int) -> Log:
        return self.add("step/end", {"turn": 1, "step": step})

    def reply(self, *call_ids: str) -> Log:
        blocks: list[dict[str, Any]] = [{"type": "text", "text": "I look"}]
        blocks += [{"type": "tool-call", "id": c, "name": "bash", "arguments": "{}"} for c in call_ids]
        source = {"kind": "model", "provider": "p", "model": "m"}
        message = {"id": f"m{len(self.events)}", "role": "assistant", "content": blocks, "source": source}
        return self.add("assistant/message", {"turn": 1, "step": 1, "message": message}, surface_op="append")

    def call(self, call_id: str) -> Log:
        data = {"turn": 1, "step": 1, "callId": call_id, "name": "bash", "arguments": "{}"}
        return self.add("tool/call", data)

    def result(self, call_id: str, op: Any = "append") -> Log:
        block = {"type": "tool-result", "toolCallId": call_id, "content": []}
        source = {"kind": "tool", "callId": call_id}
        message = {"id": f"m{len(self.events)}", "role": "user", "content": [block], "source": source}
        return self.add("tool/result", {"turn": 1, "step": 1, "message": message}, surface_op=op)

    def asked(self, call_id: str) -> Log:
        return self.add("approval/asked", {"id": f"q-{call_id}", "toolName": "bash", "callId": call_id})

    def decided(self, call_id: str, outcome: str) -> Log:
        return self.add("approval/decided", {"id": f"q-{call_id}", "outcome": outcome})


def closing(events: list[Event]) -> tuple[Event, ...]:
    closers = Closers()
    for event in events:
        closers.observe(event)
    return closers.closing_events(len(events))


def shape(events: tuple[Event, ...]) -> list[str]:
    return [event.type for event in events]


def test_a_balanced_or_empty_log_needs_nothing() -> None:
    assert closing([]) == ()
    whole = Log().turn(1).step(1).reply("a").call("a").result("a").end_step(1).end_turn(1)
    assert closing(whole.events) == ()


def test_unanswered_calls_are_answered_in_the_order_the_model_asked() -> None:
    log = Log().turn(1).step(1).reply("a", "b", "c").call("b").call("a").result("a")
    results = closing(log.events)
    assert shape(results) == ["tool/result", "tool/result", "step/end", "turn/end"]
    unknown, not_started, step_end, turn_end = results
    assert [event.seq for event in results] == [6, 7, 8, 9]
    assert {event.time for event in results} == {1005}

    assert unknown.data["error"] == {"name": "ToolOutcomeUnknownError", "code": "TOOL_OUTCOME_UNKNOWN"}
    assert unknown.data["message"]["id"] == "interrupted-tool-result-b-6"
    assert unknown.source_event_seqs == (3,)
    assert not_started.data["error"] == {"name": "ToolNotStartedError", "code": "TOOL_NOT_STARTED"}
    assert not_started.data["message"]["id"] == "interrupted-tool-result-c-7"
    assert not_started.source_event_seqs is None

    for event, call_id in ((unknown, "b"), (not_started, "c")):
        assert event.surface_op == "append"
        assert (event.data["turn"], event.data["step"]) == (1, 1)
        message = event.data["message"]
        assert Message.from_json(message).to_json() == message
        assert message["role"] == "user" and message["source"] == {"kind": "tool", "callId": call_id}
        (block,) = message["content"]
        assert block["toolCallId"] == call_id and block["isError"] is True
    assert step_end.data == {"turn": 1, "step": 1}
    assert turn_end.data == {"turn": 1, "reason": {"kind": "interrupted"}}


def test_the_texts_match_the_cause() -> None:
    log = Log().turn(1).step(1).reply("a", "b").call("a")
    unknown, not_started = (
        e.data["message"]["content"][0]["content"][0]["text"] for e in closing(log.events)[:2]
    )
    assert "outcome is unknown" in unknown and "not started" not in unknown
    assert "not started" in not_started and "unknown" not in not_started


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (None, "TOOL_NOT_STARTED"),
        ("rejected", "TOOL_NOT_STARTED"),
        ("cancelled", "TOOL_NOT_STARTED"),
        ("allowed-once", "TOOL_OUTCOME_UNKNOWN"),
    ],
)
def test_a_call_that_waited_for_a_yes_was_not_started(outcome: str | None, code: str) -> None:
    log = Log().turn(1).step(1).reply("a", "b").call("a").call("b").asked("b")
    if outcome is not None:
        log.decided("b", outcome)
    other, asked = closing(log.events)[:2]
    assert other.data["error"]["code"] == "TOOL_OUTCOME_UNKNOWN"
    assert asked.data["error"]["code"] == code
    assert asked.source_event_seqs == (4,)
    closers = Closers()
    for event in log.events:
        closers.observe(event)
        closers = Closers.restore(json.loads(json.dumps(closers.snapshot())), event.time)
    assert closers.closing_events(len(log.events)) == closing(log.events)


def test_of_two_calls_with_one_id_neither_passes_for_not_started_because_one_is_asked_for() -> None:
    log = Log().turn(1).step(1).reply("a", "a").call("a").call("a").asked("a")
    assert [e.data["error"]["code"] for e in closing(log.events)[:2]] == ["TOOL_OUTCOME_UNKNOWN"] * 2


def test_a_call_of_a_step_that_ended_is_not_answered() -> None:
    log = Log().turn(1).step(1).reply("a").end_step(1)
    assert shape(closing(log.events)) == ["turn/end"]


def test_only_the_last_turn_is_closed() -> None:
    log = Log().turn(1).step(1).reply("a").end_turn(1)
    assert closing(log.events) == ()
    log.turn(2)
    (end,) = closing(log.events)
    assert end.data == {"turn": 2, "reason": {"kind": "interrupted"}}


def test_two_calls_with_the_same_id_get_two_results() -> None:
    log = Log().turn(1).step(1).reply("a", "a").call("a")
    first, second = closing(log.events)[:2]
    assert first.data["error"]["code"] == "TOOL_OUTCOME_UNKNOWN"
    assert second.data["error"]["code"] == "TOOL_NOT_STARTED"
    log.call("a")
    assert [event.source_event_seqs for event in closing(log.events)[:2]] == [(3,), (4,)]
    log.result("a")
    assert shape(closing(log.events)) == ["tool/result", "step/end", "turn/end"]


def test_a_pruned_result_of_an_earlier_step_answers_no_call() -> None:
    log = Log().turn(1).step(1).reply("a").call("a").result("a").end_step(1).step(2).reply("a")
    log.result("a", Replace(4, 4))
    assert shape(closing(log.events)) == ["tool/result", "step/end", "turn/end"]


def test_a_payload_of_the_wrong_shape_is_refused_by_name() -> None:
    with pytest.raises(EventRefused, match="event 0: wrong turn/start payload"):
        closing(Log().add("turn/start", {}).events)


@st.composite
def logs(draw: st.DrawFn) -> list[Event]:
    """A run of the loop, cut anywhere."""
    log = Log()
    for turn in range(1, draw(st.integers(1, 3)) + 1):
        log.turn(turn)
        for step in range(1, draw(st.integers(0, 2)) + 1):
            log.step(step)
            log.add("assistant/chunk", {"turn": turn, "step": step, "chunk": {"type": "finish"}})
            calls = draw(st.lists(st.sampled_from("abc"), max_size=3))
            log.reply(*calls)
            for call in calls:
                log.call(call)
            for call in draw(st.permutations(calls)):
                log.result(call)
            log.end_step(step)
        log.end_turn(turn)
    return log.events[: draw(st.integers(0, len(log.events)))]


@settings(max_examples=150, deadline=None)
@given(logs())
def test_after_closing_every_call_is_answered_once_and_nothing_is_open(events: list[Event]) -> None:
    whole = [*events, *closing(events)]
    asked: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    open_turn = open_step = False
    for seq, event in enumerate(whole):
        assert event.seq == seq
        match event.type:
            case "turn/start":
                assert not open_turn
                open_turn = True
            case "turn/end":
                assert open_turn and not open_step
                open_turn = False
            case "step/start":
                open_step = True
            case "step/end":
                assert open_step and asked == answered
                open_step = False
            case "assistant/message":
                blocks = event.data["message"]["content"]
                asked.update(block["id"] for block in blocks if block["type"] == "tool-call")
            case "tool/result":
                answered[event.data["message"]["content"][0]["toolCallId"]] += 1
    assert not open_turn and not open_step and asked == answered
    assert closing(whole) == ()
