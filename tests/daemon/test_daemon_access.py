"""Who may ask: the token and the names of hosts on TCP, and where the daemon may listen."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from dsh_actors.daemon import sockets
from dsh_actors.daemon.access import load_token
from dsh_actors.daemon.sockets import UnixListener, loopback_address, open_loopback
from dsh_actors.errors import SessionBusy, StorageError, UsageError
from tests.daemon.http_kit import Client

TOKEN = "canary-token-0123456789"


@pytest.fixture
def remote(stages):
    stage = stages("a", token=TOKEN)
    return stage.remote


def test_tcp_needs_the_token_and_the_socket_does_not(stages):
    stage = stages("a", token=TOKEN)
    assert stage.client.get("/v1/agents").status == 200
    assert stage.remote.get("/v1/agents").status == 200
    assert Client(f"127.0.0.1:{stage.port}").get("/v1/agents").status == 401


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", "Bearer \u00fc"]
)
def test_a_wrong_token_is_refused_with_how_to_find_the_right_one(remote, header):
    remote.token = None
    for path in ("/v1/agents", "/v1/events", "/v1/agents/a/events", "/metrics", "/v1/openapi.json"):
        refused = remote.ask("GET", path, headers={"Authorization": header})
        assert (refused.status, refused.code) == (401, "NO_TOKEN")
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        assert TOKEN not in refused.raw.decode()


def test_the_page_and_health_are_open_as_they_tell_nothing_of_agents(remote):
    remote.token = None
    assert remote.get("/").status == 200
    assert "agents" not in remote.get("/v1/health").json


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "", "localhost.x"])
def test_a_name_that_was_made_to_point_here_is_refused(remote, host):
    refused = remote.ask("GET", "/", headers={"Host": host})
    assert (refused.status, refused.code) == (403, "FOREIGN_HOST")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:1", "[::1]:8421", "LOCALHOST:80"])
def test_every_name_of_this_machine_is_taken(remote, host):
    assert remote.ask("GET", "/v1/agents", headers={"Host": host}).status == 200


def test_a_whole_address_names_the_host_whatever_the_header_says(remote):
    refused = remote.ask("GET", "http://evil.example/", headers={"Host": "127.0.0.1"})
    assert (refused.status, refused.code) == (403, "FOREIGN_HOST")
    assert remote.ask("GET", "http://127.0.0.1/", headers={"Host": "evil.example"}).status == 200


def test_a_page_from_elsewhere_may_not_ask_even_with_the_token(remote):
    refused = remote.ask("GET", "/v1/agents", headers={"Origin": "https://evil.example"})
    assert (refused.status, refused.code) == (403, "FOREIGN_ORIGIN")
    own = f"http://{remote.place}"
    assert remote.ask("GET", "/v1/agents", headers={"Origin": own}).status == 200


def test_the_page_may_load_nothing_from_elsewhere(remote):
    headers = remote.get("/").headers
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"


# --- the token -------------------------------------------------------------------------------------


def test_the_token_is_made_once_and_for_its_owner_only(tmp_path):
    token = load_token(str(tmp_path))
    assert len(token) > 30 and load_token(str(tmp_path)) == token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


@pytest.mark.parametrize(("mode", "text"), [(0o644, "x" * 40), (0o600, "short"), (0o600, "")])
def test_a_token_that_is_none_or_known_to_others_is_refused(tmp_path, mode, text):
    (tmp_path / "token").write_text(text)
    (tmp_path / "token").chmod(mode)
    with pytest.raises(UsageError, match=r"token") as caught:
        load_token(str(tmp_path))
    assert "remove it" in caught.value.hint


# --- where it listens ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("localhost:0", ("127.0.0.1", 0)),
        ("[::1]:1", ("::1", 1)),
        ("127.1.2.3:9", ("127.1.2.3", 9)),
    ],
)
def test_loopback_may_be_listened_at(text, address):
    assert loopback_address(text) == address


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:80", "192.168.0.1:80", "example.org:80", "[::]:80", ":80", "80", "127.0.0.1:x", "127.0.0.1:"],
)
def test_every_other_address_is_refused(text):
    with pytest.raises(UsageError, match="listen"):
        open_loopback(text)


def test_a_port_that_is_taken_is_said_to_be():
    with open_loopback("127.0.0.1:0") as first, pytest.raises(SessionBusy, match="listens at"):
        open_loopback(f"127.0.0.1:{first.getsockname()[1]}")


def test_a_token_behind_a_link_is_refused_as_another_may_have_put_it_there(tmp_path):
    (tmp_path / "elsewhere").write_text(TOKEN)
    (tmp_path / "elsewhere").chmod(0o600)
    (tmp_path / "token").symlink_to("elsewhere")
    with pytest.raises(StorageError, match="token"):
        load_token(str(tmp_path))


def test_the_dead_socket_of_another_user_is_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with monkeypatch.context() as patches:
        patches.setattr(sockets.os, "geteuid", lambda: 4_242)
        with pytest.raises(UsageError, match="another user"):
            UnixListener(str(path))
    assert path.is_socket()


def test_a_listener_takes_away_its_own_file_and_no_other(tmp_path):
    path = str(tmp_path / "new" / "socket")
    first = UnixListener(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o700
    with pytest.raises(SessionBusy):
        UnixListener(path)
    first.socket.close()
    os.rename(path, path + "-moved")
    second = UnixListener(path)
    first.remove()
    assert os.path.exists(path)
    second.socket.close()
    second.remove()
    assert not os.path.exists(path)


def test_a_place_without_a_directory_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot listen at"):
        UnixListener(str(tmp_path / "file" / "socket"))


def test_a_busy_daemon_is_not_taken_for_a_dead_one(tmp_path, monkeypatch):
    monkeypatch.setattr(sockets, "_LOOK_S", 0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(str(tmp_path / "socket"))
        with pytest.raises(SessionBusy):
            UnixListener(str(tmp_path / "socket"))
        for each in waiting:
            each.close()
    assert (tmp_path / "socket").exists()
