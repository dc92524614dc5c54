"""Single facts of Anthropic's stream that no transcript shows."""

from __future__ import annotations

import json
import logging
import re

import pytest

from dsh_actors.core.chunks import CallConfig, Chunk, Finish, Usage, chunk_from_json
from dsh_actors.core.messages import ReasoningBlock, TextBlock, ToolCallBlock
from dsh_actors.core.redaction import RedactingStream, Redactor
from dsh_actors.core.retry import facts_of
from tests.adapters.llm.llm_kit import Control, MemoryTransport, assemble, call, failure_of
from tests.adapters.llm.llm_wires import (
    BY_NAME,
    block,
    event,
    started,
    stopped,
    text_block,
    thinking_block,
    tool_block,
)

WIRE = BY_NAME["anthropic"]


def answer(*body: bytes, control: Control | None = None, **settings: object) -> list[Chunk]:
    provider = WIRE.build(MemoryTransport(body), **settings)
    return call(provider, control=control, config=CallConfig("test", "claude-x"))


def reply(*blocks: bytes, reason: str | None = "end_turn", **delta: object) -> list[Chunk]:
    return answer(started() + b"".join(blocks) + stopped(reason, **delta))


def entries(chunks: list[Chunk]) -> list[object] | None:
    state = assemble(chunks).replay_state()
    return None if state is None else state["blocks"]


def test_pings_and_unknown_events_change_nothing() -> None:
    odd = event("ping") + event("content_block_stop", index=9)
    odd += event("some_future_event", error=None, message="x")
    chunks = answer(odd + started() + odd + text_block(0, "a") + odd + stopped() + odd)
    assert assemble(chunks).blocks() == (TextBlock("a"),)
    assert chunks[-1] == Finish("stop")


def test_citations_are_passed_over_and_unknown_deltas_noted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for kind, notes in (("citations_delta", 0), ("some_future_delta", 1)):
        caplog.clear()
        odd = event("content_block_delta", index=0, delta={"type": kind})
        begun, ended = text_block(0, "a").split(b"event: content_block_stop")
        chunks = reply(begun, odd, b"event: content_block_stop" + ended)
        assert assemble(chunks).blocks() == (TextBlock("a"),)
        assert caplog.text.count("unknown_delta") == notes


def test_a_ping_before_the_reply_is_a_sign_of_a_queue_and_later_one_of_life() -> None:
    control = Control()
    pieces = [event("ping"), started(), event("ping"), text_block(0, "a")]
    answer(*pieces, control=control, first_event_timeout_s=600, idle_timeout_s=30)
    assert control.deadlines[1:] == [600, 600, 30, 30, 30]


def test_the_type_may_be_missing_where_the_event_is_named() -> None:
    body = started() + text_block(0, "a") + stopped()
    bare = re.sub(rb'data: {"type": "[a-z_]+"(, )?', b"data: {", body)
    assert bare.count(b'"type"') == 2, "those of the block and of its delta are left"
    assert assemble(answer(bare)).blocks() == (TextBlock("a"),)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "max-tokens"), (None, "stop")],
)
def test_a_stop_reason_is_a_finish(reason: str | None, kind: str) -> None:
    assert reply(text_block(0, "a"), reason=reason)[-1].kind == kind


def test_a_full_context_is_a_failure_only_where_nothing_was_written() -> None:
    word = "model_context_window_exceeded"
    assert failure_of(reply(reason=word)).code == "CONTEXT_WINDOW_EXCEEDED"
    assert reply(text_block(0, "a"), reason=word)[-1].kind == "max-tokens"


def test_a_refusal_is_filtered_content_with_its_reason() -> None:
    details = {"category": "cyber", "explanation": "This looks like an attack."}
    failure = failure_of(reply(text_block(0, "par"), reason="refusal", stop_details=details))
    assert failure.code == "CONTENT_FILTER" and not facts_of(failure.code).retryable
    assert failure.message == "the model refused (cyber: This looks like an attack.)"
    assert failure_of(reply(reason="refusal")).message == "the model refused"


def test_an_unknown_stop_reason_is_a_failure_of_its_own_name() -> None:
    assert failure_of(reply(text_block(0, "a"), reason="weird")).code == "WEIRD"


def test_a_pause_is_a_stop_that_goes_on() -> None:
    finish = reply(text_block(0, "wait"), reason="pause_turn")[-1]
    assert (finish.kind, finish.continues) == ("stop", True)
    assert chunk_from_json(finish.to_json()) == finish
    assert finish.to_json()["reason"] == {"kind": "stop", "continue": True}


# --- usage ------------------------------------------------------------------------------------


def test_usage_is_disjoint_and_the_later_count_wins() -> None:
    start = started(
        input_tokens=10, cache_read_input_tokens=90, cache_creation_input_tokens=7, output_tokens=1
    )
    later = event(
        "message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 12, "input_tokens": 11}
    )
    body = start + text_block(0, "a") + later + event("message_stop")
    assert assemble(answer(body)).usage == Usage(11, 12, 90, 7)


@pytest.mark.parametrize("usage", [None, [], {}, {"output_tokens": None}, {"output_tokens": "9"}])
def test_usage_that_says_nothing_leaves_what_is_known(usage: object) -> None:
    later = event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage)
    body = started(input_tokens=3, output_tokens=2) + text_block(0, "a") + later + event("message_stop")
    assert assemble(answer(body)).usage == Usage(3, 2)


def test_what_was_used_counts_though_the_stream_breaks_off() -> None:
    assert assemble(answer(started(input_tokens=3, output_tokens=2))).usage == Usage(3, 2)


# --- blocks -----------------------------------------------------------------------------------


def test_thinking_keeps_its_signature_for_the_next_request() -> None:
    chunks = reply(thinking_block(0, "hm"), text_block(1, "a"))
    assert assemble(chunks).blocks() == (ReasoningBlock("hm"), TextBlock("a"))
    assert entries(chunks) == [{"signature": "c2ln"}, None]


def test_thinking_that_is_not_shown_is_kept_for_its_signature_alone() -> None:
    chunks = reply(thinking_block(0), text_block(1, "a"))
    assert assemble(chunks).blocks() == (ReasoningBlock(""), TextBlock("a"))
    assert entries(chunks) == [{"signature": "c2ln"}, None]


def test_empty_text_and_empty_unsigned_thinking_are_no_blocks() -> None:
    chunks = reply(thinking_block(0, signature=None), text_block(1), text_block(2, "a"))
    assert assemble(chunks).blocks() == (TextBlock("a"),)
    assert chunks[-1].replay_state is None


def test_redacted_thinking_is_a_block_without_text() -> None:
    chunks = reply(block(0, {"type": "redacted_thinking", "data": "UkVE"}), text_block(1, "a"))
    assert assemble(chunks).blocks() == (ReasoningBlock(""), TextBlock("a"))
    assert entries(chunks) == [{"redacted": "UkVE"}, None]


def test_signatures_stay_with_their_blocks_where_calls_are_dropped() -> None:
    body = (tool_block(0, "c", "f", '{"a'), thinking_block(1, "hm"))
    assert entries(reply(*body, reason="max_tokens")) == [{"signature": "c2ln"}]


def test_thinking_that_held_a_secret_loses_its_seal_with_it() -> None:
    secret = "canary-0123456789"
    chunks = reply(thinking_block(0, f"key {secret}"), thinking_block(1, "hm"), text_block(2, "a"))
    clean = RedactingStream(Redactor({"KEY": secret})).chunks(chunks)
    assembler = assemble(clean)
    assert secret not in json.dumps([part.to_json() for part in clean])
    assert assembler.replay_state() == {"blocks": [None, {"signature": "c2ln"}, None]}


@pytest.mark.parametrize("fragments", [(), ("",), ("  ",)])
def test_a_call_without_arguments_has_an_empty_object(fragments: tuple[str, ...]) -> None:
    chunks = reply(tool_block(0, "c", "f", *fragments), reason="tool_use")
    assert assemble(chunks).blocks() == (ToolCallBlock("c", "f", "{}"),)


def test_a_whole_input_in_the_start_counts_where_no_fragment_follows() -> None:
    opening = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": "é"}}
    assert assemble(reply(block(0, opening))).blocks() == (ToolCallBlock("c", "f", '{"a":"é"}'),)
    overruled = block(0, opening, {"type": "input_json_delta", "partial_json": '{"b":1}'})
    assert assemble(reply(overruled)).blocks() == (ToolCallBlock("c", "f", '{"b":1}'),)


def test_calls_get_an_id_where_they_have_none_and_another_where_it_is_taken() -> None:
    chunks = reply(tool_block(0, None, "f"), tool_block(1, "c", "f"), tool_block(2, "c", "f"))
    first, *others = [part.id for part in assemble(chunks).blocks()]
    assert first.startswith("toolu_") and others == ["c", "c_2"]


def test_a_call_without_a_name_is_malformed() -> None:
    assert failure_of(reply(tool_block(0, "c", ""), reason="tool_use")).code == "MALFORMED_RESPONSE"


def test_blocks_may_interleave() -> None:
    first, second = text_block(3, "a", stop=False), thinking_block(1, "b")
    rest = event("content_block_delta", index=3, delta={"type": "text_delta", "text": "c"})
    chunks = reply(first, second, rest, event("content_block_stop", index=3))
    assert assemble(chunks).blocks() == (TextBlock("ac"), ReasoningBlock("b"))


def test_blocks_of_unknown_kinds_and_stray_deltas_are_passed_over() -> None:
    server_tool = block(0, {"type": "server_tool_use", "id": "x", "name": "web", "input": {}})
    stray = event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": "{}"})
    late = event("content_block_delta", index=1, delta={"type": "text_delta", "text": "late"})
    wrong = event("content_block_delta", index=2, delta={"type": "text_delta", "text": "wrong"})
    chunks = reply(server_tool, stray, text_block(1, "a"), late, tool_block(2, "c", "f", stop=False), wrong)
    assert assemble(chunks).blocks() == (TextBlock("a"), ToolCallBlock("c", "f", "{}"))


# --- ends -------------------------------------------------------------------------------------


def test_a_stop_reason_without_the_last_event_is_enough_once_all_blocks_are_closed() -> None:
    end = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1})
    assert answer(started() + text_block(0, "a") + end)[-1] == Finish("stop")
    open_block = answer(started() + text_block(0, "a", stop=False) + end)
    assert failure_of(open_block).code == "STREAM_CLOSED"


def test_a_broken_connection_after_the_stop_reason_is_no_failure() -> None:
    end = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1})
    provider = WIRE.build(MemoryTransport([started() + text_block(0, "a") + end, ConnectionResetError()]))
    assert call(provider, config=CallConfig("test", "claude-x"))[-1] == Finish("stop")


def test_a_message_in_one_piece_is_a_reply_too() -> None:
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
    ]
    usage = {"input_tokens": 3, "output_tokens": 2}
    message = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage}
    assembler = assemble(answer(b"\n\n" + json.dumps(message).encode()))
    assert assembler.blocks() == (ReasoningBlock("hm"), TextBlock("a"), ToolCallBlock("c", "f", '{"a":1}'))
    assert (assembler.usage, assembler.finish.kind) == (Usage(3, 2), "tool-calls")


def test_an_error_has_its_class_whatever_it_is_wrapped_in() -> None:
    start = started() + text_block(0, "par", stop=False)
    bare = b'data: {"error":{"type":"overloaded_error","message":"busy"}}\n\n'
    proxy = b'data: {"code":"Throttling","message":"wait","request_id":"r"}\n\n'
    for end, code in ((bare, "OVERLOADED"), (proxy, "RATE_LIMIT"), (b"event: error\ndata: {}\n\n", "SERVER")):
        assert failure_of(answer(start + end)).code == code
