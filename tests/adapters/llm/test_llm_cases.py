"""The wire cases that have no transcript: single oddities of chat-completions streams."""

from __future__ import annotations

import json

import pytest

from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.core.chunks import Finish, ReasoningDelta, TextDelta, Usage
from dsh_actors.core.messages import ReasoningBlock, TextBlock, ToolCallBlock
from dsh_actors.core.retry import facts_of
from tests.adapters.llm.llm_kit import (
    DONE,
    HI,
    Control,
    MemoryTransport,
    answer,
    assemble,
    call,
    config,
    cut,
    delta,
    failure_of,
    finish,
)


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def tool(index: object = None, id: object = None, name: object = None, arguments: object = None) -> dict:
    """One element of tool_calls, with only the given members."""
    function = {k: v for k, v in (("name", name), ("arguments", arguments)) if v is not None}
    members = {"index": index, "id": id, "function": function}
    return {key: value for key, value in members.items() if value is not None}


def calls(*raw: dict) -> bytes:
    return delta(tool_calls=list(raw))


def blocks(body: bytes | list[bytes]) -> tuple:
    return assemble(answer(body)).blocks()


def kind(body: bytes) -> str:
    return answer(body)[-1].kind


def test_a_plain_answer_is_text_and_a_stop_without_usage() -> None:
    assembler = assemble(answer(HI))
    assert assembler.blocks() == (TextBlock("Hi"),)
    assert (assembler.finish, assembler.usage) == (Finish("stop"), None)


def test_a_missing_blank_after_the_colon_is_fine() -> None:
    body = b'data:{"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n' + finish("stop") + b"data:[DONE]\n\n"
    assert blocks(body) == (TextBlock("a"),)


@pytest.mark.parametrize("step", [1, 2, 7])
def test_line_ends_of_any_kind_are_fine(step: int) -> None:
    body = HI.replace(b"\n", b"\r\n")
    assert blocks(cut(body, range(step, len(body), step))) == (TextBlock("Hi"),)
    mixed = delta(content="a")[:-1] + b"\r\n" + finish("stop") + DONE
    assert blocks(mixed) == (TextBlock("a"),)
    assert blocks(b"\xef\xbb\xbf" + HI) == (TextBlock("Hi"),)


def test_comments_keep_a_queued_request_alive_but_not_a_silent_stream() -> None:
    control = Control()
    provider = OpenAiCompatibleProvider(
        config(first_event_timeout_s=600, idle_timeout_s=30),
        transport=MemoryTransport([b": keep-alive\n\n"] * 10 + [delta(content="Hi")] + [b": x\n\n"] * 10),
    )
    call(provider, control=control)
    assert control.deadlines[-12:] == [600] * 11 + [30]


def test_a_character_cut_in_two_is_whole() -> None:
    body = 'data: {"choices":[{"delta":{"content":"é"}}]}\n\n'.encode() + finish("stop")
    assert blocks(cut(body, [body.index(b"\xa9")])) == (TextBlock("é"),)


def test_surrogate_halves_of_two_events_become_one_character() -> None:
    chunks = answer(delta(content="\ud83d") + delta(content="\ude00") + finish("stop") + DONE)
    assert [chunk.text for chunk in chunks if isinstance(chunk, TextDelta)] == ["😀"]
    assert assemble(chunks).blocks() == (TextBlock("😀"),)
    thought = answer(delta(reasoning="\ud83d") + delta(reasoning="\ude00") + finish("stop") + DONE)
    assert assemble(thought).blocks() == (ReasoningBlock("😀"),)


def test_half_a_surrogate_pair_at_the_end_is_replaced() -> None:
    chunks = answer(delta(content="x\ud83d") + finish("stop") + DONE)
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta)) == "x\ufffd"
    assert assemble(chunks).blocks() == (TextBlock("x\ufffd"),)


def test_half_a_surrogate_pair_in_arguments_is_replaced() -> None:
    body = (
        calls(tool(0, "c", "f", '{"a":"\ud83d'))
        + calls(tool(0, arguments='"}'))
        + finish("tool_calls")
        + DONE
    )
    assert blocks(body) == (ToolCallBlock("c", "f", '{"a":"\ufffd"}'),)


def test_an_event_that_is_not_json_is_a_malformed_response() -> None:
    for body in (
        b"data: \xff\n\n",
        delta(content="a") + b'data: {"choices":[{"ind\n\n' + finish("stop"),
        b"data: 7\n\n",
    ):
        failure = failure_of(answer(body))
        assert failure.code == "MALFORMED_RESPONSE"
        assert facts_of(failure.code).retryable


def test_reasoning_comes_before_text_and_null_is_nothing() -> None:
    body = (
        delta(content=None, reasoning_content="")
        + delta(reasoning_content="r")
        + delta(content="t", reasoning_content=None)
        + finish("stop")
    )
    assert blocks(body) == (ReasoningBlock("r"), TextBlock("t"))


def test_reasoning_alone_is_a_success_and_remembers_its_name() -> None:
    chunks = answer(delta(reasoning="r") + finish("stop") + DONE)
    assert assemble(chunks).blocks() == (ReasoningBlock("r"),)
    assert chunks[-1] == Finish("stop", None, {"response": {"reasoningKey": "reasoning"}})


def test_reasoning_under_two_names_counts_once() -> None:
    body = delta(reasoning="r", reasoning_content="r") + delta(reasoning="s", reasoning_content="s")
    chunks = answer(body + delta(content="t") + finish("stop"))
    assert [c.text for c in chunks if isinstance(c, ReasoningDelta)] == ["r", "s"]
    assert chunks[-1].replay_state is None


def test_reasoning_details_are_shown_and_kept_unchanged() -> None:
    detail = {"type": "reasoning.text", "text": "r", "signature": "s"}
    chunks = answer(delta(reasoning_details=[detail]) + delta(content="t") + finish("stop"))
    assert assemble(chunks).blocks() == (ReasoningBlock("r"), TextBlock("t"))
    assert chunks[-1].replay_state["response"]["reasoning_details"] == [detail]


@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        ([{"prompt_tokens": 10, "completion_tokens": 2, "prompt_cache_hit_tokens": 8}], Usage(2, 2, 8)),
        (
            [{"prompt_tokens": 9, "completion_tokens": 1}, {"prompt_tokens": 7, "completion_tokens": 3}],
            Usage(7, 3),
        ),
        (
            [{"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}}],
            Usage(0, 1, 9),
        ),
        ([{"prompt_tokens": "5", "completion_tokens": True}], None),
        ([{"prompt_tokens": 4, "completion_tokens": 1}, None, {}], Usage(4, 1)),
        (
            [
                {
                    "prompt_tokens": 4,
                    "completion_tokens": 9,
                    "completion_tokens_details": {"reasoning_tokens": 5},
                }
            ],
            Usage(4, 9, reasoning=5),
        ),
    ],
)
def test_usage_is_split_into_disjoint_counts_and_the_last_wins(usages: list, expected: Usage | None) -> None:
    body = delta(content="a") + finish("stop") + b"".join(event({"choices": [], "usage": u}) for u in usages)
    assert assemble(answer(body + DONE)).usage == expected


def test_usage_is_found_inside_a_choice_and_in_the_vendors_member() -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 1}
    for carrier in (
        {"choices": [{"index": 0, "delta": {}, "usage": usage}]},
        {"choices": [], "x_groq": {"usage": usage}},
        {"usage": usage},
    ):
        assert assemble(answer(delta(content="a") + finish("stop") + event(carrier) + DONE)).usage == Usage(
            4, 1
        )


# --- tool calls -------------------------------------------------------------------------------


def test_fragments_of_a_call_are_joined() -> None:
    opening = calls(tool(0, "c", "f", ""))
    fragments = b"".join(calls(tool(0, arguments=text)) for text in ('{"a', '":1', "}"))
    assert blocks(opening + fragments + finish("tool_calls")) == (ToolCallBlock("c", "f", '{"a":1}'),)
    assert blocks(opening + finish("tool_calls")) == (ToolCallBlock("c", "f", "{}"),)


def test_two_calls_under_one_index_stay_two() -> None:
    body = calls(tool(0, "c1", "f", "{}"), tool(0, "c2", "g", '{"a":1}')) + finish("stop")
    assert blocks(body) == (ToolCallBlock("c1", "f", "{}"), ToolCallBlock("c2", "g", '{"a":1}'))
    assert kind(body) == "tool-calls"
    nameless_ids = calls(tool(0, None, "f", '{"a":1}'), tool(0, None, "f", '{"a":2}')) + finish("stop")
    assert [block.arguments for block in blocks(nameless_ids)] == ['{"a":1}', '{"a":2}']


def test_calls_without_ids_get_different_ones_in_every_response() -> None:
    body = calls(tool(name="f", arguments="{}"), tool(name="g", arguments="{}")) + finish("tool_calls")
    ids = []
    for request in (b'{"messages":[1]}', b'{"messages":[1,2]}'):
        provider = OpenAiCompatibleProvider(config(), transport=MemoryTransport([body]))
        ids += [block.id for block in assemble(call(provider, request)).blocks()]
    assert len(set(ids)) == 4


def test_the_same_id_twice_in_one_message_is_made_different() -> None:
    body = calls(tool(0, "c", "f", "{}"), tool(1, "c", "g", "{}")) + finish("tool_calls")
    assert [block.id for block in blocks(body)] == ["c", "c_2"]


def test_empty_words_in_a_continuation_change_nothing() -> None:
    body = calls(tool(0, "c", "f", '{"a":1')) + delta(
        tool_calls=[{"index": 0, "id": "", "function": {"name": None, "arguments": None}}]
    )
    body += calls(tool("0", "", "", "}")) + finish("tool_calls")
    assert blocks(body) == (ToolCallBlock("c", "f", '{"a":1}'),)


def test_a_name_may_come_in_pieces_or_again_and_again() -> None:
    pieces = calls(tool(0, "c", "get_")) + calls(tool(0, name="time")) + finish("tool_calls")
    assert blocks(pieces) == (ToolCallBlock("c", "get_time", "{}"),)
    again = b"".join(calls(tool(0, "c", "f", text)) for text in ('{"a', '":', "1}", ""))
    assert blocks(again + finish("tool_calls")) == (ToolCallBlock("c", "f", '{"a":1}'),)
    without_id = b"".join(calls(tool(0, None, "f", text)) for text in ('{"a', '":', "1}", ""))
    assert [b.arguments for b in blocks(without_id + finish("tool_calls"))] == ['{"a":1}']


def test_another_id_without_a_name_continues_the_call() -> None:
    body = calls(tool(0, "c", "f", '{"a"')) + calls(tool(0, "other", None, ":1}")) + finish("tool_calls")
    assert blocks(body) == (ToolCallBlock("c", "f", '{"a":1}'),)


def test_fragments_without_an_index_go_to_their_id_or_to_the_last_call() -> None:
    body = calls(tool(None, "a", "f", "{"), tool(None, "b", "g", '{"x"')) + calls(tool(None, "a", None, "}"))
    body += calls(tool(arguments=":2}")) + finish("tool_calls")
    assert blocks(body) == (ToolCallBlock("a", "f", "{}"), ToolCallBlock("b", "g", '{"x":2}'))


def test_arguments_that_are_an_object_become_its_text() -> None:
    body = calls(tool(0, "c", "f", {"a": "é"})) + finish("tool_calls")
    assert blocks(body) == (ToolCallBlock("c", "f", '{"a":"é"}'),)


def test_cut_arguments_stay_raw_where_the_model_stopped_by_itself() -> None:
    body = calls(tool(0, "c", "f", '{"a":'))
    assert blocks(body + finish("tool_calls") + DONE) == (ToolCallBlock("c", "f", '{"a":'),)
    assert kind(body + finish("tool_calls") + DONE) == "tool-calls"


def test_a_call_cut_by_length_is_dropped() -> None:
    body = delta(content="t") + calls(tool(0, "c", "f", '{"a":')) + finish("length") + DONE
    assert (blocks(body), kind(body)) == ((TextBlock("t"),), "max-tokens")


def test_a_call_without_a_name_is_malformed_unless_it_is_nothing_at_all() -> None:
    assert (
        failure_of(answer(calls(tool(0, "c", None, '{"a":1}')) + finish("tool_calls"))).code
        == "MALFORMED_RESPONSE"
    )
    assert blocks(delta(content="t") + calls(tool(0, "c")) + finish("tool_calls")) == (TextBlock("t"),)


def test_the_legacy_function_call_is_a_call() -> None:
    body = delta(function_call={"name": "f", "arguments": '{"a"'}) + delta(function_call={"arguments": ":1}"})
    (block,) = blocks(body + finish("function_call"))
    assert (block.name, block.arguments) == ("f", '{"a":1}')
    assert block.id.startswith("call_")


def test_a_whole_message_in_place_of_a_delta_is_accepted() -> None:
    body = event({"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"type": "x"}]}}]})
    assert blocks(body + finish("stop")) == (TextBlock("a"),)


# --- ends -------------------------------------------------------------------------------------


def test_an_answer_of_nothing_is_an_empty_response() -> None:
    for body in (finish("stop") + DONE, finish("tool_calls") + DONE, b"", DONE):
        failure = failure_of(answer(body))
        assert (failure.code, facts_of(failure.code).retryable) == ("EMPTY_RESPONSE", True)
    assert answer(finish("length") + DONE) == [Finish("max-tokens")]


def test_a_stream_without_a_finish_is_closed_not_complete() -> None:
    for body in (
        delta(content="a"),
        delta(content="a") + b'data: {"choices":[{"ind',
        delta(content="a") + b'data: {"choices":[{"ind\n',
        b": queued\n\n: queued\n\n",
        b'data: {"cho',
    ):
        chunks = answer(body)
        assert failure_of(chunks).code == "STREAM_CLOSED"
        shown = (TextBlock("a"),) if b"content" in body else ()
        assert assemble(chunks).interrupted_blocks() == shown


def test_a_finish_without_done_and_done_without_a_finish_are_complete() -> None:
    assert kind(delta(content="a") + finish("stop")) == "stop"
    assert kind(delta(content="a") + DONE) == "stop"
    assert kind(calls(tool(0, "c", "f", "{}")) + DONE) == "tool-calls"
    assert kind(delta(content="a") + finish("stop") + DONE[:-1]) == "stop"


def test_a_broken_connection_after_the_finish_is_no_failure() -> None:
    assert answer([delta(content="a") + finish("stop"), ConnectionResetError()])[-1] == Finish("stop")


def test_a_broken_connection_before_the_finish_is_a_failure() -> None:
    chunks = answer([delta(content="a"), ConnectionResetError(104, "Connection reset by peer")])
    assert failure_of(chunks).code == "TRANSPORT"
    assert "Connection reset by peer" in failure_of(chunks).message


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        ({"message": "boom", "code": 500}, "SERVER", 500),
        ({"message": "boom", "code": "context_length_exceeded"}, "CONTEXT_WINDOW_EXCEEDED", None),
        ({"message": "boom", "type": "rate_limit_error"}, "RATE_LIMIT", None),
        ({"message": "bad key", "type": "authentication_error"}, "AUTH", None),
        ({"message": "slow down", "code": "429"}, "RATE_LIMIT", 429),
        ("something broke", "SERVER", None),
    ],
)
def test_an_error_inside_a_stream_is_never_a_stop(error: object, code: str, status: int | None) -> None:
    failure = failure_of(answer(delta(content="a") + event({"error": error}) + finish("stop") + DONE))
    assert (failure.code, failure.status) == (code, status)


def test_other_shapes_of_an_error_inside_a_stream_are_seen() -> None:
    flat = event({"object": "error", "message": "too many", "code": 400})
    assert failure_of(answer(flat)).code == "INVALID_REQUEST"
    named = b"event: error\ndata: {}\n\n"
    assert failure_of(answer(delta(content="a") + named)).code == "SERVER"
    assert failure_of(answer(event([{"error": {"message": "x", "code": 503}}]))).code == "OVERLOADED"
    assert (
        failure_of(answer(event({"code": "Throttling", "message": "wait", "request_id": "r"}))).code
        == "RATE_LIMIT"
    )


def test_a_null_error_is_none() -> None:
    body = event({"error": None, "choices": [{"delta": {"content": "a"}}]}) + finish("stop")
    assert blocks(body) == (TextBlock("a"),)


@pytest.mark.parametrize(
    ("reason", "code", "retryable"),
    [
        ("insufficient_system_resource", "INSUFFICIENT_SYSTEM_RESOURCE", True),
        ("content_filter", "CONTENT_FILTER", False),
        ("sensitive", "CONTENT_FILTER", False),
        ("network_error", "TRANSPORT", True),
        ("abort", "SERVER", True),
        ("weird", "WEIRD", False),
    ],
)
def test_a_finish_that_is_a_failure_is_reported_as_one(reason: str, code: str, retryable: bool) -> None:
    failure = failure_of(answer(delta(content="a") + finish(reason) + DONE))
    assert (failure.code, facts_of(failure.code).retryable) == (code, retryable)


@pytest.mark.parametrize(("reason", "expected"), [("eos", "stop"), ("model_length", "max-tokens")])
def test_other_words_for_a_finish_are_understood(reason: str, expected: str) -> None:
    assert kind(delta(content="a") + finish(reason) + DONE) == expected


def test_an_empty_finish_reason_says_nothing_and_the_first_one_stays() -> None:
    assert kind(delta(content="a") + finish("") + finish("length") + finish("stop")) == "max-tokens"


def test_a_context_overflow_is_a_failure_only_where_nothing_was_written() -> None:
    word = "model_context_window_exceeded"
    assert failure_of(answer(finish(word) + DONE)).code == "CONTEXT_WINDOW_EXCEEDED"
    assert kind(delta(content="a") + finish(word) + DONE) == "max-tokens"


def test_a_body_that_is_no_event_stream_is_judged_by_its_content() -> None:
    json_type = {"content-type": "application/json"}
    assert assemble(answer([HI], headers=json_type)).blocks() == (TextBlock("Hi"),)
    failure = failure_of(answer([b'{"error":{"message":"x","code":503}}\n'], headers=json_type))
    assert (failure.code, failure.status) == ("OVERLOADED", 503)
    assert failure_of(answer([b"<html><p>Log in</p></html>\n"])).code == "MALFORMED_RESPONSE"
    assert (
        failure_of(answer([b'error: {"code":400,"message":"bad","type":"x"}\n\n'])).code == "INVALID_REQUEST"
    )


def test_every_stream_ends_in_one_finish_after_at_most_one_usage() -> None:
    usage = event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    for body in (HI, usage + HI + usage, usage + finish("weird") + DONE, usage, b"", usage + b"data: {\n\n"):
        names = [type(chunk).__name__ for chunk in answer(body)]
        assert names.count("Finish") == 1 and names[-1] == "Finish"
        assert names.count("UsageChunk") == (1 if usage in body else 0)
        assert "UsageChunk" not in names[:-2]
