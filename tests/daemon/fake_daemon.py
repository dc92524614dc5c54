"""A server that answers as it is told, for faults that the real daemon does not show.

It listens on a Unix socket. An answer is an object with its status, or pieces of an event stream that
are sent one by one; after them the connection is closed, in the middle of a chunk if ``CUT`` is last.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

__all__ = ["CUT", "Asked", "FakeDaemon", "fake_daemon", "sse"]

CUT = b"<cut>"


@dataclass(frozen=True)
class Asked:
    """One request. ``path`` has its query; names in ``headers`` are lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


Answer = tuple[int, Any] | Iterable[bytes] | bytes
Answering = Callable[[Asked], Answer]


def sse(name: str, data: Any, seq: int | None = None) -> bytes:
    """One event of a stream."""
    head = f"id: {seq}\n" if seq is not None else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n".encode()


class FakeDaemon:
    """What was asked, and how it is answered: ``answer`` gets each request."""

    def __init__(self, path: Path, answer: Answering) -> None:
        self.path = str(path)
        self.asked: list[Asked] = []
        self.answer = answer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def address_string(self) -> str:
        return "socket"

    def log_message(self, format: str, *arguments: Any) -> None:
        """Silent: the tests look at what was asked."""

    def _answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(self.command, self.path, headers, body)
        self.server.fake.asked.append(asked)
        answer = self.server.fake.answer(asked)
        match answer:
            case bytes():
                self.wfile.write(answer)
                self.close_connection = True
            case (int() as status, value):
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            case _:
                self._stream(answer)

    do_GET = do_POST = do_DELETE = _answer

    def _stream(self, pieces: Iterable[bytes]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        for piece in pieces:
            if piece == CUT:
                self.wfile.write(b"ff\r\nda")
                return
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 50

    def __init__(self, fake: FakeDaemon) -> None:
        self.fake = fake
        super().__init__(fake.path, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no fault of a test."""


@contextmanager
def fake_daemon(path: Path, answer: Answering) -> Iterator[FakeDaemon]:
    """A server at the socket ``path`` while the block runs."""
    fake = FakeDaemon(path, answer)
    server = _Server(fake)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        path.unlink(missing_ok=True)
