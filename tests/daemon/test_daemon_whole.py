"""The daemon as a whole: agents over HTTP, questions and their deadlines, the end and the restart."""

from __future__ import annotations

import json
import os
import random
import socket
import stat
import threading

import pytest

from dsh_actors.config import load_config
from dsh_actors.core.events import Event
from dsh_actors.daemon.server import Daemon
from dsh_actors.errors import SessionBusy, StorageError, UsageError
from dsh_actors.runtime.actor import live_actors
from dsh_actors.runtime.tasks import live_tasks, start_task
from dsh_actors.testing.manual import ManualProvider
from dsh_actors.testing.scripted import ScriptedProvider
from tests.daemon.host_kit import EchoProvider, answer
from tests.daemon.http_kit import Client, EventReader, until

RULES = """
default = "ask"
[[rule]]
tool = "read"
decision = "allow"
"""


class Place:
    """A home and a directory to work in, for daemons one after another."""

    def __init__(self, folder) -> None:
        self.home, self.cwd = folder / "home", folder / "work"
        self.cwd.mkdir()
        self.rules = folder / "rules.toml"
        self.rules.write_text(RULES)
        self.manual = ManualProvider()
        self.script: list[dict] = []
        self.daemons: list[Daemon] = []

    def start(self, *, idle_exit_s=None, once=False, **settings) -> Daemon:
        options = {f"daemon.{name}": value for name, value in settings.items()}
        config = load_config(env={"DSH_HOME": str(self.home)}, cwd=str(self.cwd), options=options)
        providers = {
            "manual": self.manual,
            "echo": EchoProvider(),
            "scripted": ScriptedProvider(self.script),
        }
        daemon = Daemon(config, providers=providers, idle_exit_s=idle_exit_s, once=once)
        daemon.start()
        self.daemons.append(daemon)
        return daemon

    def client(self) -> Client:
        client = Client(self.daemons[-1].socket_path)
        client.description = client.get("/v1/openapi.json").json
        return client

    def asks(self, *entries) -> None:
        """The model wants to run a command, and says something then."""
        command = {"tool": "bash", "arguments": {"command": "echo yes > marker"}}
        self.script += [{"calls": [command]}, {"text": "That was it."}]

    def create(self, client, prompt="hello", model="echo/m", **more) -> str:
        made = client.post("/v1/agents", {"prompt": prompt, "model": model, "cwd": str(self.cwd), **more})
        assert made.status == 201, made.raw
        return made.json["id"]


@pytest.fixture
def place(tmp_path):
    made = Place(tmp_path)
    yield made
    for daemon in made.daemons:
        daemon.close(5.0)
    assert [daemon for daemon in made.daemons if os.path.exists(daemon.socket_path)] == []
    assert live_actors() == []
    until(lambda: live_tasks() == [])


def wait_for(client, agent_id):
    waited = client.get(f"/v1/agents/{agent_id}/wait?timeout=20").json
    assert waited["done"], waited
    return waited["end"]


def test_an_agent_from_its_creation_to_its_end(place):
    daemon = place.start()
    client = place.client()
    everything = EventReader(client, "/v1/events")
    agent = place.create(client)
    assert wait_for(client, agent)["answer"] == "echo: hello"
    reader = EventReader(client, f"/v1/agents/{agent}/events")
    first = reader.until("turn/end")
    assert client.post(f"/v1/agents/{agent}/messages", {"text": "again"}).status == 202
    events = first + reader.until("turn/end")
    assert [Event.from_json(event.data) for event in events] == list(daemon.harness.read_from(agent))
    assert wait_for(client, agent)["answer"] == "echo: again"
    assert [each["id"] for each in client.get("/v1/agents").json["agents"]] == [agent]
    assert client.get(f"/v1/agents/{agent}").json["last_end"]["answer"] == "echo: again"
    fork = client.post(f"/v1/agents/{agent}/fork", {"prompt": "and here?"})
    assert fork.status == 201
    assert wait_for(client, fork.json["id"])["answer"] == "echo: and here?"
    assert client.ask("DELETE", f"/v1/agents/{agent}").status == 200
    assert [event.name for event in reader] == ["agent.disposed"]
    assert client.get(f"/v1/agents/{agent}").code == "AGENT_NOT_FOUND"
    assert len(list(daemon.harness.read_from(agent))) == len(events), "its session stays"
    told = everything.until("agent.disposed")
    states = [event.data["state"] for event in told if event.name == "agent" and event.data["id"] == agent]
    assert "running" in states and "idle" in states and told[-1].data == {"id": agent}
    everything.leave()


@pytest.mark.parametrize("model", ["nope/x", "no-slash", "scripted"])
def test_a_model_that_is_not_there_is_refused_before_anything_exists(place, model):
    place.start()
    client = place.client()
    refused = client.post("/v1/agents", {"prompt": "x", "model": model, "cwd": str(place.cwd)})
    assert (refused.status, refused.code) == (400, "UNKNOWN_MODEL"), refused.raw
    assert client.get("/v1/agents").json == {"agents": [], "next": None}
    assert not (place.home / "sessions").exists()


def test_what_a_task_lacks_is_refused(place):
    place.start()
    client = place.client()
    for task, status, code in (
        ({"model": "openai/gpt-5"}, 422, "MISSING_CREDENTIAL"),
        ({"cwd": "/nowhere"}, 400, "USAGE"),
        ({"approve": "/nowhere.toml"}, 400, "USAGE"),
        ({"tools": ["bush"]}, 400, "USAGE"),
        ({"resume": "nobody"}, 404, "SESSION_NOT_FOUND"),
        ({"limits": {"max_steps": 0}}, 400, "CONFIG"),
    ):
        refused = client.post("/v1/agents", {"prompt": "x", "model": "echo/m", **task})
        assert (refused.status, refused.code) == (status, code), (task, refused.raw)
    agent = place.create(client)
    again = client.post("/v1/agents", {"session_id": agent, "model": "echo/m"})
    assert (again.status, again.code) == (409, "SESSION_ALREADY_EXISTS")
    wait_for(client, agent)


def test_a_question_waits_for_a_client_and_its_yes_lets_the_call_run(place):
    place.asks()
    place.start()
    client = place.client()
    everything = EventReader(client, "/v1/events")
    agent = place.create(client, model="scripted/x", approve=str(place.rules), sandbox="off")
    asked = everything.until("approval.requested")[-1].data
    assert asked["tool"] == "bash" and asked["arguments"] == {"command": "echo yes > marker"}
    assert asked["agent"] == agent and asked["deadline"] > 0
    assert client.get("/v1/approvals").json == {"approvals": [asked]}
    assert client.get(f"/v1/agents/{agent}").json["approvals"] == 1
    late = EventReader(client, f"/v1/agents/{agent}/events")
    assert late.until("approval.requested")[-1].data == asked
    assert client.get(f"/v1/agents/{agent}/wait?timeout=0").json["done"] is False
    assert not (place.cwd / "marker").exists()
    path = f"/v1/approvals/{asked['id']}"
    assert client.post(path, {"decision": "allow"}).json == {"id": asked["id"], "outcome": "allowed"}
    assert client.post(path, {"decision": "deny"}).code == "APPROVAL_NOT_FOUND"
    assert wait_for(client, agent)["reason"] == "completed"
    assert (place.cwd / "marker").read_text() == "yes\n"
    decided = late.until("approval.decided")[-1].data
    assert decided == {"id": asked["id"], "agent": agent, "outcome": "allowed"}
    assert client.get("/v1/approvals").json == {"approvals": []}
    for reader in (late, everything):
        reader.leave()


def test_a_no_is_told_to_the_model_and_the_call_does_not_run(place):
    place.asks()
    place.start()
    client = place.client()
    agent = place.create(client, model="scripted/x", approve=str(place.rules))
    until(lambda: client.get("/v1/approvals").json["approvals"] != [])
    (asked,) = client.get("/v1/approvals").json["approvals"]
    assert client.post(f"/v1/approvals/{asked['id']}", {"decision": "deny"}).json["outcome"] == "denied"
    end = wait_for(client, agent)
    assert (end["reason"], end["denied"][0]["tool"]) == ("denied", "bash")
    assert not (place.cwd / "marker").exists()


def test_a_question_that_nobody_answers_is_denied_at_its_deadline(place):
    place.asks()
    place.start(approval_timeout=0.2)
    client = place.client()
    everything = EventReader(client, "/v1/events")
    agent = place.create(client, model="scripted/x", approve=str(place.rules))
    asked = everything.until("approval.requested")[-1].data
    decided = everything.until("approval.decided")[-1].data
    assert decided == {"id": asked["id"], "agent": agent, "outcome": "expired"}
    end = wait_for(client, agent)
    assert end["reason"] == "denied" and end["answer"] == "That was it."
    assert client.post(f"/v1/approvals/{asked['id']}", {"decision": "allow"}).status == 404
    assert not (place.cwd / "marker").exists()
    assert client.get(f"/v1/agents/{agent}").json["approvals"] == 0
    everything.leave()


def test_a_cancel_withdraws_the_question(place):
    place.asks()
    place.start()
    client = place.client()
    everything = EventReader(client, "/v1/events")
    agent = place.create(client, model="scripted/x", approve=str(place.rules))
    everything.until("approval.requested")
    assert client.ask("POST", f"/v1/agents/{agent}/cancel").status == 200
    assert everything.until("approval.decided")[-1].data["outcome"] == "withdrawn"
    assert client.get("/v1/approvals").json == {"approvals": []}
    everything.leave()


def test_a_client_that_is_cut_off_again_and_again_has_the_log_in_the_end(place):
    text = "".join(f"word {number} " for number in range(3_000))
    place.script += [{"text": text, "chunks": 3_000}] * 2
    daemon = place.start(event_queue=32)
    client, rng = place.client(), random.Random(8)
    agent = place.create(client, model="scripted/x")
    client.post(f"/v1/agents/{agent}/messages", {"text": "again"})
    seen: list = []
    for _ in range(20):
        reader = EventReader(client, f"/v1/agents/{agent}/events", seen[-1].id if seen else None)
        seen += [event for event, _ in zip(reader, range(rng.randrange(1, 400)), strict=False)]
        reader.leave()
    wait_for(client, agent)
    seen += list(EventReader(client, f"/v1/agents/{agent}/events?follow=0", seen[-1].id))
    events = [Event.from_json(event.data) for event in seen]
    assert events == list(daemon.harness.read_from(agent)) and len(events) > 5_000
    assert [event.seq for event in events] == list(range(len(events)))


def test_waiting_ends_for_any_and_for_all(place):
    place.start()
    client = place.client()
    quick = place.create(client)
    slow = place.create(client, model="manual/m")
    stream = place.manual.next_stream()
    any_of = client.post("/v1/wait", {"ids": [quick, slow], "any": True}).json
    assert any_of["done"] and slow not in any_of["ends"]
    assert any_of["ends"][quick]["answer"] == "echo: hello"
    not_all = client.post("/v1/wait", {"ids": [quick, slow], "timeout_s": 0.1}).json
    assert not not_all["done"] and not_all["ends"].keys() == {quick}
    stream.send(*answer("at last"))
    whole = client.post("/v1/wait", {"ids": [quick, slow]}).json
    assert whole["done"] and whole["ends"][slow]["answer"] == "at last"


def test_a_client_that_no_longer_waits_leaves_nothing_behind(place, monkeypatch):
    monkeypatch.setattr("dsh_actors.daemon.api._WAIT_SLICE_S", 0.05)
    daemon = place.start()
    client = place.client()
    agent = place.create(client, model="manual/m")
    place.manual.next_stream()
    connection = client.connect()
    connection.request("GET", f"/v1/agents/{agent}/wait")
    until(lambda: daemon.http.connections == 1)
    connection.close()
    until(lambda: daemon.http.connections == 0)


def test_health_and_metrics_answer_while_everything_else_waits(place, monkeypatch):
    daemon = place.start()
    client = place.client()
    agent = place.create(client)
    wait_for(client, agent)
    gate = threading.Event()
    entered: list = []
    monkeypatch.setattr(daemon.host, "get", lambda _agent: entered.append(1) or gate.wait(20))
    ends: list = []
    start_task(lambda _token: client.get(f"/v1/agents/{agent}").status, ends.append, name="stuck")
    until(lambda: bool(entered))
    health = client.get("/v1/health").json
    assert (health["status"], health["pid"], health["connections"]) == ("ok", os.getpid(), 2)
    text = client.get("/metrics").raw.decode()
    assert 'dsh_turns_total{end="completed"} 1' in text and "process_open_fds" in text
    assert 'dsh_agents_hosted{state="failed"} 0' in text
    assert 'dsh_http_answers_total{status="201"} 1' in text
    gate.set()
    until(lambda: bool(ends))


def test_a_run_that_a_stop_cut_goes_on_in_the_next_daemon(place):
    first = place.start()
    client = place.client()
    agent = place.create(client, model="manual/m")
    place.manual.next_stream()
    reader = EventReader(client, f"/v1/agents/{agent}/events")
    until(lambda: first.streams.readers == 1)
    first.close(5.0)
    seen = [event.id for event in reader if event.id is not None]
    place.start()
    client = place.client()
    place.manual.next_stream().send(*answer("where was I"))
    assert wait_for(client, agent)["answer"] == "where was I"
    rest = EventReader(client, f"/v1/agents/{agent}/events?follow=0", seen[-1])
    numbers = [int(event.id) for event in rest]
    assert numbers == list(range(int(seen[-1]) + 1, numbers[-1] + 1))


def test_one_daemon_has_a_home_and_the_next_one_is_told_so(place, tmp_path):
    first = place.start()
    with pytest.raises(SessionBusy, match="listens at") as told:
        place.start()
    assert told.value.hint and "DSH_HOME" in told.value.hint  # another socket alone would not do
    with pytest.raises(SessionBusy, match="in use by pid"):
        place.start(socket=str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()
    assert Client(first.socket_path).get("/v1/health").json["status"] == "ok"


def test_its_files_are_for_its_owner_only(place):
    daemon = place.start(listen="127.0.0.1:0")
    modes = {
        path: stat.S_IMODE(os.stat(path).st_mode)
        for path in (daemon.directory, daemon.socket_path, os.path.join(daemon.directory, "token"))
    }
    assert list(modes.values()) == [0o700, 0o600, 0o600]


def test_a_directory_that_others_could_look_into_is_closed_to_them(place):
    (place.home / "daemon").mkdir(parents=True)
    (place.home / "daemon").chmod(0o755)
    place.start()
    assert stat.S_IMODE((place.home / "daemon").stat().st_mode) == 0o700


def test_the_streams_of_an_agent_end_with_it_whoever_ended_it(place):
    daemon = place.start()
    client = place.client()
    agent = place.create(client)
    wait_for(client, agent)
    reader = EventReader(client, f"/v1/agents/{agent}/events")
    reader.until("turn/end")
    daemon.host.dispose(agent)
    assert [event.name for event in reader] == ["agent.disposed"]


def test_the_socket_of_a_daemon_that_died_is_replaced(place):
    place.home.mkdir()
    (place.home / "daemon").mkdir()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(place.home / "daemon" / "socket"))
    dead.close()
    place.start()
    assert place.client().get("/v1/health").status == 200


def test_something_else_in_the_place_of_the_socket_is_left_alone(place):
    (place.home / "daemon").mkdir(parents=True)
    (place.home / "daemon" / "socket").write_text("precious")
    with pytest.raises(UsageError, match="is no socket"):
        place.start()
    assert (place.home / "daemon" / "socket").read_text() == "precious"
    (place.home / "daemon" / "socket").unlink()


def test_a_path_that_is_too_long_for_a_socket_works_too(place, tmp_path):
    folder = tmp_path / ("long" * 30)
    daemon = place.start(socket=str(folder / "socket"))
    assert stat.S_IMODE(os.stat(daemon.socket_path).st_mode) == 0o600
    with socket.socket(socket.AF_UNIX) as raw:
        descriptor = os.open(folder, os.O_PATH)
        raw.connect(f"/proc/self/fd/{descriptor}/socket")
        os.close(descriptor)
        raw.sendall(b"GET /v1/health HTTP/1.0\r\n\r\n")
        assert json.loads(raw.makefile("rb").read().partition(b"\r\n\r\n")[2])["status"] == "ok"


def test_it_stops_by_itself_when_it_has_been_idle_for_long_enough(place):
    daemon = place.start(idle_exit_s=0.2)
    client = place.client()
    agent = place.create(client, model="manual/m")
    stream = place.manual.next_stream()
    ended: list = []
    start_task(lambda _token: daemon.wait(), ended.append, name="wait")
    for _ in range(5):
        client.get(f"/v1/agents/{agent}/wait?timeout=0.1")
    assert ended == [], "an agent is at work"
    stream.send(*answer("done"))
    wait_for(client, agent)
    until(lambda: bool(ended))
    assert ended[0].error is None


def test_used_once_it_stops_after_its_use_and_not_before(place):
    daemon = place.start(idle_exit_s=0.05, once=True)
    assert daemon._idle_since() + 0.05 > daemon._last_run
    ended: list = []
    start_task(lambda _token: daemon.wait(), ended.append, name="wait")
    threading.Event().wait(0.3)
    assert ended == [], "nobody has used it yet"
    client = Client(daemon.socket_path)
    assert client.get("/v1/health").status == 200
    until(lambda: bool(ended))


def test_a_client_that_is_connected_keeps_it_up(place):
    daemon = place.start(idle_exit_s=0.05)
    reader = EventReader(place.client(), "/v1/events")
    ended: list = []
    start_task(lambda _token: daemon.wait(), ended.append, name="wait")
    threading.Event().wait(0.3)
    assert ended == []
    reader.leave()
    until(lambda: bool(ended))


def test_a_table_that_cannot_be_read_for_a_moment_does_not_end_it(place, monkeypatch):
    daemon = place.start(idle_exit_s=0.05)
    asked = threading.Event()

    def refuse():
        asked.set()
        raise StorageError("the disk does not answer")

    ended: list = []
    with monkeypatch.context() as patches:
        patches.setattr(daemon.host, "counts", refuse)
        start_task(lambda _token: daemon.wait(), ended.append, name="wait")
        assert asked.wait(20)
        asked.clear()
        assert asked.wait(20), "it looks again"
    until(lambda: bool(ended))
    assert ended[0].error is None
