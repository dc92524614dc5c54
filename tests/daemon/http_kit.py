"""What the tests of the HTTP interface share: a client on its socket that checks every answer against the
description, a stand-in for the host that keeps its agents in memory, and the HTTP side of a daemon around it.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsh_actors.core.events import Event
from dsh_actors.core.schema import violations
from dsh_actors.daemon.access import LISTENER_KEY, Access
from dsh_actors.daemon.api import Api
from dsh_actors.daemon.approvals_desk import ApprovalsDesk
from dsh_actors.daemon.http_app import build_app
from dsh_actors.daemon.info import AgentInfo
from dsh_actors.daemon.sockets import UnixListener, open_loopback
from dsh_actors.daemon.streams import Notice, Streams
from dsh_actors.errors import AgentNotFound, UsageError
from dsh_actors.runtime.timers import SystemClock
from dsh_actors.runtime.wsgi import HttpServer

PATIENCE_S = 20.0


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=PATIENCE_S)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(PATIENCE_S)
            self.sock.connect(self.path)
        except BaseException:
            self.close()
            raise
        # One that is over is not opened again by somebody who still sends: nobody would close it.
        self.auto_open = 0


@dataclass
class Answer:
    status: int
    headers: Any
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Client:
    """Requests on one socket. Once it has the description, every answer is checked against it."""

    def __init__(self, place: str, *, token: str | None = None) -> None:
        self.place = place
        self.token = token
        self.description: dict[str, Any] | None = None

    def connect(self) -> http.client.HTTPConnection:
        if "/" in self.place:
            return UnixConnection(self.place)
        return http.client.HTTPConnection(self.place, timeout=PATIENCE_S)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        sent = dict(headers or {})
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        if body is not None:
            raw = json.dumps(body).encode()
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = self.connect()
        try:
            connection.request(method, path, raw, sent)
            response = connection.getresponse()
            answer = Answer(response.status, response.headers, response.read())
        finally:
            connection.close()
        self._check(method, path, answer)
        return answer

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def post(self, path: str, body: Any) -> Answer:
        return self.ask("POST", path, body)

    def _check(self, method: str, path: str, answer: Answer) -> None:
        if self.description is None or method not in ("GET", "POST", "DELETE"):
            return
        media = answer.headers.get("Content-Type", "").partition(";")[0]
        declared = declared_responses(self.description, method, path.partition("?")[0])
        if declared is None or (answer.status == 405):
            assert answer.status in (404, 405), (method, path, answer)
            schema = {"$ref": "#/components/schemas/Error"}
        else:
            assert str(answer.status) in declared, (method, path, answer.status, answer.raw[:300])
            content = declared[str(answer.status)]["content"]
            assert media in content, (method, path, answer.status, media)
            schema = content[media].get("schema")
        if schema is not None:
            found = violations(filled_in(self.description, schema), answer.json)
            assert found == [], (method, path, found)


def declared_responses(description: Any, method: str, path: str) -> dict[str, Any] | None:
    """What the description says of the answers of a path."""
    for template, operations in description["paths"].items():
        last = ".+" if template.startswith("/v1/approvals/") else "[^/]+"
        if re.fullmatch(re.sub(r"{\w+}", last, template), path) and method.lower() in operations:
            found: dict[str, Any] = operations[method.lower()]["responses"]
            return found
    return None


def filled_in(description: Any, schema: Any) -> Any:
    """A schema of the description with its references filled in."""
    if isinstance(schema, list):
        return [filled_in(description, each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return filled_in(description, description["components"]["schemas"][name])
    return {key: filled_in(description, value) for key, value in schema.items()}


@dataclass(frozen=True)
class ServerEvent:
    name: str
    id: str | None
    data: Any


class EventReader:
    """Reads one stream of events. `leave` closes the connection without a word."""

    def __init__(self, client: Client, path: str, last_id: str | None = None) -> None:
        self._connection = client.connect()
        headers = {"Last-Event-ID": last_id} if last_id is not None else {}
        if client.token is not None:
            headers["Authorization"] = f"Bearer {client.token}"
        try:
            self._connection.request("GET", path, headers=headers)
            self.socket = self._connection.sock  # the response takes it over at the end of a stream
            self.response = self._connection.getresponse()
            assert self.response.status == 200, self.response.read()
            assert self.response.headers["Content-Type"] == "text/event-stream"
        except BaseException:
            self._connection.close()
            raise

    def __iter__(self) -> Iterator[ServerEvent]:
        """The events to the end of the stream, or to where it was cut."""
        name, event_id, data = "message", None, []
        while line := self._line():
            text = line.decode().rstrip("\n")
            field_name, _, value = text.partition(": ")
            if not text:
                if data:
                    yield ServerEvent(name, event_id, json.loads("\n".join(data)))
                name, event_id, data = "message", None, []
            elif field_name == "event":
                name = value
            elif field_name == "id":
                event_id = value
            elif field_name == "data":
                data.append(value)

    def _line(self) -> bytes:
        try:
            line = self.response.readline()
        except (http.client.IncompleteRead, ConnectionError):
            line = b""
        if not line:
            self.leave()
        return line

    def until(self, name: str) -> list[ServerEvent]:
        """The events up to the first of this name, which is the last of them."""
        found = []
        for event in self:
            found.append(event)
            if event.name == name:
                return found
        raise AssertionError(f"the stream ended without {name}: {found[-3:]}")

    def leave(self) -> None:
        self.response.close()
        self._connection.close()


def info(agent_id: str, state: Any = "idle") -> AgentInfo:
    return AgentInfo(
        agent_id, state, None, "/", "scripted/demo", None, 0, None, None, 0, 0, 0, None, None, 1, 1, 0, None
    )


def note(seq: int, text: str = "") -> Event:
    return Event("run/note", seq, 1, {"text": text}, ignorable=True)


@dataclass
class StoredAgent:
    info: AgentInfo
    log: list[Event] = field(default_factory=list)
    stored: int = 0
    hearers: list[Callable[[Event], None]] = field(default_factory=list)
    lost_below: int = 0
    """History before this event is gone."""


class MemoryHost:
    """A `Hosting` of agents that do what the test says; what is recorded is stored when the test says so."""

    def __init__(self, *names: str) -> None:
        self.agents = {name: StoredAgent(info(name)) for name in names}
        self.reads = 0
        self.before_read: Callable[[], object] = lambda: None
        self.after_read: Callable[[], object] = lambda: None

    def record(self, name: str, count: int = 1, *, stored: bool = True, text: str = "") -> None:
        agent = self.agents[name]
        for _ in range(count):
            event = note(len(agent.log), text)
            agent.log.append(event)
            if stored:
                agent.stored = len(agent.log)
            for hear in tuple(agent.hearers):
                hear(event)

    def store(self, name: str) -> None:
        self.agents[name].stored = len(self.agents[name].log)

    def _agent(self, name: str) -> StoredAgent:
        if name not in self.agents:
            raise AgentNotFound(f"there is no agent {name}")
        return self.agents[name]

    def create(self, spec: Any) -> AgentInfo:
        name = spec.session_id or f"agent-{len(self.agents)}"
        if spec.prompt == "":
            raise UsageError("the prompt is blank")
        self.agents[name] = StoredAgent(info(name))
        return self.agents[name].info

    def get(self, agent_id: str) -> AgentInfo:
        return self._agent(agent_id).info

    def list(self, state: Any = None, after: Any = None, limit: Any = None) -> list[AgentInfo]:
        found = sorted(name for name in self.agents if name > (after or ""))
        infos = [self.agents[name].info for name in found]
        return [each for each in infos if state in (None, each.state)][:limit]

    def deliver(self, agent_id: str, text: str, how: Any) -> dict[str, Any]:
        self._agent(agent_id)
        self.record(agent_id, text=f"{how}: {text}")
        return {"message_id": f"message-{len(self.agents[agent_id].log)}"}

    def cancel(self, agent_id: str, keep_inbox: bool = False) -> None:
        self.record(self._agent(agent_id).info.id, text=f"cancel {keep_inbox}")

    def fork(
        self, agent_id: str, at_seq: Any = None, session_id: Any = None, prompt: Any = None
    ) -> AgentInfo:
        self._agent(agent_id)
        name = session_id or f"{agent_id}-fork"
        self.agents[name] = StoredAgent(replace(info(name), parent=agent_id))
        return self.agents[name].info

    def wait(self, ids: Any, any: bool = False, timeout: float | None = None) -> dict[str, Any]:
        for name in ids:
            self._agent(name)
        return dict.fromkeys(ids)

    def dispose(self, agent_id: str) -> None:
        self._agent(agent_id)
        del self.agents[agent_id]

    def events(self, agent_id: str, after: int = -1) -> Iterator[Event]:
        self.reads += 1
        agent = self._agent(agent_id)
        self.before_read()
        yield from agent.log[max(after + 1, agent.lost_below) : agent.stored]
        self.after_read()

    def subscribe(self, agent_id: str, callback: Callable[[Event], None]) -> Callable[[], None]:
        hearers = self._agent(agent_id).hearers
        hearers.append(callback)
        return lambda: hearers.remove(callback)


class Stage:
    """The HTTP side of a daemon on a socket of its own, around a `MemoryHost`."""

    def __init__(
        self,
        folder: Path,
        host: Any,
        *,
        queue: int = 1000,
        token: str | None = None,
        max_connections: int = 100,
        keep_alive_s: float = 15.0,
        io_timeout_s: float = 60.0,
    ) -> None:
        self.host = host
        self.is_stopping = False
        self.told: list[tuple[str, str]] = []
        self.desk = ApprovalsDesk(SystemClock(), 300.0, self._announce)
        self.streams = Streams(host, queue, self._asked, keep_alive_s)
        self.statuses: list[int] = []
        self.api = Api(
            host,
            self.desk,
            self.streams,
            page=lambda: "<!DOCTYPE html><title>dsh</title>",
            metrics=lambda: "dsh_up 1\n",
            connections=lambda: self.server.connections,
            is_stopping=lambda: self.is_stopping,
        )
        app = build_app(
            self.api.routes, Access(token), is_stopping=lambda: self.is_stopping, tally=self.statuses.append
        )
        self.server = HttpServer(app, max_connections=max_connections, io_timeout_s=io_timeout_s)
        self.unix = UnixListener(str(folder / "socket"))
        self.server.listen(self.unix.socket, {LISTENER_KEY: "unix"})
        self.client = Client(self.unix.path)
        self.client.description = self.client.get("/v1/openapi.json").json
        if token is not None:
            listener = open_loopback("127.0.0.1:0")
            self.port = listener.getsockname()[1]
            self.server.listen(listener, {LISTENER_KEY: "tcp"})
            self.remote = Client(f"127.0.0.1:{self.port}", token=token)

    def _announce(self, agent: str, name: str, data: Any) -> None:
        self.told.append((name, data["id"]))
        self.streams.announce(agent, Notice(name, data))

    def _asked(self, agent: str) -> list[Notice]:
        return [Notice("approval.requested", each.to_json()) for each in self.desk.open(agent)]

    def close(self) -> None:
        self.streams.close()
        self.server.close(2.0)
        self.unix.remove()


def until(condition: Callable[[], bool]) -> None:
    """Let the others run until it is so."""
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0)
