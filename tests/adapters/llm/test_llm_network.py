"""Model calls over a real loopback socket: failures, aborts, timeouts and connections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import gevent
import pytest

from dsh_actors.adapters.llm import transport
from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.core.chunks import CallConfig, Chunk, Finish
from dsh_actors.core.messages import TextBlock
from tests.adapters.llm.llm_kit import (
    DONE,
    HANG_S,
    HI,
    KEY,
    Control,
    Server,
    assemble,
    call,
    chunk,
    config,
    delta,
    failure_of,
    finish,
    head,
)

END = chunk(b"")


def serving(*parts: bytes, keep: bool = True) -> Callable[[socket.socket, bytes], bool]:
    def handle(connection: socket.socket, request: bytes) -> bool:
        for part in parts:
            connection.sendall(part)
        return keep

    return handle


ANSWER = serving(head(), chunk(HI), END)


def provider_of(server: Server, **changes: object) -> OpenAiCompatibleProvider:
    return OpenAiCompatibleProvider(config(server.url, **changes))


def test_a_request_carries_the_key_and_asks_for_plain_events() -> None:
    with Server(ANSWER) as server:
        chunks = call(provider_of(server, headers={"X-Extra": "1"}), b'{"messages":[]}')
    assert assemble(chunks).blocks() == (TextBlock("Hi"),)
    request = server.requests[0]
    assert request.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert request.endswith(b'\r\n\r\n{"messages":[]}')
    for line in (
        f"Authorization: Bearer {KEY}",
        "Accept-Encoding: identity",
        "Accept: text/event-stream",
        "Content-Type: application/json",
        "X-Extra: 1",
    ):
        assert line.encode() + b"\r\n" in request
    assert b"User-Agent: dsh-actors/" in request


def test_the_environment_cannot_replace_the_key(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HOME", str(tmp_path))
    with Server(ANSWER) as server:
        call(provider_of(server))
    assert f"Bearer {KEY}".encode() in server.requests[0]
    assert b"Basic" not in server.requests[0]


def test_cookies_are_neither_kept_nor_sent() -> None:
    with Server(
        serving(head(framing="Transfer-Encoding: chunked\r\nSet-Cookie: a=b"), chunk(HI), END)
    ) as server:
        provider = provider_of(server)
        call(provider), call(provider)
    assert b"ookie" not in server.requests[1]


def test_a_redirect_is_refused_and_not_followed() -> None:
    reply = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
    with Server(serving(reply)) as server:
        failure = failure_of(call(provider_of(server)))
    assert (failure.code, failure.status, len(server.requests)) == ("INVALID_REQUEST", 302, 1)


def test_the_first_chunk_comes_at_once_however_the_body_is_framed() -> None:
    for framing in ("Transfer-Encoding: chunked", "Connection: close", "Content-Length: 100000"):
        hold = threading.Event()

        def handle(connection: socket.socket, request: bytes, framing=framing, hold=hold) -> bool:
            wrap = chunk if "chunked" in framing else bytes
            connection.sendall(head(framing=framing) + wrap(delta(content="a")))
            hold.wait(HANG_S)
            return False

        with Server(handle) as server:
            control = Control()
            provider = provider_of(server)
            stream = provider.stream(provider.prepare(CallConfig("test", "m")), b"{}", control)
            with gevent.Timeout(HANG_S / 2):
                assert [type(c).__name__ for c in next(stream)] == ["BlockStart", "TextDelta"]
            control.abort("cancelled")
            hold.set()
            assert list(stream)[-1][-1].kind == "aborted"
            control.close()


# --- connections ------------------------------------------------------------------------------


def test_calls_one_after_the_other_share_a_connection() -> None:
    with Server(ANSWER) as server:
        provider = provider_of(server)
        for _ in range(5):
            call(provider)
        assert (len(server.requests), server.connections) == (5, 1)


def test_a_late_end_of_the_body_does_not_cost_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(transport, "DRAIN_S", HANG_S)  # late on any machine, but not too late

    def handle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(head() + chunk(HI))
        release.wait(HANG_S)
        connection.sendall(END)
        return True

    with Server(handle) as server:
        provider = provider_of(server)
        control = Control()
        for batch in provider.stream(provider.prepare(CallConfig("test", "m")), b"{}", control):
            if isinstance(batch[-1], Finish):
                # The finish is there before the body's end was even sent.
                release.set()
        control.close()
        call(provider)
        assert server.connections == 1


def test_a_body_that_never_ends_is_not_waited_for() -> None:
    hold, was_let_go = threading.Event(), []

    def handle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(head() + chunk(HI))
        was_let_go.append(hold.wait(HANG_S))
        return False

    with Server(handle) as server:
        chunks = call(provider_of(server))
        hold.set()
        assert server.gone.wait(HANG_S)
    assert chunks[-1] == Finish("stop")
    assert was_let_go == [True], "the call took as long as the server held the body"


def test_refused_requests_leave_their_connection_to_the_next() -> None:
    reply = b"HTTP/1.1 429 Slow\r\nContent-Length: 2\r\nRetry-After: 3\r\n\r\n{}"
    with Server(serving(reply)) as server:
        provider = provider_of(server)
        failures = [failure_of(call(provider)) for _ in range(3)]
        assert server.connections == 1
    assert {(f.code, f.retry_after_ms) for f in failures} == {("RATE_LIMIT", 3000)}


def test_many_calls_at_once_keep_their_connections() -> None:
    with Server(ANSWER) as server:
        provider = provider_of(server)
        for _ in range(2):
            jobs = [gevent.spawn(call, provider) for _ in range(40)]
            gevent.joinall(jobs, timeout=HANG_S, raise_error=True)
            assert all(job.value[-1] == Finish("stop") for job in jobs)
        assert len(server.requests) == 80
        assert server.connections <= 40


# --- failures ---------------------------------------------------------------------------------


def test_a_refused_connection_is_named_with_its_address() -> None:
    with socket.socket() as taken:  # by one that does not listen, so that nobody else can
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        failure = failure_of(call(OpenAiCompatibleProvider(config(f"http://127.0.0.1:{port}/v1"))))
    assert failure.code == "TRANSPORT"
    assert failure.message == f"cannot connect: Connection refused (http://127.0.0.1:{port}/v1)"


def test_an_unknown_host_is_a_network_failure() -> None:
    failure = failure_of(call(OpenAiCompatibleProvider(config("http://no-such-host.invalid/v1"))))
    assert failure.code == "TRANSPORT"
    assert "not found" in failure.message


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([], "TRANSPORT"),
        ([b"HTTP/1.1 2"], "TRANSPORT"),
        ([b"nonsense\r\n\r\n"], "TRANSPORT"),
        ([head(), chunk(delta(content="a"))], "STREAM_CLOSED"),
        ([head(), chunk(delta(content="a")), b"zz\r\n"], "STREAM_CLOSED"),
        ([head(framing="Content-Length: 5000"), delta(content="a")], "STREAM_CLOSED"),
        ([head(framing="Connection: close"), delta(content="a")], "STREAM_CLOSED"),
        ([head(framing="Connection: close")], "EMPTY_RESPONSE"),
        (
            [head(framing="Content-Encoding: gzip\r\nConnection: close"), delta(content="a")],
            "MALFORMED_RESPONSE",
        ),
    ],
)
def test_a_response_that_breaks_off_is_a_failure_of_its_kind(parts: list[bytes], code: str) -> None:
    with Server(serving(*parts, keep=False)) as server:
        assert failure_of(call(provider_of(server))).code == code


def test_a_reset_after_the_first_event_is_a_network_failure_with_what_came() -> None:
    sent = threading.Event()

    def handle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(head() + chunk(delta(content="a")))
        sent.wait(HANG_S)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        return False

    with Server(handle) as server:
        provider = provider_of(server)
        control = Control()
        chunks: list[Chunk] = []
        for batch in provider.stream(provider.prepare(CallConfig("test", "m")), b"{}", control):
            chunks.extend(batch)
            sent.set()
        control.close()
    assert failure_of(chunks).code == "TRANSPORT"
    assert assemble(chunks).interrupted_blocks() == (TextBlock("a"),)


def test_a_body_cut_after_done_is_complete() -> None:
    with Server(serving(head(), chunk(HI), keep=False)) as server:
        assert call(provider_of(server))[-1] == Finish("stop")


def test_a_header_that_cannot_be_sent_is_an_invalid_request() -> None:
    failure = failure_of(call(OpenAiCompatibleProvider(config(headers={"x": "a\nb"}))))
    assert failure.code == "INVALID_REQUEST"


def test_a_silent_server_is_a_timeout() -> None:
    hold = threading.Event()
    with Server(lambda connection, request: hold.wait(HANG_S) and False) as server:
        failure = failure_of(call(provider_of(server, first_event_timeout_s=0.1)))
        hold.set()
    assert failure.code == "TIMEOUT"


def test_a_stalled_stream_is_a_timeout_though_comments_trickle() -> None:
    stop = threading.Event()

    def handle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(head() + chunk(delta(content="a")))
        while not stop.wait(0.02):
            connection.sendall(chunk(b": keep-alive\n\n"))
        return False

    with Server(handle) as server:
        chunks = call(provider_of(server, idle_timeout_s=0.2))
        stop.set()
        assert server.gone.wait(HANG_S)
    assert failure_of(chunks).code == "TIMEOUT"
    assert assemble(chunks).interrupted_blocks() == (TextBlock("a"),)


def test_comments_alone_keep_a_request_alive_beyond_the_first_timeout() -> None:
    pace = threading.Event()

    def handle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(head())
        for _ in range(10):
            connection.sendall(chunk(b": queued\n\n"))
            pace.wait(0.05)
        connection.sendall(chunk(HI) + END)
        return True

    with Server(handle) as server:
        assert call(provider_of(server, first_event_timeout_s=0.25))[-1] == Finish("stop")


def test_silence_after_the_finish_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsh_actors.adapters.llm import patience

    monkeypatch.setattr(patience, "FINISH_GRACE_S", 0.1)
    hold = threading.Event()

    def handle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(head() + chunk(delta(content="a") + finish("stop")))
        hold.wait(HANG_S)
        return False

    with Server(handle) as server:
        assert call(provider_of(server))[-1] == Finish("stop")
        hold.set()


# --- aborts -----------------------------------------------------------------------------------


def abort_when(provider: OpenAiCompatibleProvider, ready: threading.Event) -> list[Chunk]:
    """Abort a call from another greenlet once ``ready``; what it gave. No clock of the call is so short."""
    control = Control()
    job = gevent.spawn(call, provider, b"{}", control)
    assert ready.wait(HANG_S)
    gevent.sleep(0)
    control.abort("cancelled")
    return job.get(timeout=HANG_S)


@pytest.mark.parametrize("phase", ["before the head", "in the body"])
def test_an_abort_from_another_greenlet_ends_a_blocked_call(phase: str) -> None:
    ready, served = threading.Event(), threading.Event()

    def handle(connection: socket.socket, request: bytes) -> bool:
        if served.is_set():
            return ANSWER(connection, request)
        if phase == "in the body":
            connection.sendall(
                head() + chunk(delta(content="a") + delta(tool_calls=[{"index": 0, "id": "c"}]))
            )
        served.set()
        ready.set()
        assert connection.recv(1) == b"", "the server must see the end"
        return False

    with Server(handle) as server:
        provider = provider_of(server)
        chunks = abort_when(provider, ready)
        assert chunks[-1].kind == "aborted"
        assert failure_of(chunks).code == "ABORTED"
        assert server.gone.wait(HANG_S)
        assert call(provider)[-1] == Finish("stop")


def test_a_call_that_was_aborted_before_it_began_sends_nothing() -> None:
    with Server(ANSWER) as server:
        control = Control()
        control.abort("cancelled")
        assert call(provider_of(server), control=control)[-1].kind == "aborted"
        assert server.requests == []


def test_an_abort_while_the_consumer_is_busy_is_not_taken_for_an_end() -> None:
    more = threading.Event()

    def handle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(head() + chunk(delta(content="a")))
        more.wait(HANG_S)
        connection.sendall(chunk(finish("stop") + DONE) + END)
        return True

    with Server(handle) as server:
        provider, control = provider_of(server), Control()
        stream = provider.stream(provider.prepare(CallConfig("test", "m")), b"{}", control)
        next(stream)
        control.abort("cancelled")
        more.set()
        assert list(stream)[-1][-1].kind == "aborted"
        control.close()


def test_a_killed_reader_closes_its_connection() -> None:
    ready = threading.Event()

    def handle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(head() + chunk(delta(content="a")))
        ready.set()
        return connection.recv(1) != b""

    with Server(handle) as server:
        job = gevent.spawn(call, provider_of(server))
        assert ready.wait(HANG_S)
        gevent.sleep(0)
        job.kill(timeout=HANG_S)
        assert server.gone.wait(HANG_S)
