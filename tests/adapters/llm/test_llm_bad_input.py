"""What servers should never send, over a real socket: each is named, none hangs, the next call works."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import gevent
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.actors.chunk_guard import ChunkGuard
from dsh_actors.adapters.llm.chat_stream import ChatStream
from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.core.chunks import Chunk, Finish
from dsh_actors.core.retry import CODES
from dsh_actors.core.text import require_lossless
from tests.adapters.llm.llm_kit import (
    DONE,
    HI,
    KEY,
    Server,
    assemble,
    call,
    chunk,
    config,
    delta,
    finish,
    head,
)

PATIENCE_S = 20
CLOSE = "Connection: close"
END = chunk(b"")
A = delta(content="a")
MALFORMED, CUT, NETWORK = "MALFORMED_RESPONSE", "STREAM_CLOSED", "TRANSPORT"

WORDS = """
    choices delta message index content reasoning_content reasoning_details text tool_calls function id name
    arguments finish_reason usage prompt_tokens completion_tokens error code x_groq refusal function_call
"""
NAMES = st.sampled_from(WORDS.split())

Parts = Iterable[bytes]


def plain(body: bytes, status: str = "200 OK", kind: str = "text/event-stream") -> list[bytes]:
    """A whole response that says how long it is."""
    lines = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return [lines.encode() + body]


def raw(*data: bytes) -> list[bytes]:
    """A body that ends with the connection."""
    return [head(framing=CLOSE), *data]


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def spoken(**members: Any) -> bytes:
    """A whole reply whose one delta has these members."""
    return delta(**members) + finish("stop") + DONE


def usage(text: bytes) -> list[bytes]:
    return plain(A + finish("stop") + event(b'{"choices":[],"usage":' + text + b"}") + DONE)


def call_of(**members: Any) -> list[bytes]:
    return plain(delta(tool_calls=[{"index": 0, **members}]) + finish("tool_calls") + DONE)


def forever(first: bytes, again: bytes) -> Iterator[bytes]:
    """Until the client has had enough."""
    return itertools.chain([first], itertools.repeat(again))


def packed(body: bytes, status: str = "200 OK", encoding: str = "gzip") -> list[bytes]:
    lines = f"HTTP/1.1 {status}\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
    return [lines.encode() + body]


ZEROS = gzip.compress(bytes(200 << 20), 9)

CASES: dict[str, tuple[Callable[[], Parts], str]] = {
    # bodies that are no event stream
    "html": (lambda: plain(b"<html><body>Welcome</body></html>", kind="text/html"), MALFORMED),
    "html without end": (lambda: forever(head(framing=CLOSE), b"<p>hello</p>\n\n" * 500), MALFORMED),
    "nothing": (lambda: plain(b""), "EMPTY_RESPONSE"),
    "no chunks": (lambda: [head(), END], "EMPTY_RESPONSE"),
    "blanks": (lambda: plain(b"\n" * 1000), CUT),
    "a status without a body": (lambda: [b"HTTP/1.1 204 No Content\r\n\r\n"], "HTTP_204"),
    "other json": (lambda: plain(b'{"hello": 1}', kind="application/json"), MALFORMED),
    "a json text": (lambda: plain(b'"hello"'), MALFORMED),
    "a line without end": (lambda: forever(head(framing=CLOSE), b"x" * 65_536), MALFORMED),
    "an event without end": (lambda: forever(head(framing=CLOSE) + b"data: ", b"x" * 65_536), MALFORMED),
    "lines without end": (lambda: forever(head(framing=CLOSE), b"data: x\n" * 8_192), MALFORMED),
    # events that are no chunks
    "an event that is no json": (lambda: plain(event(b"{oops") + HI), MALFORMED),
    "an event that is a list": (lambda: plain(event([1, 2]) + HI), MALFORMED),
    "an event that is a number": (lambda: plain(event(7) + HI), MALFORMED),
    "an event nested too deeply": (lambda: plain(event(b"[" * 200_000) + HI), MALFORMED),
    "a number of 10,000 digits": (lambda: plain(event(b'{"choices":[' + b"9" * 10_000 + b"]}")), MALFORMED),
    "choices of every type": (
        lambda: plain(event(b'{"choices":[null,1,"a",[],{"index":"x"},{"delta":7}]}') + HI),
        "stop",
    ),
    "members of every type": (
        lambda: plain(delta(content={"a": 1}, reasoning_content=7, tool_calls={"a": 1}) + HI),
        "stop",
    ),
    "details nested too deeply": (
        lambda: plain(
            event(
                b'{"choices":[{"delta":{"reasoning_details":[%b%b]}}]}' % (b'{"a":' * 800, b"0" + b"}" * 800)
            )
            + HI
        ),
        MALFORMED,
    ),
    "details that json cannot hold": (
        lambda: plain(event(b'{"choices":[{"delta":{"reasoning_details":[{"text":"r","n":NaN}]}}]}') + HI),
        MALFORMED,
    ),
    "usage that is no count": (
        lambda: usage(b'{"prompt_tokens":NaN,"completion_tokens":1e999,"total_tokens":"x"}'),
        "stop",
    ),
    "usage that is negative": (lambda: usage(b'{"prompt_tokens":-5,"completion_tokens":-1}'), "stop"),
    "usage that is a list": (lambda: usage(b"[1]"), "stop"),
    "10 MB in one event": (lambda: plain(spoken(content="x" * 10_000_000)), "stop"),
    # text that is none
    "invalid utf-8": (lambda: plain(A.replace(b'"a"', b'"\xff\xc3"') + finish("stop") + DONE), "stop"),
    "invalid utf-8 around an event": (lambda: plain(b"\xff\xfe: x\n\n" + HI), "stop"),
    "half a pair in text": (lambda: plain(spoken(content="a\ud83d")), "stop"),
    "half a pair in reasoning": (lambda: plain(spoken(reasoning_content="\udc00r")), "stop"),
    "half a pair in a call": (
        lambda: call_of(id="c\ud800", function={"name": "n\udfff", "arguments": '{"a":"\ud83d"}'}),
        "tool-calls",
    ),
    "half a pair in the finish": (
        lambda: plain(A + event({"choices": [{"finish_reason": "\ud800"}]})),
        "\ufffd",
    ),
    "half a pair in an error": (
        lambda: plain(b'{"error":{"message":"no\\ud800","code":"\\ud800"}}', "500 Oops"),
        "SERVER",
    ),
    "half a pair in details": (
        lambda: plain(spoken(reasoning_details=[{"type": "reasoning.text", "text": "\ud800", "\ud800": 1}])),
        "stop",
    ),
    "controls in text": (lambda: plain(spoken(content="\x00\x1b[31m\x7f")), "stop"),
    # heads
    "headers without end": (lambda: forever(b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n" * 1_000), MALFORMED),
    "a header without end": (lambda: forever(b"HTTP/1.1 200 OK\r\nX-A: ", b"x" * 65_536), MALFORMED),
    "hints, then the response": (
        lambda: [b"HTTP/1.1 100 Go\r\n\r\nHTTP/1.1 103 Hints\r\nLink: </a>\r\n\r\n", *plain(HI)],
        "stop",
    ),
    "hints without end": (lambda: forever(b"", b"HTTP/1.1 100 Go\r\n\r\n" * 1_000), MALFORMED),
    "a hint with headers without end": (
        lambda: forever(b"HTTP/1.1 103 H\r\n", b"A: b\r\n" * 1_000),
        MALFORMED,
    ),
    "another protocol": (lambda: [b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"], "HTTP_101"),
    "a greeting of something else": (lambda: [b"SSH-2.0-OpenSSH_9\r\n"], NETWORK),
    "a secure answer to a plain call": (lambda: [b"\x15\x03\x01\x00\x02\x02\x46"], NETWORK),
    "a status that is none": (lambda: [b"HTTP/1.1 abc OK\r\n\r\n"], NETWORK),
    "a status nobody knows": (lambda: plain(b"?", "799 Odd"), "SERVER"),
    "headers that are no text": (lambda: plain(HI, "200 OK\r\nX-Request-Id: \xff\x80\xe9"), "stop"),
    # framing
    "a length that is too long": (lambda: [head(framing="Content-Length: 99999"), A], CUT),
    "a length that is too short": (lambda: [head(framing="Content-Length: 10"), HI], CUT),
    "a length that is no number": (lambda: [head(framing="Content-Length: many"), HI], "stop"),
    "a length below zero": (lambda: [head(framing="Content-Length: -5"), HI], "stop"),
    "two lengths": (lambda: [head(framing="Content-Length: 5\r\nContent-Length: 500"), HI], MALFORMED),
    "chunks of garbage": (lambda: [head(), chunk(A), b"zz\r\nnonsense"], CUT),
    "a chunk of a negative size": (lambda: [head(), chunk(A), b"-5\r\n" + A], CUT),
    "a chunk that is longer than all memory": (lambda: [head(), b"ffffffffffffff\r\n" + A], CUT),
    "a chunk size without end": (lambda: forever(head() + chunk(A), b"0" * 65_536), MALFORMED),
    "trailers without end": (lambda: forever(head() + chunk(HI) + b"0\r\n", b"X: y\r\n" * 1_000), "stop"),
    "half a stream": (lambda: raw(A), CUT),
    # compression that nobody asked for
    "gzip": (lambda: packed(gzip.compress(HI)), "stop"),
    "a gzip bomb": (lambda: packed(ZEROS), MALFORMED),
    "a gzip bomb as error": (lambda: packed(ZEROS, "500 Oops"), "SERVER"),
    "broken gzip": (lambda: packed(b"\x1f\x8b\x08\x00" + b"\xff" * 100), MALFORMED),
    "gzip that stops": (lambda: packed(gzip.compress(A * 100)[:-20]), CUT),
    "an encoding nobody knows": (lambda: packed(b"\x01\x02" * 50, encoding="zip9"), MALFORMED),
}


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Any]]:
    """One server for all cases: it plays what ``parts`` makes, and then a good answer."""
    state: dict[str, Any] = {"parts": None, "ends": False}

    def handle(connection: socket.socket, request: bytes) -> bool:
        make, state["parts"] = state["parts"], None
        for part in make() if make else [head(), chunk(HI), END]:
            connection.sendall(part)
        return make is None

    with Server(handle) as server:
        state["url"] = server.url
        yield state


def outcome(chunks: list[Chunk]) -> str:
    last = chunks[-1]
    assert isinstance(last, Finish)
    return last.kind if last.failure is None else last.failure.code


@pytest.mark.parametrize("name", CASES)
def test_a_bad_response_is_named_and_the_next_call_works(name: str, served: dict[str, Any]) -> None:
    make, expected = CASES[name]
    provider = OpenAiCompatibleProvider(config(served["url"]))
    served["parts"] = make
    with gevent.Timeout(PATIENCE_S):
        chunks = list(ChunkGuard().take(call(provider)))
        assert outcome(call(provider)) == "stop"
    assert outcome(chunks) == expected
    failure = chunks[-1].failure
    if failure is not None:
        assert failure.code in CODES or expected.startswith(("HTTP_", "\ufffd"))
        assert KEY not in failure.message and "\n" not in failure.message and len(failure.message) < 400
    assemble(chunks)
    for each in chunks:
        stored = each.to_json()
        require_lossless(stored, name)
        assert json.loads(json.dumps(stored, ensure_ascii=False, allow_nan=False).encode()) == stored


@pytest.mark.parametrize(
    ("said", "expected"), [(raw(A), CUT), ([head(), chunk(A)], CUT), (raw(), "EMPTY_RESPONSE")]
)
def test_a_server_that_says_no_more_but_stays_is_at_its_end(said: list[bytes], expected: str) -> None:
    def handle(connection: socket.socket, request: bytes) -> bool:
        for part in said:
            connection.sendall(part)
        connection.shutdown(socket.SHUT_WR)
        return connection.recv(1) != b""

    with Server(handle) as server, gevent.Timeout(PATIENCE_S):
        assert outcome(call(OpenAiCompatibleProvider(config(server.url)))) == expected
        assert server.gone.wait(PATIENCE_S)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats()
    | st.sampled_from(["", "a", "\ud800", "stop"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(JSON, st.builds(lambda delta: {"choices": [{"delta": delta}]}, JSON)), max_size=4))
def test_no_event_of_whatever_shape_breaks_the_reader(payloads: list[Any]) -> None:
    stream = ChatStream({}, lambda: "salt")
    out: list[Chunk] = []
    for payload in payloads:
        stream.feed(json.dumps(payload), "message", out)
    chunks = ChunkGuard().take([*out, *stream.close(was_cut=True)])
    assert isinstance(chunks[-1], Finish)
    for each in chunks:
        require_lossless(each.to_json(), "a chunk")
