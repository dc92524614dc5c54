"""Each clock of a request runs out by itself, over a real socket, and says which one it was."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import gevent
import pytest

from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.core.chunks import Chunk, Failure, Finish
from dsh_actors.core.messages import TextBlock
from dsh_actors.errors import ConfigError
from tests.adapters.llm.llm_kit import (
    HANG_S,
    HI,
    Server,
    assemble,
    call,
    chunk,
    config,
    delta,
    failure_of,
    head,
    read_request,
)
from tests.adapters.llm.secure_kit import PROXY_NAMES, deaf_listener, mute_listener

LONG = {"connect_timeout_s": 30, "first_event_timeout_s": 30, "queue_timeout_s": 30, "idle_timeout_s": 30}
A = delta(content="a")


def ask(url: str, body: bytes = b"{}", **clocks: float) -> list[Chunk]:
    with gevent.Timeout(HANG_S):
        return call(OpenAiCompatibleProvider(config(url, **{**LONG, **clocks})), body)


def timeout_of(chunks: list[Chunk]) -> Failure:
    failure = failure_of(chunks)
    assert failure.code == "TIMEOUT", failure
    return failure


@contextmanager
def trickle(*first: bytes, again: bytes, every_s: float = 0.02) -> Iterator[Server]:
    """A server that sends these, and then one more piece now and then until the client leaves."""
    over = threading.Event()

    def handle(connection: socket.socket, request: bytes) -> bool:
        for piece in first:
            connection.sendall(piece)
        while not over.wait(every_s):
            connection.sendall(again)
        return False

    with Server(handle) as server:
        yield server
        over.set()


# --- connecting -------------------------------------------------------------------------------


def test_a_host_that_does_not_answer_is_no_connection_in_time() -> None:
    with deaf_listener() as port:
        failure = timeout_of(ask(f"http://127.0.0.1:{port}/v1", connect_timeout_s=0.2))
    assert failure.message.startswith("no connection within 0.2 s (connect_timeout_s)")


def test_a_silent_handshake_is_no_connection_in_time() -> None:
    with mute_listener() as port:
        failure = timeout_of(ask(f"https://127.0.0.1:{port}/v1", connect_timeout_s=0.2))
    assert "connect_timeout_s" in failure.message


def test_a_silent_proxy_is_no_connection_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_NAMES:
        monkeypatch.delenv(name, raising=False)
    with mute_listener() as port:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        failure = timeout_of(ask("https://127.0.0.1:9/v1", connect_timeout_s=0.2))
    assert "connect_timeout_s" in failure.message


def test_sending_a_long_request_may_take_longer_than_connecting() -> None:
    pause = threading.Event()

    class Slow(Server):
        def _serve(self, connection: socket.socket) -> None:
            with connection:
                pause.wait(0.4)
                assert read_request(connection)
                connection.sendall(head() + chunk(HI) + chunk(b""))

    with Slow(lambda connection, request: None) as server:
        assert ask(server.url, b"x" * 12_000_000, connect_timeout_s=0.1)[-1] == Finish("stop")


# --- the first event, and the queue -----------------------------------------------------------


def test_a_server_that_does_not_read_is_no_answer_in_time() -> None:
    with mute_listener() as port:
        url = f"http://127.0.0.1:{port}/v1"
        failure = timeout_of(ask(url, b"x" * 12_000_000, first_event_timeout_s=0.3))
    assert failure.message.startswith("no answer within 0.3 s (first_event_timeout_s)")


def test_headers_that_trickle_are_no_answer() -> None:
    with trickle(b"HTTP/1.1 200 OK\r\n", again=b"X-Slow: yes\r\n") as server:
        failure = timeout_of(ask(server.url, first_event_timeout_s=0.3))
        assert server.gone.wait(HANG_S)
    assert "first_event_timeout_s" in failure.message


def test_comments_keep_a_request_in_the_queue_only_so_long() -> None:
    with trickle(head(), again=chunk(b": keep-alive\n\n")) as server:
        begun = time.monotonic()
        failure = timeout_of(ask(server.url, first_event_timeout_s=0.2, queue_timeout_s=0.5))
        assert time.monotonic() - begun >= 0.5
    assert failure.message.startswith("still in the provider's queue after 0.5 s (queue_timeout_s)")


# --- inside the reply -------------------------------------------------------------------------


def test_bytes_that_complete_no_event_are_silence() -> None:
    with trickle(head(), chunk(A), chunk(b"data: "), again=chunk(b"x")) as server:
        chunks = ask(server.url, idle_timeout_s=0.3)
        assert server.gone.wait(HANG_S)
    assert timeout_of(chunks).message.startswith("silence of 0.3 s inside the reply (idle_timeout_s)")
    assert assemble(chunks).interrupted_blocks() == (TextBlock("a"),)


def test_a_pause_inside_a_reply_may_be_longer_than_the_wait_for_the_first_event() -> None:
    pause = threading.Event()

    def handle(connection: socket.socket, request: bytes) -> None:
        connection.sendall(head() + chunk(A))
        pause.wait(0.4)
        connection.sendall(chunk(HI) + chunk(b""))

    with Server(handle) as server:
        assert ask(server.url, first_event_timeout_s=0.1, queue_timeout_s=0.1)[-1] == Finish("stop")


def test_a_reply_that_never_ends_has_a_total_time() -> None:
    with trickle(head(), again=chunk(A)) as server:
        chunks = ask(server.url, total_timeout_s=0.4)
        assert server.gone.wait(HANG_S)
    assert timeout_of(chunks).message.startswith("not complete within 0.4 s (total_timeout_s)")
    assert assemble(chunks).interrupted_blocks()


@pytest.mark.parametrize("make", [deaf_listener, mute_listener])
def test_the_total_time_counts_from_the_start(make: Callable[[], Iterator[int]]) -> None:
    with make() as port:
        failure = timeout_of(ask(f"http://127.0.0.1:{port}/v1", total_timeout_s=0.2, connect_timeout_s=0.5))
    assert "total_timeout_s" in failure.message


def test_an_error_whose_text_never_ends_is_reported_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsh_actors.adapters.llm import transport

    monkeypatch.setattr(transport, "ERROR_BODY_S", 0.2)
    with trickle(head().replace(b"200 OK", b"503 Busy"), again=chunk(b"x")) as server:
        assert failure_of(ask(server.url)).code == "OVERLOADED"


@pytest.mark.parametrize("name", [*LONG, "total_timeout_s"])
def test_a_time_of_zero_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        config(**{name: 0})
