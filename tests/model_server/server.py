"""The server process: blocking sockets, a thread a connection, keep-alive. Standard library only.

`POST /chat/completions` (with or without `/v1`) and `POST /v1/messages` play the script, each on its
own wire; `GET /models` lists one model,
`/control/…` loads a script and reads the log. A request belongs to the route named by the last
`[[route:NAME]]` in its body, else by the first `[[agent:NAME]]` (which an agent's own task begins with, so
that it stays the agent's whatever else is said), else to the route of its model's name, else to `default`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.model_server.replies import Answer, Reply

__all__ = ["Script", "serve"]

_ROUTE = re.compile(rb"\[\[route:([A-Za-z0-9_.-]+)\]\]")
_AGENT = re.compile(rb"\[\[agent:([A-Za-z0-9_.-]+)\]\]")
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]*)"')
_EXHAUSTED = Answer(
    {
        "status": 400,
        "body": {"error": {"message": "the script has no entry left", "code": "script_exhausted"}},
    }
)
_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Record:
    """One chat request. Times are of the monotonic clock, which all processes share."""

    index: int
    route: str
    number: int
    path: str
    headers: dict[str, str]
    body: bytes
    arrived: float
    first_sent: float | None = None
    ended: float | None = None
    outcome: str | None = None

    def to_json(self, bodies: bool) -> dict[str, Any]:
        data = {name: getattr(self, name) for name in self.__slots__ if name != "body"}
        if bodies:
            data["body"] = base64.b64encode(self.body).decode()
        return data


@dataclass(slots=True)
class Route:
    replies: list[Answer]
    after: str
    served: int = 0

    def next(self) -> tuple[int, Answer]:
        number = self.served
        self.served += 1
        if number < len(self.replies):
            return number + 1, self.replies[number]
        if self.after == "repeat":
            return number + 1, self.replies[-1]
        if self.after == "cycle":
            return number + 1, self.replies[number % len(self.replies)]
        return number + 1, _EXHAUSTED


@dataclass(slots=True)
class Script:
    """The loaded script and the log; every access holds ``changed``."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    sources: dict[str, tuple[list[Answer], str]] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    log: list[Record] = field(default_factory=list)
    keep_bodies: bool = True

    def load(self, script: dict[str, Any]) -> None:
        """Replace routes, log and releases. A route name may end in `*`: one copy for each name."""
        sources = {
            name: ([Answer(entry) for entry in route["entries"]], route.get("after", "fail"))
            for name, route in script["routes"].items()
        }
        with self.changed:
            self.sources, self.routes, self.released, self.log = sources, {}, set(), []
            self.keep_bodies = bool(script.get("keep_bodies", True))
            self.changed.notify_all()

    def extend(self, route: str, entries: list[dict[str, Any]]) -> None:
        """Put more entries at the end of a route."""
        replies = [Answer(entry) for entry in entries]
        with self.changed:
            self._route(route).replies.extend(replies)

    def admit(self, path: str, headers: dict[str, str], body: bytes, arrived: float) -> tuple[Record, Reply]:
        marks = _ROUTE.findall(body)
        with self.changed:
            agent = None if marks else _AGENT.search(body)
            name = marks[-1].decode() if marks else agent[1].decode() if agent else self._by_model(body)
            number, answer = self._route(name).next()
            reply = answer.messages if path.endswith("/messages") else answer.chat
            record = Record(len(self.log), name, number, path, headers, b"", arrived)
            if self.keep_bodies:
                record.body = body
            self.log.append(record)
            self.changed.notify_all()
        return record, reply

    def _by_model(self, body: bytes) -> str:
        if len(self.sources) > 1 and (model := _MODEL.search(body)):
            name = model[1].decode()
            if name in self.sources:
                return name
        return "default"

    def _route(self, name: str) -> Route:
        route = self.routes.get(name)
        if route is None:
            stars = (key for key in self.sources if key.endswith("*") and name.startswith(key[:-1]))
            replies, after = self.sources.get(name) or self.sources.get(next(stars, ""), ([], "fail"))
            route = self.routes[name] = Route(list(replies), after)
        return route

    def finish(self, record: Record, outcome: str) -> None:
        with self.changed:
            record.ended, record.outcome = time.monotonic(), outcome
            self.changed.notify_all()


def serve(listener: socket.socket, script: Script) -> None:
    """Accept for ever. Ends when ``listener`` is closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return  # the listener was closed
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_connection, args=(connection, script), daemon=True).start()


def _connection(connection: socket.socket, script: Script) -> None:
    buffer = bytearray()
    # A peer that goes away in the middle of a request or an answer ends this connection and nothing else.
    with connection, contextlib.suppress(OSError):
        while (request := _read_request(connection, buffer)) is not None:
            method, target, headers, body = request
            arrived = time.monotonic()
            url = urlsplit(target)
            if url.path.startswith("/control/"):
                answer = _control(script, method, url.path, parse_qs(url.query), body)
                _send_json(connection, answer)
            elif method == "POST" and url.path.endswith(("/chat/completions", "/v1/messages")):
                record, reply = script.admit(url.path, headers, body, arrived)
                if not _play(connection, script, record, reply):
                    return
            elif method == "GET" and url.path.endswith("/models"):
                model = {"id": "test", "object": "model", "owned_by": "scripted"}
                _send_json(connection, {"object": "list", "data": [model]})
            else:
                _send_json(connection, {"error": {"message": f"no such path: {url.path}"}}, "404 Not Found")


def _read_request(
    connection: socket.socket, buffer: bytearray
) -> tuple[str, str, dict[str, str], bytes] | None:
    while (end := buffer.find(b"\r\n\r\n")) < 0:
        if not (data := connection.recv(262144)):
            return None
        buffer += data
    head = buffer[:end].decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    length = int(headers.get("content-length", "0"))
    start = end + 4
    while len(buffer) - start < length:
        if not (data := connection.recv(262144)):
            return None
        buffer += data
    body = bytes(buffer[start : start + length])
    del buffer[: start + length]
    return method, target, headers, body


def _play(connection: socket.socket, script: Script, record: Record, reply: Reply) -> bool:
    """Send the packets. True if the connection can serve another request."""
    try:
        for packet in reply.packets:
            if packet.delay and _gone_within(connection, packet.delay):
                raise ConnectionResetError
            if packet.hold and not _released(connection, script, packet.hold):
                raise ConnectionResetError
            connection.sendall(packet.wire(record.number, record.route))
            if record.first_sent is None:
                record.first_sent = time.monotonic()
    except OSError:
        script.finish(record, "client-left")
        return False
    if reply.end == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    script.finish(record, "sent")
    return reply.end == "keep"


def _gone_within(connection: socket.socket, seconds: float) -> bool:
    """Wait; true as soon as the peer closed its side."""
    poller = select.poll()
    poller.register(connection, select.POLLIN | select.POLLRDHUP)
    events = poller.poll(seconds * 1000)
    return bool(events) and not connection.recv(1, socket.MSG_PEEK)


def _released(connection: socket.socket, script: Script, name: str) -> bool:
    while True:
        with script.changed:
            if name in script.released or script.changed.wait_for(lambda: name in script.released, 0.02):
                return True
        if _gone_within(connection, 0):
            return False


def _control(script: Script, method: str, path: str, query: dict[str, list[str]], body: bytes) -> Any:
    match path.removeprefix("/control/"):
        case "script":
            script.load(json.loads(body))
            return {}
        case "extend":
            data = json.loads(body)
            script.extend(data["route"], data["entries"])
            return {}
        case "release":
            with script.changed:
                script.released.update(query["name"])
                script.changed.notify_all()
            return {}
        case "wait":
            return _wait(script, query)
        case "requests":
            start, bodies = int(query.get("start", ["0"])[0]), query.get("bodies", ["1"])[0] == "1"
            with script.changed:
                return [record.to_json(bodies) for record in script.log[start:]]
        case other:
            return {"error": f"no such control: {method} {other}"}


def _wait(script: Script, query: dict[str, list[str]]) -> Any:
    count, timeout = int(query["count"][0]), float(query["timeout"][0])
    ended = query["of"][0] == "ended"

    def reached() -> bool:
        return sum(1 for record in script.log if not ended or record.ended is not None) >= count

    with script.changed:
        return {"reached": script.changed.wait_for(reached, timeout), "requests": len(script.log)}


def _send_json(connection: socket.socket, value: Any, status: str = "200 OK") -> None:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
