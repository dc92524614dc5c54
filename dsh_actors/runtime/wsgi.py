"""HTTP for a WSGI application on listening sockets: gevent's server, bounded, and able to let go of clients
that are slow or gone. It prints nothing; what it answers by itself is JSON, as the application's errors are.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from gevent import get_hub
from gevent.event import Event
from gevent.pywsgi import WSGIHandler, WSGIServer

from dsh_actors.runtime.log import LOGGER

__all__ = ["CONNECTION_KEY", "Connection", "HttpServer", "error_body"]

CONNECTION_KEY = "dsh.connection"
"""Where an application finds the `Connection` of a request in its environment."""

_DRAIN_BYTES = 16 * 1024 * 1024
"""How much of a refused body is read and thrown away, so that its sender gets to read the refusal."""

_PIECE = 65_536
_ACCEPT_PAUSE_S = 0.5

Application = Callable[[Mapping[str, Any], Callable[..., Any]], Iterable[bytes]]


def error_body(code: str, message: str, hint: str | None = None) -> bytes:
    """The one form of every error: ``{"error": {"code", "message", "hint"?}}``."""
    error = {"code": code, "message": message} | ({"hint": hint} if hint else {})
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


class Connection:
    """One client's connection, as the application sees it while it answers a request of it."""

    __slots__ = ("_socket",)

    def __init__(self, sock: Any) -> None:
        self._socket = sock

    def cut(self) -> None:
        """End the connection at once, also one that is blocked in a write. Never waits."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it is closed already

    def is_gone(self) -> bool:
        """Whether the client has closed its side."""
        try:
            return self._peek() == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def on_hangup(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back in the hub, once, when the client has closed its side; returns the undo."""
        try:
            watcher = get_hub().loop.io(self._socket.fileno(), 1)
        except ValueError:  # closed meanwhile
            callback()
            return _nothing

        def look() -> None:
            try:
                data = self._peek()
            except BlockingIOError:
                return
            except OSError:
                data = b""
            watcher.stop()  # data is a request to come: nothing more can be seen behind it
            if not data:
                callback()

        def undo() -> None:
            watcher.stop()
            watcher.close()

        watcher.start(look)
        return undo

    def _peek(self) -> bytes:
        # gevent's own recv would wait.
        data: bytes = self._socket._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return data


class HttpServer:
    """Serves ``application`` on any number of sockets.

    At most ``max_connections`` at once; further ones are answered 503. ``io_timeout_s`` is the longest
    wait for a client to send or to take something; an idle connection is closed after it.
    """

    def __init__(self, application: Application, *, max_connections: int, io_timeout_s: float = 60.0) -> None:
        self.application = application
        self.io_timeout_s = io_timeout_s
        self.is_closing = False
        self._max = max_connections
        self._servers: list[Any] = []
        self._handlers: set[_Handler] = set()
        self._changed = Event()
        self.last_left: float | None = None
        """When, on the monotonic clock, a connection was last over; None before the first."""

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._handlers)

    def listen(self, listener: socket.socket, environ: Mapping[str, str]) -> None:
        """Accept on a listening socket, and close it in the end. ``environ`` goes into each request."""
        server = _Server(
            listener,
            self.application,
            log=None,
            error_log=_Quiet(),
            handler_class=_Handler,
            environ={"SERVER_NAME": "localhost", **environ},
        )
        server.owner = self
        self._servers.append(server)
        server.start()

    def stop_accepting(self) -> None:
        """Close the listeners and every connection that is between two requests."""
        self.is_closing = True
        for server in self._servers:
            server.close()
        for handler in tuple(self._handlers):
            if not handler.is_busy:
                handler.connection.cut()

    def close(self, timeout_s: float) -> None:
        """Stop accepting, let answers end for ``timeout_s`` seconds, then cut what is left."""
        self.stop_accepting()
        self._wait_for_none(timeout_s)
        for handler in tuple(self._handlers):
            handler.connection.cut()
        self._wait_for_none(0.5)

    def _wait_for_none(self, timeout_s: float) -> None:
        if self._handlers:
            self._changed.clear()
            self._changed.wait(timeout_s)

    def entered(self, handler: _Handler) -> bool:
        """For handlers: a connection has come; whether it may stay."""
        may_stay = len(self._handlers) < self._max and not self.is_closing
        self._handlers.add(handler)
        return may_stay

    def left(self, handler: _Handler) -> None:
        """For handlers: a connection is over."""
        self._handlers.discard(handler)
        self.last_left = time.monotonic()
        if not self._handlers:
            self._changed.set()


class _Quiet:
    """Stands in for a file of errors: what gevent has to say is for the debug log."""

    def write(self, text: str) -> None:
        LOGGER.debug("http: %s", text.rstrip())

    def flush(self) -> None:
        """There is nothing to flush."""


class _Server(WSGIServer):  # type: ignore[misc]  # gevent is untyped
    owner: HttpServer

    def do_read(self) -> Any:
        try:
            return super().do_read()
        except OSError as error:
            if self.is_fatal_error(error):
                raise
            # No descriptor is left, mostly. Whoever waits to be let in is let in when there is one again.
            LOGGER.warning("a connection could not be accepted: %s", error)
            self.stop_accepting()
            self._timer = self.loop.timer(_ACCEPT_PAUSE_S)
            self._timer.start(self._start_accepting_if_started)
            return None


class _Rest:
    """What is left of a request's body when it has been answered."""

    def __init__(self, body: Any, handler: _Handler) -> None:
        self._body = body
        self._handler = handler

    def _discard(self) -> None:
        body = self._body
        if not body.chunked_input and body.position >= (body.content_length or 0):
            return
        if body.socket is None:  # otherwise the client still waits for leave to send it
            for _ in range(_DRAIN_BYTES // _PIECE):
                if not body.read(_PIECE):
                    return
        self._handler.close_connection = True


class _Handler(WSGIHandler):  # type: ignore[misc]  # gevent is untyped
    def __init__(self, sock: Any, address: Any, server: Any, rfile: Any = None) -> None:
        super().__init__(sock, address, server, rfile)
        sock.settimeout(server.owner.io_timeout_s)
        self.connection = Connection(sock)
        self.is_busy = False
        self._is_refused = False

    def handle(self) -> None:
        owner: HttpServer = self.server.owner
        self._is_refused = not owner.entered(self)
        try:
            super().handle()
        except OSError:
            return  # the client went away
        finally:
            owner.left(self)

    def handle_one_request(self) -> Any:
        if self._is_refused:
            return _answer(503, "TOO_MANY_CONNECTIONS", "the daemon has too many connections, or is stopping")
        answer = super().handle_one_request()
        if isinstance(answer, tuple):
            if answer[0] == "414":
                return _answer(414, "URI_TOO_LONG", "the address is too long")
            return _answer(400, "BAD_REQUEST", "this is no request of HTTP/1.1")
        return answer

    def read_requestline(self) -> Any:
        line = super().read_requestline()
        # Some clients send an empty line behind a body (RFC 9112, 2.2).
        return super().read_requestline() if line in ("\r\n", "\n") else line

    def read_request(self, raw_requestline: str) -> Any:
        """Whether it is a request. One whose body could be taken for longer or shorter than its sender meant,
        and the rest of it for another request, is none (RFC 9112, 6.3).
        """
        if not super().read_request(raw_requestline):
            return False
        lengths = self.headers.get_all("Content-Length", [])
        codings = self.headers.get_all("Transfer-Encoding", [])
        if len(lengths) > 1 or any(not each.isascii() or not each.isdigit() for each in lengths):
            return False
        if codings and (lengths or [each.lower() for each in codings] != ["chunked"]):
            return False
        self.path: str
        scheme, found, rest = self.path.partition("://")
        if found and scheme.lower() in ("http", "https"):
            # The whole address, as a proxy is asked; what it names counts, and not Host (RFC 9112, 3.2.2).
            authority, slash, path = rest.partition("/")
            del self.headers["Host"]
            self.headers["Host"] = authority
            self.path = slash + path or "/"
        return True

    def handle_one_response(self) -> None:
        self.is_busy = True
        try:
            super().handle_one_response()
        finally:
            self.is_busy = False
        if self.server.owner.is_closing:
            self.close_connection = True

    def get_environ(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environ()
        environ[CONNECTION_KEY] = self.connection
        self.wsgi_input: Any = _Rest(environ["wsgi.input"], self)
        return environ

    def _connection_upgrade_requested(self) -> bool:
        return False  # the body of a request is never the bare socket

    def handle_error(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, OSError):
            self.close_connection = True  # it took too long to send or to take something, or went away
            return
        LOGGER.error("a request could not be answered", exc_info=(kind, error, trace))
        self._send_error_response_if_possible(500)

    def _handle_client_error(self, ex: Exception) -> Any:
        LOGGER.debug("http: a request that is none: %s", ex)
        return ("400", b"")

    def _send_error_response_if_possible(self, error_code: int) -> None:
        if self.response_length:
            self.close_connection = True
            return
        code, text = (
            ("INTERNAL", "internal error") if error_code == 500 else ("BAD_REQUEST", "the body is malformed")
        )
        body = error_body(code, text)
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        try:
            self.start_response(f"{error_code} {HTTPStatus(error_code).phrase}", headers)
            self.write(body)
        except OSError:
            self.close_connection = True


def _answer(status: int, code: str, message: str) -> tuple[str, bytes]:
    body = error_body(code, message)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return str(status), head.encode() + body


def _nothing() -> None:
    """The undo of what was not done."""
