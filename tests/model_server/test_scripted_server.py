"""The scripted server itself, asked by the bare client that the benchmarks compare with."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import requests
import sseclient

from tests.model_server import (
    CC,
    EOF,
    ERRFRAME,
    LEN,
    PING,
    RAW,
    STALL,
    THINK,
    C,
    H,
    ModelServer,
    T,
    marked_pids,
    prefix_faults,
    request_faults,
    reuse_faults,
    wait_until_unmarked,
)


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


def ask(server: ModelServer, text: str = "hi", model: str = "test") -> tuple[int, list[str]]:
    body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": True}
    with requests.post(f"{server.url}/v1/chat/completions", json=body, stream=True, timeout=10) as response:
        if response.headers["content-type"] != "text/event-stream":
            return response.status_code, [response.text]
        return response.status_code, [event.data for event in sseclient.SSEClient(iter(response)).events()]


def deltas(events: list[str]) -> list[dict[str, object]]:
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    return [chunk["choices"][0]["delta"] for chunk in chunks if chunk.get("choices")]


def said(events: list[str]) -> str:
    return "".join(str(delta.get("content") or "") for delta in deltas(events))


def test_text_arrives_in_pieces_with_usage_and_a_terminal_line(server: ModelServer) -> None:
    server.script(T("hello world", pieces=3, usage={"prompt_tokens": 3}))
    status, events = ask(server)
    assert (status, said(events), events[-1]) == (200, "hello world", "[DONE]")
    assert json.loads(events[-2])["usage"] == {"prompt_tokens": 3}
    assert len(events) == 6


def test_entries_are_played_in_order_and_then_the_script_is_exhausted(server: ModelServer) -> None:
    server.script(T("a"), T("b"))
    assert [said(ask(server)[1]) for _ in range(2)] == ["a", "b"]
    assert ask(server)[0] == 400


def test_the_last_entry_repeats_or_the_script_cycles_on_demand(server: ModelServer) -> None:
    server.script(T("a"), T("b@@N@@"), after="repeat")
    assert [said(ask(server)[1]) for _ in range(4)] == ["a", "b2", "b3", "b4"]
    server.script(T("a"), T("b"), after="cycle")
    assert [said(ask(server)[1]) for _ in range(3)] == ["a", "b", "a"]


def test_requests_are_routed_by_the_last_mark_then_by_the_model(server: ModelServer) -> None:
    star = {"entries": [T("@@R@@ @@N@@")], "after": "repeat"}
    server.load({"agent-*": star, "m2": {"entries": [T("by model")]}, "default": {"entries": [T("default")]}})
    assert said(ask(server, "[[route:agent-1]]")[1]) == "agent-1 1"
    assert said(ask(server, "[[route:agent-1]] then [[route:agent-2]]")[1]) == "agent-2 1"
    assert said(ask(server, "[[route:agent-1]]")[1]) == "agent-1 2"
    assert said(ask(server, model="m2")[1]) == "by model"
    assert said(ask(server)[1]) == "default"
    assert [request.route for request in server.requests()] == [
        "agent-1",
        "agent-2",
        "agent-1",
        "m2",
        "default",
    ]


def test_calls_carry_unique_ids_and_reasoning_comes_first(server: ModelServer) -> None:
    server.script(THINK("why", CC(("bash", {"command": "x"}), ("read", '{"pa'))), C("bash", {}))
    events = deltas(ask(server)[1])
    assert events[0]["reasoning_content"] == "why"
    calls = [delta["tool_calls"][0] for delta in events if "tool_calls" in delta]  # type: ignore[index]
    assert [call["index"] for call in calls] == [0, 0, 1, 1]
    assert calls[0]["id"] == "call_1_0" and calls[3]["function"]["arguments"] == '{"pa'
    second = [delta["tool_calls"][0] for delta in deltas(ask(server)[1]) if "tool_calls" in delta]  # type: ignore[index]
    assert second[0]["id"] == "call_2_0"


def test_a_cut_reply_has_no_terminal_chunk(server: ModelServer) -> None:
    server.script(EOF("par"), T("x", end="cut"), LEN("le"))
    _, events = ask(server)
    assert said(events) == "par" and len(events) == 1
    with pytest.raises(requests.exceptions.ChunkedEncodingError):
        ask(server)
    _, events = ask(server)
    assert json.loads(events[1])["choices"][0]["finish_reason"] == "length"


def test_a_reset_is_seen_as_one(server: ModelServer) -> None:
    server.script(T("x" * 100_000, end="reset"))
    with pytest.raises(requests.exceptions.RequestException):
        ask(server)


def test_errors_come_by_status_and_inside_the_stream(server: ModelServer) -> None:
    server.script(
        H(429, {"Retry-After": "3"}), H(502, body="<html>no</html>"), ERRFRAME(429, "slow", text="a")
    )
    assert ask(server)[0] == 429
    assert ask(server) == (502, ["<html>no</html>"])
    status, events = ask(server)
    assert status == 200 and json.loads(events[1])["error"]["code"] == 429


def test_raw_bytes_and_comments_pass_unchanged(server: ModelServer) -> None:
    server.script(
        RAW(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\n\xff!"), PING(3)
    )
    with requests.post(f"{server.url}/chat/completions", data=b"{}", timeout=10) as response:
        assert response.content == b"\xff!"
    with requests.post(f"{server.url}/chat/completions", data=b"{}", timeout=10) as response:
        assert response.text == ": keep-alive\n\n" * 3


def test_one_byte_a_packet_gives_the_same_text(server: ModelServer) -> None:
    server.script(T("漢\u2028字", per_byte=True, crlf=True))
    assert said(ask(server)[1]) == "漢\u2028字"


def test_a_silent_reply_ends_when_the_client_leaves(server: ModelServer) -> None:
    server.script(STALL(60, "x"))
    started = time.monotonic()
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))) as peer:
        peer.sendall(b"POST /chat/completions HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")
        peer.settimeout(20)
        assert peer.recv(1000).startswith(b"HTTP/1.1 200")
    server.wait_for_ends(1)
    assert server.requests()[0].outcome == "client-left"
    assert time.monotonic() - started < 40  # and not the 60 s of the reply


def test_a_held_reply_goes_on_when_the_test_releases_it(server: ModelServer) -> None:
    server.script(T(["one ", "two"], hold="gate"))
    body = {"messages": [{"role": "user", "content": "x"}]}
    with requests.post(f"{server.url}/chat/completions", json=body, stream=True, timeout=10) as response:
        events = sseclient.SSEClient(iter(response)).events()
        assert said([next(events).data]) == "one "
        assert server.requests()[0].ended is None
        server.release("gate")
        assert said([event.data for event in events]) == "two"


def test_connections_are_kept_and_everything_asked_is_logged(server: ModelServer) -> None:
    server.script(T("a"), after="repeat")
    with requests.Session() as session:
        for _ in range(3):
            session.post(
                f"{server.url}/chat/completions", data=b'{"n":1}', headers={"X-Mark": "m"}, timeout=10
            )
    logged = server.requests()
    assert [request.body for request in logged] == [b'{"n":1}'] * 3
    assert logged[0].headers["x-mark"] == "m"
    assert logged[0].arrived <= logged[1].arrived
    assert requests.get(f"{server.url}/models", timeout=10).json()["data"][0]["id"] == "test"


def _body(*messages: dict[str, object], **more: object) -> bytes:
    return json.dumps({"model": "m", **more, "messages": list(messages)}).encode()


USER: dict[str, object] = {"role": "user", "content": "x"}


def _assistant(arguments: str = "{}", *ids: str) -> dict[str, object]:
    function = {"name": "bash", "arguments": arguments}
    calls = [{"id": id_, "type": "function", "function": function} for id_ in ids or ("c",)]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _result(id_: str = "c") -> dict[str, object]:
    return {"role": "tool", "tool_call_id": id_, "content": "ok"}


def test_a_well_formed_request_has_no_faults() -> None:
    assert request_faults(_body(USER, _assistant("{}", "c", "d"), _result("d"), _result("c"), USER)) == []


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        _body(USER, _assistant()),
        _body(USER, _assistant(), USER),
        _body(USER, _result()),
        _body(USER, _assistant(), _result(), _result()),
        _body(USER, _assistant("[1]"), _result()),
        _body(USER, _assistant('{"a'), _result()),
        _body(USER, _assistant("{}", "c", "c"), _result()),
        _body({"role": "assistant", "content": None}),
        _body({"role": "assistant", "content": ""}),
        _body({"role": "user", "content": "\ud800"}),
    ],
)
def test_each_kind_of_malformed_request_is_found(body: bytes) -> None:
    assert request_faults(body)


def test_a_rewritten_prefix_is_found() -> None:
    first, extended = _body(USER), _body(USER, _assistant())
    assert prefix_faults([first, extended]) == []
    assert prefix_faults([extended, first])
    assert prefix_faults([first, extended.replace(b'"x"', b' "x"', 1)])
    assert prefix_faults([first, _body({**USER, "content": "y"}, _assistant())])
    assert prefix_faults([first, _body(USER, tools=[])])


def test_a_body_that_a_cache_by_prefix_cannot_use_is_found() -> None:
    first, extended = _body(USER), _body(USER, _assistant())
    assert reuse_faults([first, first, extended]) == []
    assert reuse_faults([extended, first])
    assert reuse_faults([first, _body(USER, _assistant(), tools=[])])
    messages_first = [b'{"messages":[1],"model":"m"}', b'{"messages":[1,2],"model":"m"}']
    assert prefix_faults(messages_first) == [] and reuse_faults(messages_first)


def test_marked_processes_are_found_until_they_end() -> None:
    mark = f"scripted-server-test-{os.getpid()}"
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env={"MARK": mark}
    ) as process:
        assert wait_until_unmarked(mark, 0.0) == [process.pid]
        process.kill()
        process.wait(10)
    assert wait_until_unmarked(mark, 5) == []
    assert marked_pids(mark) == []
