"""What every adapter must do, whatever its wire: one suite over all of them."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.adapters.llm.patience import FINISH_GRACE_S
from dsh_actors.core.chunks import (
    BlockEnd,
    BlockStart,
    CallConfig,
    Chunk,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)
from dsh_actors.core.messages import (
    Message,
    ModelSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    user_message,
)
from dsh_actors.core.request import ModelRequest, RequestHeader, ToolSchema
from dsh_actors.core.retry import facts_of
from dsh_actors.errors import CredentialError, UsageError
from tests.adapters.llm.llm_kit import (
    HANG_S,
    KEY,
    Control,
    MemoryTransport,
    Server,
    assemble,
    call,
    chunk,
    cut,
    failure_of,
    head,
)
from tests.adapters.llm.llm_wires import WIRES, Part, Wire
from tests.model_server import request_faults

pytestmark = pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)

PARTS: tuple[Part, ...] = (
    ("think", "Let me ", "see: 漢"),
    ("text", "I loo", "k, é\U0001f600."),
    ("call", "c1", "bash", '{"command"', ':"ls é"}'),
    ("call", "c2", "glob"),
)
BLOCKS = (
    ReasoningBlock("Let me see: 漢"),
    TextBlock("I look, é\U0001f600."),
    ToolCallBlock("c1", "bash", '{"command":"ls é"}'),
    ToolCallBlock("c2", "glob", "{}"),
)


def answer_of(wire: Wire, pieces: bytes | list[Any], status: int = 200, **headers: str) -> list[Chunk]:
    whole = [pieces] if isinstance(pieces, bytes) else pieces
    transport = MemoryTransport(whole, status, headers or None)
    return call(wire.build(transport), config=CallConfig("test", wire.model))


def whole_reply(wire: Wire) -> bytes:
    return wire.reply(*PARTS, finish="tool-calls")


# --- the stream -------------------------------------------------------------------------------


def test_a_reply_is_the_same_blocks_on_every_wire(wire: Wire) -> None:
    assembler = assemble(answer_of(wire, whole_reply(wire)))
    assert assembler.blocks() == BLOCKS
    assert assembler.finish is not None and assembler.finish.kind == "tool-calls"
    assert assembler.usage == Usage(10, 5, 90)


def test_chunks_come_in_an_order_that_a_consumer_can_rely_on(wire: Wire) -> None:
    chunks = answer_of(wire, whole_reply(wire))
    opened: dict[int, str] = {}
    closed: dict[int, Any] = {}
    texts: dict[int, str] = {}
    for part in chunks[:-2]:
        match part:
            case BlockStart(index, kind):
                assert index == len(opened)
                opened[index] = kind
            case TextDelta(index, text) | ReasoningDelta(index, text) | ToolCallDelta(index, _, _, text):
                assert index in opened and index not in closed
                texts[index] = texts.get(index, "") + text
            case BlockEnd(index, block):
                assert index in opened and index not in closed
                closed[index] = block
            case _:
                raise AssertionError(f"{part} before the end")
    assert list(opened.values()) == ["reasoning", "text", "tool-call", "tool-call"]
    assert [closed[index] for index in sorted(closed)] == list(BLOCKS)
    assert [texts.get(index, "") for index in range(3)] == [
        BLOCKS[0].text,
        BLOCKS[1].text,
        BLOCKS[2].arguments,
    ]
    assert isinstance(chunks[-2], UsageChunk) and isinstance(chunks[-1], Finish)


def test_a_reply_may_be_cut_anywhere_by_the_network(wire: Wire) -> None:
    body = whole_reply(wire)
    whole = answer_of(wire, body)
    assert answer_of(wire, cut(body, range(1, len(body)))) == whole
    for offset in range(1, len(body), 3):
        assert answer_of(wire, cut(body, [offset])) == whole, offset
    crlf = body.replace(b"\n", b"\r\n")
    assert answer_of(wire, cut(crlf, range(1, len(crlf)))) == whole


def test_a_reply_that_ends_early_is_never_taken_for_an_answer(wire: Wire) -> None:
    body = whole_reply(wire)
    for length in range(len(body)):
        assembler = assemble(answer_of(wire, body[:length]))
        finish = assembler.finish
        assert finish is not None
        if finish.failure is None:
            # All of it had come; only the end of the stream or the count of tokens is missing.
            assert assembler.blocks() == BLOCKS, length
        else:
            assert finish.failure.code == ("STREAM_CLOSED" if length else "EMPTY_RESPONSE"), length
            for shown, whole in zip(assembler.interrupted_blocks(), BLOCKS, strict=False):
                assert whole.text.startswith(shown.text)


def test_a_connection_that_breaks_is_a_network_failure_and_one_that_stalls_a_timeout(wire: Wire) -> None:
    start = wire.begin([("text", "par")])
    reset = ConnectionResetError(104, "Connection reset by peer")
    for error, code in ((reset, "TRANSPORT"), (TimeoutError("timed out"), "TIMEOUT")):
        chunks = answer_of(wire, [start, error])
        assert failure_of(chunks).code == code
        assert facts_of(code).retryable
        assert assemble(chunks).interrupted_blocks() == (TextBlock("par"),)


def test_a_reply_that_is_complete_waits_only_a_little_for_the_end_of_its_stream(wire: Wire) -> None:
    control = Control()
    start, end = wire.begin(PARTS), wire.finish(PARTS, "tool-calls")
    all_but_the_last_event = end[: end.rindex(b"\n\n", 0, -2) + 2]
    pieces = [start, all_but_the_last_event, ConnectionResetError()]
    provider = wire.build(MemoryTransport(pieces), first_event_timeout_s=600, idle_timeout_s=30)
    chunks = call(provider, control=control, config=CallConfig("test", wire.model))
    assert control.deadlines[1:3] == [600, 30]
    assert (chunks[-1].kind, control.deadlines[-1]) == ("tool-calls", FINISH_GRACE_S)


def test_a_reply_cut_by_length_keeps_its_text_and_no_call(wire: Wire) -> None:
    body = wire.reply(("text", "t"), ("call", "c", "f", '{"a":'), finish="max-tokens")
    assembler = assemble(answer_of(wire, body))
    assert assembler.finish is not None and assembler.finish.kind == "max-tokens"
    assert assembler.blocks() == (TextBlock("t"),)


def test_arguments_that_are_no_json_are_kept_as_they_came(wire: Wire) -> None:
    body = wire.reply(("call", "c", "f", '{"a":'), finish="tool-calls")
    assert assemble(answer_of(wire, body)).blocks() == (ToolCallBlock("c", "f", '{"a":'),)


def test_a_stop_with_calls_is_about_the_calls(wire: Wire) -> None:
    assert answer_of(wire, wire.reply(("call", "c", "f", "{}")))[-1].kind == "tool-calls"


def test_an_answer_of_nothing_is_empty_and_worth_another_try(wire: Wire) -> None:
    for body in (wire.reply(), b"", wire.reply(finish="tool-calls")):
        failure = failure_of(answer_of(wire, body))
        assert (failure.code, facts_of(failure.code).retryable) == ("EMPTY_RESPONSE", True)


def test_halves_of_a_character_are_joined_or_replaced(wire: Wire) -> None:
    chunks = answer_of(wire, wire.reply(("text", "a\ud83d", "\ude00b"), ("think", "x\ud83d")))
    for part in chunks:
        json.dumps(part.to_json(), ensure_ascii=False).encode()
    assert set(assemble(chunks).blocks()) == {TextBlock("a\U0001f600b"), ReasoningBlock("x\ufffd")}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("overloaded_error", "OVERLOADED"),
        ("rate_limit_error", "RATE_LIMIT"),
        ("authentication_error", "AUTH"),
        ("permission_error", "AUTH"),
        ("billing_error", "QUOTA"),
        ("invalid_request_error", "INVALID_REQUEST"),
        ("not_found_error", "INVALID_REQUEST"),
        ("request_too_large", "INVALID_REQUEST"),
        ("timeout_error", "TIMEOUT"),
        ("api_error", "SERVER"),
    ],
)
def test_an_error_inside_a_stream_is_its_class_and_never_a_stop(wire: Wire, kind: str, code: str) -> None:
    body = wire.begin([("text", "par")]) + wire.error(kind, "something happened")
    chunks = answer_of(wire, body + wire.finish([("text", "par")], "stop"))
    failure = failure_of(chunks)
    assert (failure.code, failure.message) == (code, "something happened")
    assert assemble(chunks).interrupted_blocks() == (TextBlock("par"),)


def test_events_that_are_no_json_or_no_objects_are_malformed(wire: Wire) -> None:
    start = wire.begin([("text", "par")])
    for bad in (b"data: {\n\n", b"data: 1\n\n", b"data: [1]\n\n", b"data: \xff\n\n", b"data: null\n\n"):
        failure = failure_of(answer_of(wire, start + bad + wire.finish([("text", "par")], "stop")))
        assert failure.code == "MALFORMED_RESPONSE", bad


JUNK = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=4), st.lists, max_leaves=4)


@given(junk=JUNK)
def test_members_of_a_wrong_kind_never_break_a_reader(wire: Wire, junk: Any) -> None:
    body = whole_reply(wire)
    for line in body.split(b"\n\n")[:-1]:
        name, _, data = line.rpartition(b"data: ")
        if not data.startswith(b"{"):
            continue
        payload = json.loads(data)
        for key in payload:
            changed = json.dumps({**payload, key: junk}).encode()
            chunks = answer_of(wire, body.replace(line, name + b"data: " + changed))
            assert isinstance(chunks[-1], Finish)


# --- bodies that are no stream, and refusals --------------------------------------------------


def test_a_body_that_is_no_stream_is_judged_by_its_content(wire: Wire) -> None:
    page = answer_of(wire, b"<html><p>Log in</p></html>\n")
    assert failure_of(page).code == "MALFORMED_RESPONSE"
    error = answer_of(wire, b'\n\n{"error":{"message":"x","code":503}}')
    assert (failure_of(error).code, failure_of(error).status) == ("OVERLOADED", 503)
    assert failure_of(answer_of(wire, b'{"hello":"world"}')).code == "MALFORMED_RESPONSE"
    assert failure_of(answer_of(wire, b": queued\n\n: queued\n\n")).code == "STREAM_CLOSED"


@pytest.mark.parametrize(
    ("status", "kind", "message", "code"),
    [
        (400, "invalid_request_error", "prompt is too long: 2 tokens > 1 maximum", "CONTEXT_WINDOW_EXCEEDED"),
        (400, "invalid_request_error", "max_tokens: must be positive", "INVALID_REQUEST"),
        (400, "invalid_request_error", "Your credit balance is too low to go on", "QUOTA"),
        (400, "invalid_request_error", "You have reached your specified API usage limits.", "QUOTA"),
        (401, "authentication_error", "invalid x-api-key", "AUTH"),
        (402, "billing_error", "pay first", "QUOTA"),
        (403, "permission_error", "not yours", "AUTH"),
        (404, "not_found_error", "model: nope", "INVALID_REQUEST"),
        (409, "conflict_error", "try again", "SERVER"),
        (413, "request_too_large", "too many bytes", "INVALID_REQUEST"),
        (429, "rate_limit_error", "slow down", "RATE_LIMIT"),
        (500, "api_error", "oops", "SERVER"),
        (504, "timeout_error", "too slow", "TIMEOUT"),
        (529, "overloaded_error", "busy", "OVERLOADED"),
    ],
)
def test_a_refusal_is_classified_by_status_and_words(
    wire: Wire, status: int, kind: str, message: str, code: str
) -> None:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_body"}
    chunks = answer_of(wire, json.dumps(body).encode(), status, **{"request-id": "r", "retry-after": "3"})
    failure = failure_of(chunks)
    assert (failure.code, failure.status, failure.request_id) == (code, status, "r")
    assert (failure.retry_after_ms, failure.message) == (3000, f"HTTP {status}: {message}")


def test_a_refusal_never_repeats_the_key(wire: Wire) -> None:
    failure = failure_of(answer_of(wire, f'{{"error":{{"message":"bad key {KEY}"}}}}'.encode(), 401))
    assert KEY not in failure.message


# --- the network ------------------------------------------------------------------------------

Handler = Callable[[Any, bytes], Any]


def sending(body: bytes) -> Handler:
    def handle(connection: Any, request: bytes) -> None:
        connection.sendall(head() + chunk(body) + chunk(b""))

    return handle


def test_calls_over_a_socket_go_to_the_wires_path_and_share_a_connection(wire: Wire) -> None:
    with Server(sending(whole_reply(wire))) as server:
        provider = wire.build(base_url=server.url)
        for _ in range(3):
            assert assemble(call(provider, config=CallConfig("test", wire.model))).blocks() == BLOCKS
        assert (len(server.requests), server.connections) == (3, 1)
        first_line = server.requests[0].split(b"\r\n")[0]
        assert first_line == f"POST /v1{wire.path} HTTP/1.1".encode()
        assert server.requests[0].count(KEY.encode()) == 1


def stalling(start: bytes, ready: threading.Event, stop: threading.Event) -> Handler:
    """Sends ``start``, then comments and pings for ever."""

    def handle(connection: Any, request: bytes) -> bool:
        if start:
            connection.sendall(head() + chunk(start))
        ready.set()
        while not stop.wait(0.02):
            if start:
                connection.sendall(chunk(b": keep-alive\n\n"))
        return False

    return handle


def test_a_stream_that_stalls_is_a_timeout_though_comments_trickle(wire: Wire) -> None:
    ready, stop = threading.Event(), threading.Event()
    with Server(stalling(wire.begin([("text", "par")]), ready, stop)) as server:
        provider = wire.build(base_url=server.url, idle_timeout_s=0.15)
        chunks = call(provider, config=CallConfig("test", wire.model))
        stop.set()
    assert failure_of(chunks).code == "TIMEOUT"
    assert assemble(chunks).interrupted_blocks() == (TextBlock("par"),)


@pytest.mark.parametrize("phase", ["before the head", "in the body"])
def test_an_abort_ends_a_blocked_call_at_once(wire: Wire, phase: str) -> None:
    ready, stop = threading.Event(), threading.Event()
    start = b"" if phase == "before the head" else wire.begin([("text", "par")])
    with Server(stalling(start, ready, stop)) as server:
        control = Control()
        provider = wire.build(base_url=server.url)
        job = gevent.spawn(call, provider, b"{}", control, CallConfig("test", wire.model))
        assert ready.wait(HANG_S)
        gevent.sleep(0)
        control.abort("cancelled")
        chunks = job.get(timeout=HANG_S)  # no clock of the call is so short
        stop.set()
        assert server.gone.wait(HANG_S)
    assert (chunks[-1].kind, failure_of(chunks).code) == ("aborted", "ABORTED")


# --- preparing --------------------------------------------------------------------------------


def test_a_key_is_checked_before_anything_is_sent(wire: Wire) -> None:
    config = CallConfig("test", wire.model)
    with pytest.raises(CredentialError) as missing:
        wire.build(api_key="", api_key_env="SOME_KEY").prepare(config)
    assert (missing.value.code, missing.value.hint) == ("MISSING_CREDENTIAL", "set SOME_KEY")
    with pytest.raises(CredentialError) as wrong:
        wire.build(api_key="sk-a\nb").prepare(config)
    assert wrong.value.code == "INVALID_CREDENTIAL"
    with pytest.raises(UsageError, match="no model is named"):
        wire.build().prepare(CallConfig("test", ""))
    with pytest.raises(UsageError, match="at least 1"):
        wire.build().prepare(CallConfig("test", wire.model, max_tokens=0))


# --- request bodies ---------------------------------------------------------------------------

CALL = ToolCallBlock("c1", "bash", '{"command": "ls"}')


def header_of(wire: Wire, system: str | None = "Be brief.") -> RequestHeader:
    prepared = wire.build().prepare(CallConfig("test", wire.model))
    tools = (ToolSchema("bash", "Run.", {"type": "object"}), ToolSchema("glob", "Find.", {"type": "object"}))
    return RequestHeader(prepared.config, prepared.adapter_defaults, system, tools)


def encoder_of(wire: Wire) -> Any:
    return wire.build().prepare(CallConfig("test", wire.model)).encoder()


def encoded(wire: Wire, messages: list[Message]) -> bytes:
    body: bytes = encoder_of(wire).encode(ModelRequest(header_of(wire), messages))
    return body


def reply_message(wire: Wire, body: bytes, provider: str = "test") -> Message:
    """The message that a session keeps of a reply."""
    assembler = assemble(answer_of(wire, body))
    return Message(
        "a", "assistant", assembler.blocks(), ModelSource(provider, wire.model, assembler.replay_state())
    )


def results_of(message: Message) -> list[Message]:
    calls = [block for block in message.content if isinstance(block, ToolCallBlock)]
    return [
        Message(f"r{c.id}", "user", (ToolResultBlock(c.id, (TextBlock(f"out {c.id}"),)),), ToolSource(c.id))
        for c in calls
    ]


def test_a_reply_goes_back_to_its_own_provider_with_its_reasoning(wire: Wire) -> None:
    message = reply_message(wire, whole_reply(wire))
    body = encoded(wire, [user_message("u", "go"), message, *results_of(message)])
    assert "Let me see: 漢" in body.decode()
    assert request_faults(body) == []


def test_a_reply_goes_back_to_another_provider_without_its_reasoning(wire: Wire) -> None:
    message = reply_message(wire, whole_reply(wire), provider="other")
    body = encoded(wire, [user_message("u", "go"), message, *results_of(message)])
    assert "Let me see" not in body.decode()
    assert "I look" in body.decode()
    assert request_faults(body) == []


def test_a_reply_of_nothing_but_foreign_reasoning_is_left_out(wire: Wire) -> None:
    alone = Message("a", "assistant", (ReasoningBlock("hm"),), ModelSource("other", "m"))
    body = encoded(wire, [user_message("u", "go"), alone, user_message("v", "on")])
    assert b'"assistant"' not in body


TEXT = st.text(max_size=8)


def turns() -> st.SearchStrategy[list[Message]]:
    """Conversations as a session can hold them: every call has its result, before anything else."""
    user = TEXT.map(lambda text: [user_message("u", text)])
    spoken = st.tuples(TEXT, TEXT, st.booleans()).map(
        lambda t: [
            Message(
                "a",
                "assistant",
                (ReasoningBlock(t[0]), TextBlock(t[1])),
                ModelSource("test", "claude-x", {"blocks": [{"signature": "s"} if t[2] else None, None]}),
            )
        ]
    )

    def called(drawn: tuple[list[str], str, str, bool]) -> list[Message]:
        ids, arguments, output, is_error = drawn
        blocks = tuple(ToolCallBlock(i, "f", arguments) for i in ids)
        made = [Message("a", "assistant", blocks, ModelSource("other", "m"))]
        for call_id in ids:
            content = (TextBlock(output),) if output else ()
            result = ToolResultBlock(call_id, content, is_error)
            made.append(Message("r", "user", (result,), ToolSource(call_id)))
        return made

    words = st.sampled_from(["c1", "functions.f:0", "c/2", "x" * 80])
    ids = st.lists(words, min_size=1, max_size=3, unique=True)
    tools = st.tuples(ids, TEXT | st.just('{"a":1e999}'), TEXT, st.booleans()).map(called)
    return st.lists(user | spoken | tools, max_size=6).map(lambda groups: list(itertools.chain(*groups)))


@given(messages=turns(), cuts=st.lists(st.integers(0, 20), max_size=5), system=st.booleans())
def test_a_request_that_extends_another_extends_its_bytes(
    wire: Wire, messages: list[Message], cuts: list[int], system: bool
) -> None:
    incremental, header = encoder_of(wire), header_of(wire, "Be brief." if system else None)
    grown: list[Message] = []
    previous = b""
    for end in [*sorted(cuts), len(messages)]:
        grown.extend(messages[len(grown) : end])
        body = incremental.encode(ModelRequest(header, grown))
        assert body == encoder_of(wire).encode(ModelRequest(header, list(grown)))
        json.loads(body)
        assert b"\\ud" not in body
        assert body.startswith(previous.rstrip(b"]}"))
        previous = body
    if any(message.role == "user" for message in messages):
        assert [fault for fault in request_faults(previous) if "no messages" not in fault] == []


def test_a_changed_history_or_header_is_encoded_anew(wire: Wire) -> None:
    coder, messages = encoder_of(wire), [user_message("u", "one"), user_message("v", "two")]
    coder.encode(ModelRequest(header_of(wire), messages))
    shorter = [user_message("w", "summary"), messages[1]]
    for header in (header_of(wire), header_of(wire, "Be long."), header_of(wire, None)):
        fresh = encoder_of(wire).encode(ModelRequest(header, shorter))
        assert coder.encode(ModelRequest(header, shorter)) == fresh


class Counted(tuple):
    """Content that counts how often it is read."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        Counted.reads += 1
        return super().__iter__()


def test_a_late_step_costs_no_more_encoding_than_an_early_one(wire: Wire) -> None:
    def spoken(number: int) -> Message:
        source = ModelSource("other", "m")
        return Message(str(number), "assistant", Counted((TextBlock("t"), TextBlock("u"))), source)

    coder, header = encoder_of(wire), header_of(wire)
    messages = [spoken(0)]
    Counted.reads = 0
    coder.encode(ModelRequest(header, messages))
    reads_of_one, Counted.reads = Counted.reads, 0
    messages += [spoken(number) for number in range(1, 200)]
    coder.encode(ModelRequest(header, messages))
    Counted.reads = 0
    messages.append(spoken(200))
    coder.encode(ModelRequest(header, messages))
    assert Counted.reads == reads_of_one
