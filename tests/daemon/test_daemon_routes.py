"""Every path of the HTTP interface: what it takes and gives, and the one form of everything it refuses."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading

import pytest

from dsh_actors import task_spec
from dsh_actors.core.schema import check_schema
from dsh_actors.daemon import http_app
from dsh_actors.daemon.http_app import MAX_BODY_BYTES
from dsh_actors.daemon.schemas import COMPONENTS, resolved
from dsh_actors.errors import HostFull
from dsh_actors.runtime.tasks import start_task
from tests.daemon.http_kit import UnixConnection

MINIMAL = {
    "POST /v1/agents": {"prompt": "x"},
    "POST /v1/agents/{id}/messages": {"text": "x"},
    "POST /v1/wait": {"ids": ["a"]},
    "POST /v1/approvals/{id}": {"decision": "allow"},
}


def test_every_documented_path_answers_and_every_route_is_documented(stage):
    described = {
        f"{method.upper()} {path}"
        for path, operations in stage.client.description["paths"].items()
        for method in operations
    }
    assert described == {f"{route.method} {route.path}" for route in stage.api.routes}
    assert len(described) == 17
    for route in sorted(stage.api.routes, key=lambda route: route.method == "DELETE"):
        path = route.path.replace("{id}", "a") + ("?follow=0" if route.name == "agentEvents" else "")
        if route.name == "events":
            continue  # it has no end; it is read elsewhere
        answer = stage.client.ask(route.method, path, MINIMAL.get(f"{route.method} {route.path}"))
        wanted = 404 if route.name == "decide" else route.status
        assert answer.status == wanted, (route, answer)


def test_the_description_is_self_contained(stage):
    text = json.dumps(stage.client.description)
    assert stage.client.description["openapi"] == "3.1.0"
    names = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(COMPONENTS) and "Error" in names
    assert [check_schema(resolved(schema)) for schema in COMPONENTS.values()] == [[]] * len(COMPONENTS)


def test_the_description_of_a_task_has_the_keys_that_a_task_has():
    assert set(COMPONENTS["TaskSpec"]["properties"]) == set(task_spec._KNOWN)
    assert set(COMPONENTS["TaskSpec"]["properties"]["limits"]["properties"]) >= set(task_spec.LIMIT_NAMES)


def test_the_description_tells_the_bounds_that_are_held(stage):
    paths = stage.client.description["paths"]

    def of(path):
        return {each["name"]: each["schema"] for each in paths[path]["get"]["parameters"]}

    limit = of("/v1/agents")["limit"]
    assert stage.client.get(f"/v1/agents?limit={limit['maximum']}").status == 200
    for wrong in (limit["minimum"] - 1, limit["maximum"] + 1):
        assert stage.client.get(f"/v1/agents?limit={wrong}").status == 400
    after = of("/v1/agents/{id}/events")["after"]["minimum"]
    assert stage.client.get(f"/v1/agents/a/events?follow=0&after={after - 1}").status == 400
    assert re.search(of("/v1/agents/{id}/events")["Last-Event-ID"]["pattern"], "x") is None
    assert of("/v1/agents/{id}/wait")["timeout"]["minimum"] == 0
    assert stage.client.get("/v1/agents/a/wait?timeout=1e-2").status == 200


def test_a_number_of_too_many_digits_is_called_that(stage):
    raw = b'{"limits": {"max_steps": ' + b"9" * 5000 + b"}}"
    answer = stage.client.ask("POST", "/v1/agents", None, raw=raw)
    assert answer.code == "BAD_JSON" and "too many digits" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "options", "status", "code"),
    [
        ("GET", "/v1/nothing", {}, 404, "NOT_FOUND"),
        ("GET", "/v1/agents/b", {}, 404, "AGENT_NOT_FOUND"),
        ("GET", "/v1/agents/b/events", {}, 404, "AGENT_NOT_FOUND"),
        ("PUT", "/v1/agents", {}, 405, "METHOD_NOT_ALLOWED"),
        ("DELETE", "/v1/health", {}, 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/v1/agents?sate=idle", {}, 400, "BAD_REQUEST"),
        ("GET", "/v1/agents?state=lazy", {}, 400, "BAD_REQUEST"),
        ("GET", "/v1/agents?limit=0", {}, 400, "BAD_REQUEST"),
        ("GET", "/v1/agents?limit=1&limit=2", {}, 400, "BAD_REQUEST"),
        ("GET", "/v1/agents?state=%ff", {}, 400, "BAD_REQUEST"),
        ("GET", "/v1/agents/a/events?after=x", {}, 400, "BAD_REQUEST"),
        ("GET", "/v1/agents/a/events?after=-2", {}, 400, "BAD_REQUEST"),
        ("GET", "/v1/agents/a/events", {"headers": {"Last-Event-ID": "x"}}, 400, "BAD_REQUEST"),
        ("GET", "/v1/agents/a/wait?timeout=-1", {}, 400, "BAD_REQUEST"),
        ("GET", "/v1/agents/a/wait?timeout=nan", {}, 400, "BAD_REQUEST"),
        ("POST", "/v1/agents", {}, 411, "LENGTH_REQUIRED"),
        ("POST", "/v1/agents", {"raw": b"{}", "headers": {"Content-Type": "text/plain"}}, 415, "NOT_JSON"),
        ("POST", "/v1/agents", {"raw": b"{"}, 400, "BAD_JSON"),
        ("POST", "/v1/agents", {"raw": b'"\xff"'}, 400, "BAD_JSON"),
        ("POST", "/v1/agents", {"raw": b"[" * 100_000}, 400, "BAD_JSON"),
        ("POST", "/v1/agents", {"raw": b'{"prompt":"x","prompt":"y"}'}, 400, "BAD_JSON"),
        ("POST", "/v1/wait", {"raw": b'{"ids":["a"],"timeout_s":NaN}'}, 400, "BAD_JSON"),
        ("POST", "/v1/agents", {"body": []}, 400, "USAGE"),
        ("POST", "/v1/agents", {"body": {"promt": "x"}}, 400, "USAGE"),
        ("POST", "/v1/agents", {"body": {"prompt": ""}}, 400, "USAGE"),
        ("POST", "/v1/agents", {"raw": b"9" * 5_000}, 400, "BAD_JSON"),
        ("POST", "/v1/agents", {"body": {"session_id": "a/b"}}, 400, "INVALID_ID"),
        ("POST", "/v1/agents", {"body": {"session_id": ".."}}, 400, "INVALID_ID"),
        ("POST", "/v1/agents", {"body": {"resume": "."}}, 400, "INVALID_ID"),
        ("POST", "/v1/agents/a/fork", {"body": {"session_id": "."}}, 400, "INVALID_ID"),
        ("POST", "/v1/agents/a/messages", {"body": {"text": 1}}, 400, "BAD_REQUEST"),
        ("POST", "/v1/agents/a/messages", {"body": {"text": "x", "how": "shout"}}, 400, "BAD_REQUEST"),
        ("POST", "/v1/agents/a/messages", {"body": {"text": "x", "loud": True}}, 400, "BAD_REQUEST"),
        ("POST", "/v1/agents/b/messages", {"body": {"text": "x"}}, 404, "AGENT_NOT_FOUND"),
        ("POST", "/v1/agents/a/cancel", {"body": {"keep_inbox": 1}}, 400, "BAD_REQUEST"),
        ("POST", "/v1/agents/a/fork", {"body": {"at_seq": "3"}}, 400, "BAD_REQUEST"),
        ("POST", "/v1/wait", {"body": {"ids": []}}, 400, "BAD_REQUEST"),
        ("POST", "/v1/wait", {"body": {"ids": ["b"]}}, 404, "AGENT_NOT_FOUND"),
        ("POST", "/v1/approvals/x", {"body": {"decision": "perhaps"}}, 400, "BAD_REQUEST"),
        ("POST", "/v1/approvals/a/b", {"body": {"decision": "allow"}}, 404, "APPROVAL_NOT_FOUND"),
    ],
)
def test_what_is_wrong_is_refused_with_a_stable_code(stage, method, path, options, status, code):
    answer = stage.client.ask(method, path, options.pop("body", None), **options)
    assert (answer.status, answer.code) == (status, code), answer.raw
    assert answer.headers["Content-Type"] == "application/json"
    assert b"Traceback" not in answer.raw and answer.json["error"]["message"]


def test_a_fault_of_ours_is_an_answer_without_details(stage, monkeypatch):
    def fail(*_arguments):
        raise RuntimeError("canary")

    monkeypatch.setattr(stage.host, "get", fail)
    answer = stage.client.get("/v1/agents/a")
    assert (answer.status, answer.code) == (500, "INTERNAL")
    assert b"canary" not in answer.raw
    assert stage.client.get("/v1/health").status == 200


def test_other_methods_are_told_and_head_has_no_body(stage):
    options = stage.client.ask("OPTIONS", "/v1/agents")
    assert (options.status, options.raw) == (204, b"")
    assert options.headers["Allow"] == "GET, HEAD, OPTIONS, POST"
    assert "GET" in stage.client.ask("PUT", "/v1/agents").headers["Allow"]
    head = stage.client.ask("HEAD", "/v1/agents")
    assert (head.status, head.raw) == (200, b"")
    for stream in ("/v1/events", "/v1/agents/a/events"):
        assert stage.client.ask("HEAD", stream).status == 200
    assert stage.streams.readers == 0


def test_a_body_that_is_too_large_is_refused_before_it_is_read(stage):
    connection = UnixConnection(stage.client.place)
    connection.putrequest("POST", "/v1/agents")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(MAX_BODY_BYTES + 1))
    connection.endheaders()
    response = connection.getresponse()
    assert response.status == 413
    assert json.loads(response.read())["error"]["code"] == "BODY_TOO_LARGE"
    connection.close()


def chunked_request(stage):
    connection = UnixConnection(stage.client.place)
    connection.putrequest("POST", "/v1/agents/a/messages")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    return connection


def test_a_body_in_chunks_is_no_way_around_the_limit(stage, monkeypatch):
    monkeypatch.setattr(http_app, "MAX_BODY_BYTES", 1000)
    connection = chunked_request(stage)
    text = json.dumps({"text": "x" * 2000}).encode()
    connection.send(b"%x\r\n%b\r\n0\r\n\r\n" % (len(text), text))
    response = connection.getresponse()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (413, "BODY_TOO_LARGE")
    connection.close()
    assert stage.host.agents["a"].log == []


def test_a_body_that_comes_a_byte_at_a_time_has_an_end(stage, monkeypatch):
    monkeypatch.setattr(http_app, "_BODY_S", 0.2)
    connection, is_answered = chunked_request(stage), threading.Event()

    def drip(_token):
        while not is_answered.wait(0.02):
            connection.send(b"1\r\n \r\n")

    start_task(drip, lambda _end: None, name="drip")
    response = connection.getresponse()
    is_answered.set()
    assert (response.status, json.loads(response.read())["error"]["code"]) == (408, "TOO_SLOW")
    connection.close()


def test_a_full_daemon_says_when_to_come_again(stage, monkeypatch):
    def full(_spec):
        raise HostFull("no room", retry_after_s=7)

    monkeypatch.setattr(stage.host, "create", full)
    refused = stage.client.post("/v1/agents", {"prompt": "x"})
    assert (refused.status, refused.headers["Retry-After"]) == (503, "7")


def test_a_body_in_chunks_is_read_and_a_malformed_one_refused(stage):
    connection = UnixConnection(stage.client.place)
    headers = {"Content-Type": "application/json"}
    text = json.dumps({"text": "long " * 40_000}).encode()
    pieces = (text[at : at + 1000] for at in range(0, len(text), 1000))
    connection.request("POST", "/v1/agents/a/messages", pieces, headers, encode_chunked=True)
    assert connection.getresponse().read().startswith(b'{"message_id"')
    connection.close()
    connection = chunked_request(stage)
    connection.send(b"zz\r\nxx\r\n")
    response = connection.getresponse()
    assert response.status == 400 and "error" in json.loads(response.read())
    connection.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", 400),
        (b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"POST /v1/agents HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400),
        (b"GET /v1/agents/a%ff HTTP/1.1\r\n\r\n", 400),
        (b"POST /v1/wait HTTP/1.1\r\nContent-Length: +2\r\n\r\n{}", 400),
        (b"POST /v1/wait HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        (b"POST /v1/wait HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_gets_the_same_form_and_nothing_is_printed(stage, capfd, sent, status):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(stage.client.place)
        raw.sendall(sent)
        response = http.client.HTTPResponse(raw)
        response.begin()
        assert response.status == status
        assert json.loads(response.read())["error"]["code"]
    assert capfd.readouterr().err == ""


def test_a_whole_address_and_an_empty_line_before_a_request_are_taken(stage):
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(stage.client.place)
        for path in (b"/v1/health", b"http://localhost/v1/health", b"HTTP://127.0.0.1:80/v1/agents?limit=1"):
            raw.sendall(b"\r\nGET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            response = http.client.HTTPResponse(raw)
            response.begin()
            assert (response.status, bool(json.loads(response.read()))) == (200, True)


def test_pages_of_agents_follow_each_other(stages):
    names = [f"agent-{number:02}" for number in range(7)]
    stage = stages(*names)
    found, after = [], ""
    while after is not None:
        page = stage.client.get(f"/v1/agents?limit=3{'&after=' + after if after else ''}").json
        found += [each["id"] for each in page["agents"]]
        after = page["next"]
    assert found == names
    assert stage.client.get("/v1/agents?state=running").json == {"agents": [], "next": None}


def test_messages_reach_the_agent_as_they_were_meant(stage):
    for how in ("send", "steer", "inject"):
        body = {"text": "café\u2028", "how": how}
        assert stage.client.post("/v1/agents/a/messages", body).status == 202
    assert stage.client.post("/v1/agents/a/messages", {"text": "x"}).json == {"message_id": "message-4"}
    assert stage.client.ask("POST", "/v1/agents/a/cancel").status == 200
    assert stage.client.post("/v1/agents/a/cancel", {"keep_inbox": True}).status == 200
    texts = [event.data["text"] for event in stage.host.agents["a"].log]
    said = [f"{how}: café\u2028" for how in ("send", "steer", "inject")]
    assert texts == [*said, "send: x", "cancel False", "cancel True"]


def test_an_agent_that_owes_nothing_is_done_at_once(stage):
    assert stage.client.get("/v1/agents/a/wait").json == {"done": True, "end": None}
    assert stage.client.post("/v1/wait", {"ids": ["a", "a"], "any": True}).json == {
        "done": True,
        "ends": {"a": None},
    }


def test_a_wait_of_any_length_is_a_wait(stage):
    for length in (0, 1e300, 10**400):
        answer = stage.client.ask("POST", "/v1/wait", {"ids": ["a"], "timeout_s": length})
        assert (answer.status, answer.json["done"]) == (200, True)


def test_a_look_that_takes_long_still_tells_what_is_over(stage, monkeypatch):
    wait = stage.host.wait

    def slow(ids, any=False, timeout=None):
        threading.Event().wait(0.1)
        return wait(ids, any, timeout)

    monkeypatch.setattr(stage.host, "wait", slow)
    assert stage.client.get("/v1/agents/a/wait?timeout=0").json["done"] is True


def test_who_is_not_done_in_time_is_told_so_however_early_the_wait_comes_back(stage, monkeypatch):
    monkeypatch.setattr(stage.host, "wait", lambda ids, any=False, timeout=None: {})
    assert stage.client.get("/v1/agents/a/wait?timeout=0.01").json == {"done": False, "end": None}
    asked = {"ids": ["a"], "timeout_s": 0}
    assert stage.client.post("/v1/wait", asked).json == {"done": False, "ends": {}}


def test_a_timeout_may_be_any_number(stage):
    assert stage.client.post("/v1/wait", {"ids": ["a"], "timeout_s": 10**400}).json["done"] is True
    refused = stage.client.post("/v1/wait", {"ids": ["a"], "timeout_s": -(10**400)})
    assert (refused.status, refused.code) == (400, "BAD_REQUEST")


def test_while_it_stops_only_health_is_answered(stage):
    stage.is_stopping = True
    assert stage.client.get("/v1/health").json["status"] == "stopping"
    refused = stage.client.get("/v1/agents")
    assert (refused.status, refused.code) == (503, "STOPPING")


def test_one_connection_carries_many_requests(stage):
    connection = UnixConnection(stage.client.place)
    for _ in range(3):
        connection.request("GET", "/v1/agents")
        assert connection.getresponse().read()
        sock = connection.sock
        connection.request("GET", "/v1/nothing")
        assert connection.getresponse().read()
        assert connection.sock is sock
    connection.close()
