"""`dsh serve` as a real process: ready, refused, stopped, killed and taken up again."""

from __future__ import annotations

import json
import os
import re
import signal
import socket

import pytest

from dsh_actors.cli.main import main
from tests.cli.dsh_process import ONE_LINE, Dsh, Running
from tests.daemon.http_kit import Client, EventReader
from tests.model_server import STALL, T

READY = re.compile(r"\Adsh: serving at (\S+)( and (http://127\.0\.0\.1:\d+/))? \(pid (\d+)\)\n")


def serve(dsh: Dsh, *options: str) -> tuple[Running, Client]:
    running = dsh.start("serve", *options)
    running.wait_for(lambda run: "\n" in run.stderr)
    found = READY.match(running.stderr)
    assert found is not None, running.stderr
    return running, Client(found[1])


def create(client: Client, prompt: str, model: str = "openai/test", **more) -> str:
    made = client.post("/v1/agents", {"prompt": prompt, "model": model, **more})
    assert made.status == 201, made.raw
    return made.json["id"]


def stopped(running: Running) -> None:
    result = running.wait()
    assert (result.code, result.out) == (0, "")
    assert READY.fullmatch(result.err), result.err


def test_it_serves_until_a_signal_and_leaves_nothing_behind(dsh, model_server):
    model_server.script(T("hello"))
    running, client = serve(dsh)
    agent = create(client, "say hello", cwd=str(dsh.cwd))
    waited = client.get(f"/v1/agents/{agent}/wait?timeout=20").json
    assert waited["end"]["answer"] == "hello" and waited["end"]["session_id"] == agent
    reader = EventReader(client, f"/v1/agents/{agent}/events")
    assert reader.until("turn/end")
    running.send_signal(signal.SIGTERM)
    assert list(reader) == []
    stopped(running)
    assert not os.path.exists(client.place)
    assert dsh.session_ids() == [agent]
    assert dsh.survivors() == []


def test_a_stop_in_the_middle_of_a_turn_is_quick_and_the_next_daemon_goes_on(dsh, model_server):
    model_server.script(STALL(60), T("after all"))
    running, client = serve(dsh)
    agent = create(client, "be slow")
    model_server.wait_for_requests(1)
    running.send_signal(signal.SIGHUP)
    stopped(running)
    running, client = serve(dsh)
    waited = client.get(f"/v1/agents/{agent}/wait?timeout=20").json
    assert waited["end"]["answer"] == "after all"
    running.send_signal(signal.SIGINT)
    stopped(running)


def test_after_a_kill_the_next_daemon_goes_on_and_its_clients_miss_nothing(dsh, model_server):
    model_server.script(STALL(60), T("after all"))
    running, client = serve(dsh)
    agent = create(client, "be slow")
    model_server.wait_for_requests(1)
    reader = EventReader(client, f"/v1/agents/{agent}/events")
    before = reader.until("request/header")
    running.kill()
    before += list(reader)
    seen = [event for event in before if event.id is not None]
    running, client = serve(dsh)
    assert client.get(f"/v1/agents/{agent}/wait?timeout=20").json["end"]["answer"] == "after all"
    rest = list(EventReader(client, f"/v1/agents/{agent}/events?follow=0", seen[-1].id))
    whole = list(EventReader(client, f"/v1/agents/{agent}/events?follow=0"))
    assert [event.data for event in seen + rest] == [event.data for event in whole]
    running.send_signal(signal.SIGTERM)
    stopped(running)
    assert dsh.survivors() == []


def test_a_second_signal_ends_it_at_once(dsh, model_server):
    model_server.script(STALL(60))
    running, client = serve(dsh)
    create(client, "be slow")
    model_server.wait_for_requests(1)
    os.kill(running.process.pid, signal.SIGTERM)
    os.kill(running.process.pid, signal.SIGINT)
    assert running.wait().code in (0, 130, 143)
    assert dsh.survivors() == []


def test_both_sides_find_the_socket_that_is_configured_or_named_in_the_environment(dsh):
    dsh.home.mkdir()
    configured, named = dsh.tmp / "configured", dsh.tmp / "named"
    (dsh.home / "config.toml").write_text(f'[daemon]\nsocket = "{configured}"\n')
    for path, env in ((configured, {}), (named, {"DSH_SOCKET": str(named)})):
        running = dsh.start("serve", env=env)
        running.wait_for(lambda run: "\n" in run.stderr)
        assert READY.match(running.stderr)[1] == str(path)
        listed = dsh.call("agent", "ls", "--json", env=env)
        assert (listed.code, listed.err) == (0, "")
        running.send_signal(signal.SIGTERM)
        stopped(running)


def test_a_second_daemon_is_refused_in_one_line(dsh):
    running, client = serve(dsh)
    for options in ((), ("--socket", str(dsh.tmp / "other"))):
        refused = dsh.call("serve", *options)
        assert refused.code == 8 and ONE_LINE.match(refused.err), refused.err
    assert client.get("/v1/health").status == 200
    running.send_signal(signal.SIGTERM)
    stopped(running)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--listen", "0.0.0.0:1"), "this machine only"),
        (("--listen", "nonsense"), "host:port"),
        (("--approval-timeout", "0"), "approval_timeout"),
        (("--max-live", "0"), "max_live"),
        (("--idle-exit", "soon"), "duration"),
        (("--ready-fd", "1"), "ready-fd"),
        (("--ready-fd", "999999"), "ready-fd"),
        (("--no-such",), "no-such"),
    ],
)
def test_wrong_options_are_refused_before_anything_listens(tmp_path, monkeypatch, capfd, options, words):
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "home"))
    assert main(["serve", *options]) == 2
    said = capfd.readouterr()
    assert said.out == "" and ONE_LINE.match(said.err) and words in said.err.lower(), said.err
    assert not (tmp_path / "home" / "daemon" / "socket").exists()


def test_on_tcp_it_takes_the_token_of_its_file(dsh):
    running, _ = serve(dsh, "--listen", "127.0.0.1:0")
    url = READY.match(running.stderr)[3]
    place = url.removeprefix("http://").rstrip("/")
    token = (dsh.home / "daemon" / "token").read_text().strip()
    assert Client(place).get("/v1/agents").status == 401
    assert Client(place, token=token).get("/v1/agents").status == 200
    assert token not in running.stderr
    running.send_signal(signal.SIGTERM)
    stopped(running)


def test_it_ends_when_nothing_is_left_to_do(dsh):
    running, client = serve(dsh, "--once", "--idle-exit", "0.2")
    connected = EventReader(client, "/v1/events")  # or it could end between two of the requests
    agent = create(client, "What is here?", "scripted/demo")
    assert client.get(f"/v1/agents/{agent}/wait?timeout=20").json["done"]
    connected.leave()
    stopped(running)


def test_in_the_background_it_is_ready_when_the_command_returns(dsh):
    started = dsh.call("serve", "--detach", "--idle-exit", "60")
    assert (started.code, started.err) == (0, "")
    assert started.out == f"{dsh.home}/daemon/socket\n"
    client = Client(started.out.strip())
    log = dsh.home / "daemon" / "log"
    first = log.read_text()
    assert "socket" in first
    again = dsh.call("serve", "--detach")
    assert again.code == 8 and ONE_LINE.match(again.err), again.err
    assert log.read_text() == first + again.err, "what the one that runs has said is kept"
    assert client.get("/v1/agents").status == 200
    ended = dsh.call("serve", "--stop")
    assert (ended.code, ended.out, ended.err) == (0, "", "")
    assert not os.path.exists(client.place) and dsh.survivors(0.5) == []
    assert log.stat().st_mode & 0o777 == 0o600
    none = dsh.call("serve", "--stop")
    assert none.code == 2 and ONE_LINE.match(none.err), none.err


def test_a_long_log_is_set_aside_for_the_next_daemon(dsh):
    (dsh.home / "daemon").mkdir(parents=True)
    log = dsh.home / "daemon" / "log"
    log.write_bytes(b"x" * (1 << 20) + b"\n")
    assert dsh.call("serve", "--detach", "--idle-exit", "60").code == 0
    assert dsh.call("serve", "--stop").code == 0
    assert log.stat().st_size < 1_000 and log.stat().st_mode & 0o777 == 0o600
    assert (dsh.home / "daemon" / "log.old").stat().st_size == (1 << 20) + 1


def test_its_environment_and_answers_hold_no_key(dsh, model_server):
    model_server.script(T("hello"))
    running, client = serve(dsh)
    agent = create(client, f"my key is {dsh.env['OPENAI_API_KEY']}")
    client.get(f"/v1/agents/{agent}/wait?timeout=20")
    texts = [client.get("/v1/agents").raw, client.get("/metrics").raw]
    texts += [json.dumps(e.data).encode() for e in EventReader(client, f"/v1/agents/{agent}/events?follow=0")]
    assert dsh.env["OPENAI_API_KEY"].encode() not in b"".join(texts)
    running.send_signal(signal.SIGTERM)
    stopped(running)
    assert dsh.env["OPENAI_API_KEY"] not in dsh.stored_text()


def test_the_actors_are_shown_on_usr1(dsh):
    running, client = serve(dsh)
    create(client, "What is here?", "scripted/demo")
    running.send_signal(signal.SIGUSR1)
    running.wait_for(lambda run: "greenlets" in run.stderr)
    assert "session_store" in running.stderr
    running.send_signal(signal.SIGTERM)
    assert running.wait().code == 0


def test_requests_that_are_none_leave_it_well_and_silent(dsh):
    running, client = serve(dsh)
    for text in (b"\0\1\2\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n", b"GET /v1/agents/x/wait HTTP/1.1\r\n\r\n"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(client.place)
            raw.sendall(text)
            assert raw.recv(65_536)
    assert client.get("/v1/health").status == 200
    running.send_signal(signal.SIGTERM)
    stopped(running)
