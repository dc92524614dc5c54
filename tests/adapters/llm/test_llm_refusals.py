"""What the provider learns from refusals, counts and headers; and the wire cases that stood open."""

from __future__ import annotations

import json
import logging
import socket
import struct

import pytest

from dsh_actors.adapters.llm.errors import room_told, should_retry
from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.adapters.llm.settings import ModelFacts, endpoint, messages_endpoint
from dsh_actors.config.profiles import PROFILES, Profile, changed_profile
from dsh_actors.core.chunks import CallConfig, Finish, TextDelta, Usage
from dsh_actors.core.messages import Message, ModelSource, TextBlock, ToolCallBlock, user_message
from dsh_actors.core.request import ModelRequest, RequestHeader
from dsh_actors.core.retry import Retry, RetryPolicy, decide, facts_of
from tests.adapters.llm.llm_kit import (
    DONE,
    HI,
    Control,
    MemoryTransport,
    Server,
    answer,
    assemble,
    call,
    chunk,
    config,
    delta,
    failure_of,
    finish,
    head,
)

MISSING = "The `reasoning_content` in the thinking mode must be passed back to the API."
FOREIGN = Message("a", "assistant", (ToolCallBlock("c", "bash", "{}"),), ModelSource("other", "m", None))
OWN = Message("a", "assistant", (TextBlock("t"),), ModelSource("test", "m", None))


class Refusing:
    """A provider whose server refuses with one text for ever, and the bodies that were tried."""

    def __init__(self, profile: Profile, message: str, *messages: Message, **members: object) -> None:
        body = json.dumps({"error": {"message": message, "code": "invalid_request_error"}}).encode()
        provider = OpenAiCompatibleProvider(config(profile=profile), transport=MemoryTransport([body], 400))
        call_config = CallConfig(**{"provider": "test", "model": "m", **members})
        prepared = provider.prepare(call_config)
        coder = prepared.encoder()
        header = RequestHeader(prepared.config, frozenset(), None, ())
        self.codes, self.bodies = [], []
        for _ in range(4):
            sent = coder.encode(ModelRequest(header, messages))
            control = Control()
            finish = [c for batch in provider.stream(prepared, sent, control) for c in batch][-1]
            control.close()
            self.codes.append(finish.failure.code)
            self.bodies.append(json.loads(sent))


def test_missing_reasoning_is_tried_as_nothing_as_empty_and_as_a_sentence() -> None:
    tried = Refusing(PROFILES["generic"], MISSING, user_message("u", "x"), FOREIGN)
    sent = [body["messages"][1].get("reasoning_content") for body in tried.bodies]
    assert sent[:2] == [None, ""] and sent[2] == sent[3] != ""
    assert tried.codes == ["REFUSED_FORM", "REFUSED_FORM", "INVALID_REQUEST", "INVALID_REQUEST"]
    deepseek = Refusing(PROFILES["deepseek"], MISSING, user_message("u", "x"), FOREIGN)
    assert deepseek.codes == ["REFUSED_FORM", *["INVALID_REQUEST"] * 3]


def test_unwelcome_reasoning_is_left_out_from_then_on() -> None:
    thought = Message(
        "a",
        "assistant",
        (TextBlock("t"),),
        ModelSource("test", "m", {"response": {"reasoning_details": [1]}}),
    )
    tried = Refusing(PROFILES["generic"], "property 'reasoning_details' is unsupported", thought)
    assert ["reasoning_details" in body["messages"][0] for body in tried.bodies] == [
        True,
        False,
        False,
        False,
    ]
    assert tried.codes[:2] == ["REFUSED_FORM", "INVALID_REQUEST"]


def test_another_name_of_the_output_limit_is_taken_up() -> None:
    text = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
    tried = Refusing(PROFILES["generic"], text, OWN, max_tokens=9)
    assert tried.codes[:2] == ["REFUSED_FORM", "INVALID_REQUEST"]
    assert ("max_tokens" in tried.bodies[0], tried.bodies[1]["max_completion_tokens"]) == (True, 9)
    options = Refusing(PROFILES["generic"], "Unknown field: stream_options", OWN)
    assert ["stream_options" in body for body in options.bodies[:2]] == [True, False]


def test_a_refusal_for_something_else_changes_nothing() -> None:
    for text in (
        "temperature is too high",
        "the reasoning of message 1 is odd",
        "reasoning_effort 'high' is not supported",
        "max_completion_tokens: 9 > 8",
    ):
        tried = Refusing(PROFILES["generic"], text, user_message("u", "x"), FOREIGN)
        assert set(tried.codes) == {"INVALID_REQUEST"}
        assert all(body == tried.bodies[0] for body in tried.bodies)


def test_a_refused_form_is_tried_again_at_once_and_not_for_ever() -> None:
    failure = failure_of(answer([b"{}"], 400))
    assert failure.code == "INVALID_REQUEST"
    facts = facts_of("REFUSED_FORM")
    assert (facts.retryable, facts.max_retries, facts.kind) == (True, 3, "invalid_request")


# --- the context ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            "This model's maximum context length is 10000 tokens. However, you requested 12000 tokens "
            "(8000 in the messages, 4000 in the completion).",
            10_000 - 8_000 - 64,
        ),
        (
            "maximum context length is 10000 tokens. However, you requested about 12000 tokens "
            "(2000 of text input, 10000 in the output).",
            10_000 - 2_000 - 80,
        ),
        ("maximum context length is 4096 tokens. However, your request has 2000 input tokens.", 2_032),
        ("maximum context length is 4096 tokens. However, your request has 3500 input tokens.", None),
        ("maximum context length is 10 tokens (12 in the messages, 4 in the completion)", None),
        ("prompt is too long: 2 tokens > 1 maximum", None),
        ("", None),
    ],
)
def test_an_overflow_says_what_output_would_have_fitted(text: str, left: int | None) -> None:
    assert room_told(text) == left
    failure = failure_of(answer([json.dumps({"error": {"message": text}}).encode()], 400))
    assert failure.fitting_output == left
    assert "fittingOutput" not in failure.to_json()


@pytest.mark.parametrize(("window", "prompt"), [("9" * 5_000, "7"), ("4096", "9" * 5_000), ("9" * 10, "7")])
def test_a_number_that_no_window_has_says_nothing(window: str, prompt: str) -> None:
    text = f"maximum context length is {window} tokens. However, your request has {prompt} input tokens."
    failure = failure_of(answer([json.dumps({"error": {"message": text}}).encode()], 400))
    assert (failure.code, failure.fitting_output) == ("CONTEXT_WINDOW_EXCEEDED", None)


def test_a_request_that_would_fit_with_less_output_is_sent_again_once() -> None:
    text = "maximum context length is 4096 tokens. However, your request has 2000 input tokens."
    failure = failure_of(answer([json.dumps({"error": {"message": text}}).encode()], 400))
    assert decide(RetryPolicy(), failure, 0, 0, 0.5) == Retry(0, max_output=2_032)
    assert not isinstance(decide(RetryPolicy(), failure, 1, 1, 0.5), Retry)
    assert not isinstance(decide(RetryPolicy(max_retries=0), failure, 0, 0, 0.5), Retry)


def counted(
    body: bytes, prompt: int, output: int, profile: Profile = PROFILES["generic"], sent: bytes = b"{}"
):
    usage = {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}}
    whole = body + b"data: " + json.dumps(usage).encode() + b"\n\n" + DONE
    models = (ModelFacts("any", context_window=1000),)
    settings = config(profile=profile, models=models)
    return call(OpenAiCompatibleProvider(settings, transport=MemoryTransport([whole])), sent)


@pytest.mark.parametrize(
    ("reason", "text", "prompt", "output", "code"),
    [
        ("stop", "a", 1001, 1, "CONTEXT_WINDOW_EXCEEDED"),
        ("stop", "a", 1000, 1, None),
        ("length", None, 990, 0, "CONTEXT_WINDOW_EXCEEDED"),
        ("length", None, 980, 0, None),
        ("length", "a", 995, 5, None),
    ],
)
def test_a_reply_whose_counts_cannot_be_is_an_overflow(
    reason: str, text: str | None, prompt: int, output: int, code: str | None
) -> None:
    body = (delta(content=text) if text else b"") + finish(reason)
    end = counted(body, prompt, output)[-1]
    assert (end.failure.code if end.failure else None) == code


def test_a_refusal_without_words_is_an_overflow_where_the_request_is_that_long() -> None:
    models = (ModelFacts("any", context_window=1000),)
    for status in (400, 413):
        for size, code in ((4000, "CONTEXT_WINDOW_EXCEEDED"), (3000, "INVALID_REQUEST")):
            provider = OpenAiCompatibleProvider(config(models=models), transport=MemoryTransport([], status))
            assert failure_of(call(provider, b"x" * size)).code == code


@pytest.mark.parametrize(
    ("name", "sent", "prompt", "noted"),
    [
        ("ollama", b"words and " * 4_000, 4_000, True),
        ("ollama", b"words and " * 4_000, 8_000, False),
        ("ollama", b"words and " * 1_000, 10, False),
        ("ollama", b" " * 40_000, 1_000, False),
        ("ollama", b";base64," + b"words and " * 4_000, 4_000, False),
        ("generic", b"words and " * 4_000, 4_000, False),
    ],
)
def test_a_prompt_that_a_server_cut_in_silence_is_noted(
    name: str, sent: bytes, prompt: int, noted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": 1}}
    body = delta(content="a") + finish("stop") + b"data: " + json.dumps(usage).encode() + b"\n\n" + DONE
    provider = OpenAiCompatibleProvider(config(profile=PROFILES[name]), transport=MemoryTransport([body]))
    with caplog.at_level(logging.INFO, "dsh_actors"):
        assert call(provider, sent)[-1] == Finish("stop")
    assert ("prompt_cut" in caplog.text) is noted


@pytest.mark.parametrize(
    ("text", "is_noted"),
    [('<tool_call>{"name": "f"}</tool_call>', True), ("so <｜DSML｜invoke>", True), ("a < b", False)],
)
def test_a_call_written_as_text_stays_text_and_is_noted(
    text: str, is_noted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    chunks, log = noted(delta(content=text) + finish("stop") + DONE, caplog)
    assert assemble(chunks).blocks() == (TextBlock(text),)
    assert ("call_markup_in_text" in log) is is_noted


# --- retries --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "word"),
    [
        ({"x-should-retry": "true"}, True),
        ({"x-should-retry": " False "}, False),
        ({"x-should-retry": "maybe"}, None),
        ({}, None),
    ],
)
def test_the_servers_own_word_on_retrying_is_read(headers: dict, word: bool | None) -> None:
    assert should_retry(headers) is word


def test_the_servers_own_word_on_retrying_wins() -> None:
    stop = failure_of(answer([b"{}"], 503, {"X-Should-Retry": "false"}))
    assert not isinstance(decide(RetryPolicy(), stop, 0, 0, 0.5), Retry)
    go_on = failure_of(answer([b"{}"], 409, {"X-Should-Retry": "true"}))
    assert isinstance(decide(RetryPolicy(), go_on, 0, 0, 0.5), Retry)
    assert not isinstance(decide(RetryPolicy(), go_on, 5, 5, 0.5), Retry)


def test_a_call_that_the_server_could_not_read_is_asked_for_once_more() -> None:
    body = json.dumps(
        {"error": {"message": "x", "code": "tool_use_failed", "failed_generation": "<f"}}
    ).encode()
    transport = MemoryTransport([body], 400)
    failure = failure_of(
        call(OpenAiCompatibleProvider(config(profile=PROFILES["groq"]), transport=transport))
    )
    assert isinstance(decide(RetryPolicy(), failure, 0, 0, 0.5), Retry)
    assert not isinstance(decide(RetryPolicy(), failure, 1, 1, 0.5), Retry)


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_kept_connection_that_the_server_closed_is_replaced_without_a_failure(is_reset: bool) -> None:
    """The server reads the second request of its first connection and closes without a word."""
    served: list[bytes] = []

    def handle(connection: socket.socket, request: bytes) -> object:
        served.append(request)
        if len(served) == 2:
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return False
        connection.sendall(head() + chunk(HI) + chunk(b""))
        return True

    with Server(handle) as server:
        provider = OpenAiCompatibleProvider(config(server.url))
        assert [call(provider)[-1] for _ in range(2)] == [Finish("stop")] * 2
        assert (len(served), server.connections) == (3, 2)


def test_a_new_connection_that_is_closed_without_a_word_is_a_failure() -> None:
    with Server(lambda connection, request: False) as server:
        assert failure_of(call(OpenAiCompatibleProvider(config(server.url)))).code == "TRANSPORT"
        assert server.connections == 1


@pytest.mark.parametrize(
    ("base", "beta", "url"),
    [
        ("https://h", "", "https://h/x"),
        ("https://h/v1/", "", "https://h/v1/x"),
        ("https://h/d?api-version=1", "", "https://h/d/x?api-version=1"),
        ("https://h/v1", "/beta", "https://h/beta/x"),
        ("https://h/beta", "/beta", "https://h/beta/x"),
    ],
)
def test_a_path_goes_below_the_base_and_the_query_stays(base: str, beta: str, url: str) -> None:
    assert endpoint(base, "/x", beta) == url


@pytest.mark.parametrize(
    ("base", "query", "url"),
    [
        ("https://h", "", "https://h/v1/x"),
        ("https://h/v1/", "", "https://h/v1/x"),
        ("https://h/d?a=1", "", "https://h/d/v1/x?a=1"),
        ("https://h/d/v1?a=1", "limit=2", "https://h/d/v1/x?a=1&limit=2"),
    ],
)
def test_a_path_of_the_messages_wire_goes_below_the_base_too(base: str, query: str, url: str) -> None:
    assert messages_endpoint(base, "/v1/x", query) == url


# --- single wire cases ----------------------------------------------------------------------------


def test_a_thousand_comments_say_nothing_and_keep_the_request_alive() -> None:
    control = Control()
    pieces = [b": keep-alive\n\n"] * 1000 + [HI]
    provider = OpenAiCompatibleProvider(config(first_event_timeout_s=600), transport=MemoryTransport(pieces))
    chunks = call(provider, control=control)
    assert [c.text for c in chunks if isinstance(c, TextDelta)] == ["Hi"]
    assert chunks[-1] == Finish("stop")
    assert control.deadlines[1:] == [600] * 1001


def noted(body: bytes, caplog: pytest.LogCaptureFixture) -> tuple[list, str]:
    with caplog.at_level(logging.INFO, "dsh_actors"):
        return answer(body), caplog.text


def test_more_cached_tokens_than_prompt_are_clamped_and_noted(caplog: pytest.LogCaptureFixture) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}}
    event = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    chunks, text = noted(delta(content="a") + finish("stop") + event + DONE, caplog)
    assert assemble(chunks).usage == Usage(0, 1, 9)
    assert "usage_clamped" in text


def test_a_null_choice_is_skipped_and_noted(caplog: pytest.LogCaptureFixture) -> None:
    chunks, text = noted(b'data: {"choices":[null]}\n\n' + HI, caplog)
    assert assemble(chunks).blocks() == (TextBlock("Hi"),)
    assert "null_choice" in text


def test_switches_of_a_profile_reach_the_stream() -> None:
    profile = changed_profile(PROFILES["generic"], {"errors": {"too_busy": "OVERLOADED"}})
    body = b'data: {"error":{"message":"x","code":"TOO_BUSY"}}\n\n'
    provider = OpenAiCompatibleProvider(config(profile=profile), transport=MemoryTransport([body]))
    assert failure_of(call(provider)).code == "OVERLOADED"
