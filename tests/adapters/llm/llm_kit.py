"""What the provider tests share: a stream control, a network in memory, a server on a loopback socket."""

from __future__ import annotations

import itertools
import json
import math
import socket
import threading
from collections.abc import Callable, Iterable

import gevent
from requests.structures import CaseInsensitiveDict

from dsh_actors.adapters.llm.http_provider import HttpProvider
from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.adapters.llm.settings import ProviderConfig
from dsh_actors.core.chunks import CallConfig, Chunk, Failure, Finish
from dsh_actors.core.stream import BlockAssembler

HANG_S = 20
"""A guard against a hang, and no measure of anything."""

KEY = "sk-test-0123456789"
SSE = {"content-type": "text/event-stream"}


TICK_S = 0.01


class Control:
    """A gateway's hold on a stream: one abort, one deadline that can be moved.

    It counts its time in ticks, as the gateway's own forgives a halt of the whole process: that is one tick,
    for the server of the test was halted too.
    """

    def __init__(self) -> None:
        self.aborted: str | None = None
        self.deadlines: list[float] = []
        self._callback: Callable[[], None] | None = None
        self._timer: gevent.Greenlet | None = None

    def on_abort(self, callback: Callable[[], None]) -> None:
        assert self._callback is None, "registered twice"
        self._callback = callback

    def expect_within(self, seconds: float, otherwise: str | None = None) -> None:
        self.deadlines.append(seconds)
        if self._timer is not None:
            self._timer.kill(block=False)
        self._timer = gevent.spawn(self._watch, seconds)

    def _watch(self, seconds: float) -> None:
        never = threading.Event()
        for _ in range(max(1, math.ceil(seconds / TICK_S))):
            never.wait(TICK_S)
        self.abort("timeout")

    def abort(self, reason: str) -> None:
        if self.aborted is None:
            self.aborted = reason
            if self._callback is not None:
                self._callback()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.kill(block=False)


class MemoryTransport:
    """Answers every request with the same bytes, cut into the given pieces."""

    via = ""

    def __init__(
        self,
        pieces: Iterable[bytes | Exception],
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.pieces = list(pieces)
        self.status = status
        self.headers = CaseInsensitiveDict(SSE if headers is None else headers)
        self.sent: list[bytes] = []
        self.closed = 0

    def exchange(self, control: Control) -> MemoryTransport:
        self._left = list(self.pieces)
        return self

    def send(self, body: bytes) -> MemoryTransport:
        self.sent.append(body)
        return self

    def read(self, size: int) -> bytes:
        if not self._left:
            return b""
        piece = self._left.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return piece

    def abort(self) -> None:
        self._left.clear()

    def drain(self) -> bytes:
        return b"".join(piece for piece in self._left if isinstance(piece, bytes))

    error_body = drain

    def close(self) -> None:
        self.closed += 1


def config(base_url: str = "http://127.0.0.1:9/v1", **changes: object) -> ProviderConfig:
    values = {"name": "test", "type": "openai_compatible", "base_url": base_url, "api_key": KEY} | changes
    return ProviderConfig(**values)


def cut(body: bytes, offsets: Iterable[int]) -> list[bytes]:
    marks = [0, *sorted(offsets), len(body)]
    return [body[a:b] for a, b in itertools.pairwise(marks) if a < b]


def call(
    provider: HttpProvider,
    body: bytes = b"{}",
    control: Control | None = None,
    config: CallConfig | None = None,
) -> list[Chunk]:
    """All chunks of one attempt."""
    control = control or Control()
    try:
        prepared = provider.prepare(config or CallConfig("test", "any"))
        return [chunk for batch in provider.stream(prepared, body, control) for chunk in batch]
    finally:
        control.close()


def answer(
    pieces: Iterable[bytes | Exception] | bytes, status: int = 200, headers: dict[str, str] | None = None
) -> list[Chunk]:
    """What the provider makes of a response."""
    pieces = [pieces] if isinstance(pieces, bytes) else pieces
    transport = MemoryTransport(pieces, status, headers)
    return call(OpenAiCompatibleProvider(config(), transport=transport))


def assemble(chunks: Iterable[Chunk]) -> BlockAssembler:
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.feed(chunk)
    return assembler


def failure_of(chunks: list[Chunk]) -> Failure:
    finish = chunks[-1]
    assert isinstance(finish, Finish) and finish.failure is not None, finish
    return finish.failure


class Server:
    """A real server on 127.0.0.1: ``handle(connection, request)`` answers each request."""

    def __init__(self, handle: Callable[[socket.socket, bytes], object]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._handle = handle
        self.connections = 0
        self.requests: list[bytes] = []
        self.gone = threading.Event()
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while request := read_request(connection):
                    self.requests.append(request)
                    if self._handle(connection, request) is False:
                        break
            except OSError:
                pass
        self.gone.set()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(HANG_S)


def read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    pieces, left = [body], length - len(body)
    while left > 0:
        pieces.append(connection.recv(min(left, 1 << 20)))
        left -= len(pieces[-1])
        if not pieces[-1]:
            return b""
    return head + b"\r\n\r\n" + b"".join(pieces)


def head(framing: str = "Transfer-Encoding: chunked") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{framing}\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def delta(**members: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": members}]}).encode() + b"\n\n"


def finish(reason: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"%b"}]}\n\n' % reason.encode()


DONE = b"data: [DONE]\n\n"
HI = delta(content="Hi") + finish("stop") + DONE
