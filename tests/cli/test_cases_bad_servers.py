"""`dsh run` against servers that send what they should not: exit codes, one line, a log without poison."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest

from tests.adapters.llm.llm_kit import DONE, Server, delta, finish, head
from tests.adapters.llm.secure_kit import AUTHORITY, SecureServer
from tests.cli.dsh_process import SECRET, Dsh, assert_failed

Handle = Callable[[socket.socket, bytes], object]
ERROR = b'data: {"choices": [NaN, "\\ud800"], "error": "\\udfff \xff"}\n\n'


def playing(*parts: bytes) -> Handle:
    def handle(connection: socket.socket, request: bytes) -> bool:
        for part in parts:
            connection.sendall(part)
        return False

    return handle


def flood(connection: socket.socket, request: bytes) -> bool:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X-More: of this\r\n" * 1_000)


def body(data: bytes, framing: str = "") -> bytes:
    return head(framing=framing or f"Content-Length: {len(data)}") + data


def check_log(dsh: Dsh) -> None:
    """What is stored is whole, and every request in it can be derived again."""
    (session_id,) = dsh.session_ids()
    verified = dsh.call("session", "verify", session_id, "--requests")
    assert (verified.code, verified.err) == (0, "")
    lines = [line for line in dsh.stored_text().split("\n") if line.startswith("{")]
    assert lines and all(isinstance(json.loads(line), dict) for line in lines)
    assert SECRET not in dsh.stored_text()


@pytest.mark.parametrize(
    ("handle", "retries", "reason", "requests"),
    [
        (playing(body(b"<html><h1>Welcome</h1></html>")), 1, "malformed_stream", 2),
        (flood, 0, "malformed_stream", 1),
        (playing(body(ERROR)), 0, "provider_error", 1),
    ],
    ids=["html", "headers without end", "an error that is no text"],
)
def test_a_run_that_gets_no_reply_fails_with_its_reason_and_a_clean_log(
    handle: Handle, retries: int, reason: str, requests: int, dsh: Dsh
) -> None:
    with Server(handle) as server:
        result = dsh.run("--json", "--max-retries", str(retries), "x", env={"OPENAI_BASE_URL": server.url})
        assert len(server.requests) == requests
    assert result.code == 1
    assert result.end["reason"] == reason
    assert result.err.count("\n") == 1 and SECRET not in result.err
    check_log(dsh)


def test_text_that_is_none_becomes_text_in_the_answer_and_in_the_log(dsh: Dsh) -> None:
    broken = delta(content="a\ud83d") + delta(content="b").replace(b'"b"', b'"\xff"') + finish("stop") + DONE
    with Server(playing(body(broken))) as server:
        result = dsh.run("x", env={"OPENAI_BASE_URL": server.url})
    assert (result.code, result.out) == (0, "a\ufffd\ufffd\n")
    check_log(dsh)


def test_a_certificate_for_another_host_ends_the_run_at_once(dsh: Dsh) -> None:
    with SecureServer(playing(body(DONE)), "elsewhere") as server:
        env = {"OPENAI_BASE_URL": server.url, "SSL_CERT_FILE": AUTHORITY}
        result = dsh.run("x", env=env)
        assert server.connections == 1, "it must not be tried again"
    assert_failed(result, 1)
    assert "certificate" in result.err and "127.0.0.1" in result.err


def test_a_provider_with_an_authority_of_its_own_works(dsh: Dsh) -> None:
    answer = body(delta(content="hello") + finish("stop") + DONE)
    with SecureServer(playing(answer)) as server:
        dsh.home.mkdir(mode=0o700)
        (dsh.home / "config.toml").write_text(
            f'[providers.inner]\nbase_url = "{server.url}"\nca_file = "{AUTHORITY}"\nmax_concurrency = 2\n'
        )
        result = dsh.run("-m", "inner/test", "x")
    assert (result.code, result.out) == (0, "hello\n"), result.err
