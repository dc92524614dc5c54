"""Requests of the daemon's client: over a socket whatever its path, and errors as this program's."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dsh_actors import errors
from dsh_actors.core.exit_codes import reason_of_error
from dsh_actors.daemon.client import DaemonClient
from dsh_actors.daemon.sockets import open_loopback
from tests.daemon.fake_daemon import Asked, fake_daemon


def told(code: str, message: str = "no", **more: str) -> dict[str, object]:
    return {"error": {"code": code, "message": message, **more}}


def test_a_request_goes_through_the_socket_past_every_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with (
        fake_daemon(tmp_path / "socket", lambda asked: (201, {"id": "a/b"})) as fake,
        DaemonClient(fake.path, "secret") as client,
    ):
        assert client.create({"prompt": "hé"}) == {"id": "a/b"}
        client.deliver("a/b?", "go on", "steer")
    first, second = fake.asked
    assert (first.method, first.path, first.body) == ("POST", "/v1/agents", {"prompt": "hé"})
    assert first.headers["authorization"] == "Bearer secret"
    assert second.path == "/v1/agents/a%2Fb%3F/messages"
    assert second.body == {"text": "go on", "how": "steer"}


def test_a_connect_that_is_cut_short_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut(BaseException):
        """What a signal or a timeout of the caller throws into the wait."""

    made: list[socket.socket] = []

    def connect(self: socket.socket, _address: object) -> None:
        made.append(self)
        raise Cut

    monkeypatch.setattr(socket.socket, "connect", connect)
    monkeypatch.setattr(socket.socket, "listen", connect)
    with pytest.raises(Cut), DaemonClient("/tmp/nobody") as client:
        list(client.agents())
    with pytest.raises(Cut):
        open_loopback("127.0.0.1:0").close()
    assert [each.fileno() for each in made] == [-1, -1]


def test_a_socket_in_a_deep_directory_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    near = tmp_path / "socket"
    with fake_daemon(near, lambda asked: (200, {"approvals": []})):
        os.link(near, folder / "socket")
        with DaemonClient(str(folder / "socket")) as client:
            assert client.approvals() == []


def test_a_list_is_read_page_by_page_and_no_further_than_asked(tmp_path: Path) -> None:
    def answer(asked: Asked) -> tuple[int, object]:
        start = 2 if "after=b" in asked.path else 0
        found = [{"id": name} for name in "abc"[start : start + 2]]
        return 200, {"agents": found, "next": None if start else "b"}

    with fake_daemon(tmp_path / "socket", answer) as fake, DaemonClient(fake.path) as client:
        assert [each["id"] for each in client.agents("idle")] == ["a", "b", "c"]
        assert [each["id"] for each in client.agents(limit=2)] == ["a", "b"]
    assert len(fake.asked) == 3
    assert "state=idle" in fake.asked[1].path and "after=b" in fake.asked[1].path


@pytest.mark.parametrize(
    ("status", "code", "kind", "reason"),
    [
        (409, "SESSION_BUSY", errors.SessionBusy, "busy"),
        (409, "SESSION_ALREADY_EXISTS", errors.SessionExists, "busy"),
        (404, "SESSION_NOT_FOUND", errors.SessionNotFound, "usage"),
        (404, "AGENT_NOT_FOUND", errors.AgentNotFound, "usage"),
        (400, "CONFIG", errors.ConfigError, "usage"),
        (401, "UNAUTHORIZED", errors.CredentialError, "auth"),
        (400, "MISSING_CREDENTIAL", errors.CredentialError, "auth"),
        (507, "STORAGE_FULL", errors.StorageFull, "storage_full"),
        (503, "HOST_FULL", errors.HarnessError, "internal"),
        (500, "UNKNOWN", errors.HarnessError, "internal"),
    ],
)
def test_a_refusal_is_the_error_that_it_would_be_here(
    tmp_path: Path, status: int, code: str, kind: type[Exception], reason: str
) -> None:
    answer = (status, told(code, "no room", hint="try later"))
    with (
        fake_daemon(tmp_path / "socket", lambda asked: answer) as fake,
        DaemonClient(fake.path) as client,
        pytest.raises(errors.HarnessError) as caught,
    ):
        client.agent("x")
    error = caught.value
    assert type(error) is kind
    assert (error.code, error.message, error.hint) == (code, "no room", "try later")
    assert reason_of_error(error) == reason


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<html>"),
        (200, [1]),
        (404, b"not found"),
        (500, {"error": "no"}),
        (302, {}),
        b"SSH-2.0-x\r\n\r\n",
    ],
    ids=str,
)
def test_whatever_else_listens_there_is_told_from_a_daemon(tmp_path: Path, answer: object) -> None:
    with (
        fake_daemon(tmp_path / "socket", lambda asked: answer) as fake,  # type: ignore[arg-type,return-value]
        DaemonClient(fake.path) as client,
        pytest.raises(errors.HarnessError) as caught,
    ):
        client.agent("x")
    assert caught.value.code in ("PROTOCOL", "DAEMON_LOST")
    assert fake.path in caught.value.message


def test_where_nobody_listens_the_error_says_how_to_start_a_daemon(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))  # as a daemon that was killed leaves it
    left.close()
    for each in (path, tmp_path / "nothing", tmp_path / "no" / "folder"):
        with DaemonClient(str(each)) as client, pytest.raises(errors.UsageError) as caught:
            client.agent("x")
        assert caught.value.code == "NO_DAEMON" and str(each) in caught.value.message
        assert caught.value.hint == "start one with: dsh serve"


def test_a_daemon_that_dies_over_a_request_is_not_taken_for_none(tmp_path: Path) -> None:
    with (
        fake_daemon(tmp_path / "socket", lambda asked: b"") as fake,
        DaemonClient(fake.path) as client,
        pytest.raises(errors.HarnessError) as caught,
    ):
        client.create({"prompt": "x"})
    assert caught.value.code == "DAEMON_LOST" and len(fake.asked) == 1  # created perhaps; not tried again


@pytest.mark.parametrize(
    "address", ["http://192.0.2.1:80", "https://127.0.0.1:80", "http://127.0.0.1", "http://[::1", "tcp://x:1"]
)
def test_a_token_goes_to_no_other_machine(address: str) -> None:
    with pytest.raises(errors.UsageError, match="cannot be the address"):
        DaemonClient(address, "secret")


def test_a_wait_goes_on_over_a_daemon_that_is_started_again(tmp_path: Path) -> None:
    going, done = {"done": False, "ends": {}}, {"done": True, "ends": {"a": {"x": 1}}}
    answers = iter([b"", (200, going), (200, done)])
    with (
        fake_daemon(tmp_path / "socket", lambda asked: next(answers)) as fake,  # type: ignore[arg-type,return-value]
        DaemonClient(fake.path) as client,
    ):
        assert client.wait(["a"]) == {"a": {"x": 1}}
    assert len(fake.asked) == 3


def test_a_wait_gives_up_on_a_daemon_that_stays_away(tmp_path: Path) -> None:
    with (
        fake_daemon(tmp_path / "socket", lambda asked: b"") as fake,
        DaemonClient(fake.path, patience_s=0.05) as client,
        pytest.raises(errors.HarnessError, match=r"did not come back in 0\.05 s") as caught,
    ):
        client.wait(["a"])
    assert caught.value.code == "DAEMON_LOST" and len(fake.asked) > 1


def test_a_wait_that_takes_too_long_says_who_is_not_done(tmp_path: Path) -> None:
    answer = (200, {"done": False, "ends": {"c": None, "b": {"x": 1}}})
    with fake_daemon(tmp_path / "socket", lambda asked: answer) as fake, DaemonClient(fake.path) as client:
        assert client.wait(["b", "a", "c"], timeout_s=0) == {"b": {"x": 1}, "c": None}
    assert fake.asked[0].body == {"ids": ["b", "a", "c"], "any": False, "timeout_s": 0.0}
