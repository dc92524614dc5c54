"""The token meter: its estimate, its anchor, and that it costs what a request adds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core import tokens
from dsh_actors.core.chunks import CallConfig, Usage
from dsh_actors.core.events import Event, Replace
from dsh_actors.core.ids import CallId, MessageId
from dsh_actors.core.messages import (
    Block,
    Message,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    UserSource,
)
from dsh_actors.core.request import ModelRequest, RequestHeader, ToolSchema
from dsh_actors.core.surface import Surface
from dsh_actors.core.tokens import (
    MIN_OUTPUT,
    Breakdown,
    Measurement,
    TokenMeter,
    fitting_output,
    message_tokens,
    reply_usage,
    text_tokens,
)

HEADER = RequestHeader(CallConfig("p", "m"), system="Be good.", tools=(ToolSchema("t", "does", {}),))
FIXED = 2 + 4 + math.ceil(len('[{"name":"t","description":"does","parameters":{}}]') / 4) + 4

blocks = st.one_of(
    st.text(max_size=60).map(TextBlock),
    st.text(max_size=60).map(ReasoningBlock),
    st.text(max_size=40).map(lambda text: ToolCallBlock(CallId("c"), "bash", text)),
    st.text(max_size=60).map(lambda text: ToolResultBlock(CallId("c"), (TextBlock(text),), False)),
)
messages_ = st.lists(
    st.lists(blocks, min_size=1, max_size=3).map(
        lambda found: Message(MessageId("x"), "user", tuple(found), UserSource())
    ),
    max_size=12,
)


def message(*content: Block, name: str = "m") -> Message:
    return Message(MessageId(name), "user", content, UserSource())


def words(count: int, name: str = "m") -> Message:
    """A message of ``count`` tokens."""
    return message(TextBlock("word" * (count - 8)), name=name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 1),
        ("four", 1),
        ("fives", 2),
        ("漢字", 2),  # 1.4
        ("漢" * 100, 70),
        ("한국어", 3),
        ("ひらがな" * 10, 28),
        ("é" * 10, 5),
        ("héllo", 2),
        ("\U0001f600", 1),
        ("abcd漢", 2),
        ("\ud800", 1),
    ],
)
def test_the_estimate_of_a_text_is_the_documented_one(text: str, expected: int) -> None:
    assert text_tokens(text) == expected


def test_the_estimate_of_a_message_is_that_of_its_blocks() -> None:
    assert message_tokens(message(TextBlock("12345678"))) == 4 + 2 + 4
    assert message_tokens(message(ReasoningBlock("1"), TextBlock(""))) == 4 + 5 + 4
    assert message_tokens(message(ToolCallBlock(CallId("id"), "bash", '{"a":1}'))) == 4 + 1 + 2 + 4
    result = ToolResultBlock(CallId("id"), (TextBlock("12345"), TextBlock("1")), False)
    assert message_tokens(message(result)) == 4 + 4 + (2 + 4) + (1 + 4)
    other = OpaqueBlock({"type": "odd", "text": "x"})
    assert message_tokens(message(other)) == 4 + 4 + text_tokens('{"type":"odd","text":"x"}')


@pytest.mark.parametrize(
    ("size", "expected"),
    [((1000, 750), 1000), ((10, 10), 85), ((9000, 9000), 1600), ((None, 5), 1600)],
)
def test_an_image_is_estimated_by_its_size_and_not_by_its_description(
    size: tuple[int | None, int], expected: int
) -> None:
    block = OpaqueBlock({"type": "image", "attachment": {"width": size[0], "height": size[1]}})
    assert message_tokens(message(block)) == 4 + expected + 4


def test_a_request_is_its_system_prompt_its_tools_and_its_messages() -> None:
    request = ModelRequest(HEADER, [words(20), words(30)])
    meter = TokenMeter()
    assert meter.measure(request) == Measurement(FIXED + 50, FIXED + 50, FIXED + 50, False)
    assert meter.breakdown(request) == Breakdown(6, FIXED - 6, 50)
    bare = ModelRequest(RequestHeader(CallConfig("p", "m")), [])
    assert meter.measure(bare).tokens == 0


@given(st.lists(st.one_of(messages_, st.integers(0, 12)), max_size=6))
def test_measuring_step_by_step_is_measuring_the_whole(steps: list[list[Message] | int]) -> None:
    meter = TokenMeter()
    now: list[Message] = []
    for step in steps:
        # Either more comes at the end, or the history is cut and goes on differently.
        now = [*now, *step] if isinstance(step, list) else [*now[:step], words(9, "cut")]
        request = ModelRequest(HEADER, list(now))
        assert meter.measure(request) == TokenMeter().measure(request)
        assert meter.measure(request).tokens == FIXED + sum(map(message_tokens, now))


def test_a_message_is_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, history = TokenMeter(), [words(9, str(number)) for number in range(50)]
    meter.measure(ModelRequest(HEADER, list(history)))
    seen: list[Message] = []
    real = message_tokens
    monkeypatch.setattr(tokens, "message_tokens", lambda each: seen.append(each) or real(each))
    history += [words(9, "new")]
    meter.measure(ModelRequest(HEADER, list(history)))
    assert [each.id for each in seen] == ["new"]


# --- the anchor -------------------------------------------------------------------------------


def anchored(usage: Usage, history: list[Message]) -> TokenMeter:
    meter = TokenMeter()
    meter.anchor(HEADER, meter.measure(ModelRequest(HEADER, list(history))).estimated, usage)
    return meter


def test_a_count_is_reused_and_only_what_came_since_is_estimated() -> None:
    history = [words(100)]
    meter = anchored(Usage(200, 50, 300, 400, 10), history)
    later = ModelRequest(HEADER, [*history, words(40), words(10)])
    assert meter.measure(later) == Measurement(900 + 50, FIXED + 150, 50, True)
    assert meter.measure(ModelRequest(HEADER, list(history))).tokens == 900
    # A history that became shorter counts less, and never less than nothing.
    assert meter.measure(ModelRequest(HEADER, [])).tokens == 800
    far = anchored(Usage(40, 9_000), [words(5_000)])
    assert far.measure(ModelRequest(HEADER, [])).tokens == 0


@pytest.mark.parametrize(
    "header",
    [
        replace(HEADER, config=CallConfig("p", "other")),
        replace(HEADER, config=CallConfig("q", "m")),
        replace(HEADER, system="Be bad."),
        replace(HEADER, tools=()),
    ],
)
def test_a_count_holds_for_its_own_envelope_only(header: RequestHeader) -> None:
    meter = anchored(Usage(5_000, 0), [words(100)])
    assert not meter.measure(ModelRequest(header, [words(100)])).is_anchored
    same = replace(HEADER, config=CallConfig("p", "m", "high", 0.5, 7, ("x",)))
    assert meter.measure(ModelRequest(same, [words(100)])) == Measurement(5_000, FIXED + 100, 0, True)


def test_a_count_below_the_estimate_is_not_believed() -> None:
    meter = anchored(Usage(60, 10), [words(100)])
    whole = FIXED + 100
    assert meter.measure(ModelRequest(HEADER, [words(100)])) == Measurement(whole, whole, whole, False)
    assert anchored(Usage(FIXED, 100), [words(100)]).measure(ModelRequest(HEADER, [])).is_anchored


@given(messages_, messages_, st.integers(0, 3_000))
def test_the_anchored_measure_is_the_count_and_the_estimated_difference(
    first: list[Message], later: list[Message], counted: int
) -> None:
    meter = anchored(Usage(counted, 10_000), first)
    whole = sum(map(message_tokens, later)) - sum(map(message_tokens, first))
    assert meter.measure(ModelRequest(HEADER, list(later))).tokens == max(0, counted + whole)


# --- the anchor of a log ----------------------------------------------------------------------

SOURCE = {"kind": "model", "provider": "p", "model": "m"}


def user(seq: int, text: str) -> Event:
    data = {"id": f"u{seq}", "role": "user", "content": [{"type": "text", "text": text}]}
    return Event("user/message", seq, 0, {**data, "source": {"kind": "user"}}, "append")


def reply(seq: int, usage: dict[str, int] | None, **source: str) -> Event:
    content = [{"type": "text", "text": "x" * 400}]
    message_ = {"id": f"a{seq}", "role": "assistant", "content": content, "source": SOURCE | source}
    data = {"message": message_} | ({"usage": usage} if usage else {})
    return Event("assistant/message", seq, 0, data, "append")


def recalled(*events: Event, header: RequestHeader = HEADER) -> Measurement:
    surface, meter = Surface(), TokenMeter()
    for event in events:
        surface.apply(event)
    meter.recall(header, surface.nodes, surface.messages())
    return meter.measure(ModelRequest(header, surface.messages()))


USAGE = {"inputTokens": 700, "outputTokens": 90, "cacheReadTokens": 200}


def test_a_resumed_session_goes_on_from_the_newest_count_in_its_log() -> None:
    log = (user(0, "hi"), reply(1, {"inputTokens": 5_000, "outputTokens": 1}), user(2, "go"), reply(3, USAGE))
    assert recalled(*log) == Measurement(900 + 108, FIXED + 2 * 108 + 2 * 9, 108, True)
    live = TokenMeter()
    surface = Surface()
    for event in log[:3]:
        surface.apply(event)
    estimated = live.measure(ModelRequest(HEADER, surface.messages())).estimated
    live.anchor(HEADER, estimated, Usage.from_json(USAGE))
    surface.apply(log[3])
    assert live.measure(ModelRequest(HEADER, surface.messages())) == recalled(*log)


def test_a_log_without_a_count_of_this_model_is_estimated() -> None:
    assert not recalled(user(0, "hi")).is_anchored
    assert not recalled(user(0, "hi"), reply(1, None)).is_anchored
    assert not recalled(user(0, "hi"), reply(1, USAGE, model="other")).is_anchored
    # A reply without a count after one with: the older count still holds.
    assert recalled(user(0, "hi"), reply(1, USAGE), reply(2, None)).tokens == 900 + 2 * 108


def test_a_count_of_a_history_that_was_replaced_since_is_none() -> None:
    events = (user(0, "hi"), reply(1, USAGE))
    summary = replace(user(2, "short"), surface_op=Replace(0, 0), source_event_seqs=(0,))
    assert recalled(*events).is_anchored
    assert not recalled(*events, summary).is_anchored


# --- what is made of it -----------------------------------------------------------------------


def counted(tokens_: int, uncounted: int = 0) -> Measurement:
    return Measurement(tokens_, tokens_, uncounted, True)


def test_an_output_limit_shrinks_in_halves_until_it_fits() -> None:
    assert fitting_output(1_048_576, counted(0), 256_000) == 256_000
    assert fitting_output(1_048_576, counted(792_576), 256_000) == 256_000
    assert fitting_output(1_048_576, counted(792_577), 256_000) == 128_000
    assert fitting_output(1_048_576, counted(1_040_000), 256_000) == 8_000
    assert fitting_output(1_000, counted(5_000), 256_000) == MIN_OUTPUT
    assert fitting_output(1_000, counted(5_000), 10) == 10


def test_what_is_only_estimated_gets_a_third_more_room() -> None:
    assert fitting_output(10_000, counted(6_000, 0), 4_000) == 4_000
    assert fitting_output(10_000, counted(6_000, 3), 4_000) == 2_000
    assert fitting_output(10_000, counted(6_000, 6_000), 4_000) == 2_000
    assert fitting_output(10_000, counted(6_001, 6_001), 4_000) == MIN_OUTPUT


@given(st.integers(2_000, 2_000_000), st.integers(0, 2_000_000), st.integers(1, 400_000))
def test_a_fitted_limit_leaves_room_for_the_prompt(window: int, prompt: int, wanted: int) -> None:
    limit = fitting_output(window, counted(prompt), wanted)
    assert 1 <= limit <= wanted
    assert limit <= MIN_OUTPUT or limit + prompt <= window
    assert fitting_output(window, counted(prompt + 1), wanted) <= limit


def test_a_reply_without_a_count_is_estimated_whole() -> None:
    content = (TextBlock("word" * 10), ToolCallBlock(CallId("c"), "bash", json.dumps({"command": "ls"})))
    assert reply_usage(77, content) == Usage(77, 14 + 1 + 5 + 4)
