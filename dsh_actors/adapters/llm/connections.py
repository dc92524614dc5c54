"""Connections of the HTTP library that can be woken, do not starve others, and tell who uses them.

They know the call that runs in the current thread, as its `Held`.
"""

from __future__ import annotations

import http.client
import io
import socket
import threading
import time
from typing import Any, Protocol

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NameResolutionError, NewConnectionError

from dsh_actors.adapters.llm.dechunking import MAX_LINE, Dechunker
from dsh_actors.runtime.waiting import is_readable

__all__ = ["Held", "PoolAdapter", "running"]

running = threading.local()
"""``exchange``: the `Held` of the call that is being sent in this thread, or None."""

MAX_INTERIM = 32
"""Responses such as "103 Early Hints" before the one that counts."""

BUSY_S = 0.005
BLOCKED_S = 0.0005
"""As in `sse`: a peer that floods us may not keep other work waiting for longer."""

MAX_HEADERS = 100
READ_BYTES = 16_384


class Held(Protocol):
    """A call that holds a connection. ``read_timeout_s`` is the socket's patience, in seconds.

    ``wire`` is the socket of a connection that is being made: shutting it down ends that. ``is_new``:
    its connection was made for it.
    """

    connection: Any
    wire: socket.socket | None
    is_new: bool
    read_timeout_s: float

    def check(self) -> None:
        """Raises OSError where the call must not go on."""

    def connected(self) -> None:
        """There is a connection, new or not, and nothing was sent yet."""


class _FairReader(io.RawIOBase):
    """Reads a socket; what always has data lets others run all the same, and ends when it is aborted."""

    def __init__(self, raw: Any, exchange: Held | None) -> None:
        self._raw = raw
        self._exchange = exchange
        self._last_pause = time.monotonic()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        before = time.monotonic()
        if before - self._last_pause > BUSY_S:
            time.sleep(1e-6)
            before = time.monotonic()
            self._last_pause = before
            if self._exchange is not None:
                self._exchange.check()
        count: int | None = self._raw.readinto(buffer)
        now = time.monotonic()
        if now - before > BLOCKED_S:
            self._last_pause = now
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """Skips interim responses of any kind, but not for ever; reads its socket fairly."""

    def __init__(self, sock: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        exchange: Held | None = getattr(running, "exchange", None)
        self._dechunker = Dechunker()
        self.fp = io.BufferedReader(_FairReader(self.fp.detach(), exchange))

    def _read_status(self) -> tuple[str, int, str]:
        for _ in range(MAX_INTERIM):
            found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if not 100 <= found[1] < 200 or found[1] == http.HTTPStatus.SWITCHING_PROTOCOLS:
                return found
            for _ in range(MAX_HEADERS):
                line = self.fp.readline(MAX_LINE + 1)
                if len(line) > MAX_LINE:
                    raise http.client.LineTooLong("header line")
                if line in (b"\r\n", b"\n", b""):
                    break
            else:
                raise http.client.HTTPException("an interim response has too many headers")
        raise http.client.HTTPException("too many interim responses")

    def _read1_chunked(self, size: int) -> bytes:
        """As the library's, but all chunks that have arrived at once."""
        dechunker = self._dechunker
        data = dechunker.feed(b"") if dechunker.is_faulty else b""
        while not data:
            if dechunker.has_ended:
                self._close_conn()  # type: ignore[attr-defined]
                break
            raw = self.fp.read1(min(size, READ_BYTES))
            if not raw:
                raise http.client.IncompleteRead(b"")
            data = dechunker.feed(raw)
        return data


class _Tracked:
    """Tells the exchange that runs in this thread which connection it got, so it can be woken."""

    sock: Any
    timeout: Any
    host: str
    port: int
    socket_options: Any
    is_secure = False
    _dns_host: str

    def connect(self) -> None:
        exchange: Held | None = getattr(running, "exchange", None)
        if exchange is None:
            super().connect()  # type: ignore[misc]
            return
        exchange.connection = self
        exchange.is_new = True
        try:
            super().connect()  # type: ignore[misc]
        finally:
            wire, exchange.wire = exchange.wire, None
            if wire is not None and wire is not self.sock:
                wire.close()
        self._enter(exchange)

    @property
    def is_connected(self) -> bool:
        """Whether nothing has come since the last response; what comes unasked is the end."""
        return self.sock is not None and not is_readable(self.sock.fileno())

    def _new_conn(self) -> socket.socket:
        """As the library's, but the socket is known while it connects, and closed however that ends."""
        exchange: Held | None = getattr(running, "exchange", None)
        try:
            addresses = socket.getaddrinfo(self._dns_host, self.port, 0, socket.SOCK_STREAM)
        except UnicodeError as error:
            raise NameResolutionError(self.host, self, socket.gaierror(str(error))) from error  # type: ignore[arg-type]
        except socket.gaierror as error:
            raise NameResolutionError(self.host, self, error) from error  # type: ignore[arg-type]
        failure: OSError = OSError("the name has no address")
        for family, kind, protocol, _, address in addresses:
            if exchange is not None:
                exchange.check()
            sock = socket.socket(family, kind, protocol)
            try:
                for option in self.socket_options or ():
                    sock.setsockopt(*option)
                sock.settimeout(self.timeout)
                if exchange is not None:
                    exchange.wire = sock
                sock.connect(address)
                if exchange is not None and self.is_secure:
                    # The library gives the socket's descriptor to another object for the handshake.
                    exchange.wire = sock.dup()
                return sock
            except OSError as error:
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        if isinstance(failure, TimeoutError):
            raise ConnectTimeoutError(self, "no connection in time") from failure
        raise NewConnectionError(self, str(failure)) from failure  # type: ignore[arg-type]

    def request(self, *args: Any, **kwargs: Any) -> None:
        exchange: Held | None = getattr(running, "exchange", None)
        if self.sock is not None:
            self._enter(exchange)
        super().request(*args, **kwargs)  # type: ignore[misc]

    def _enter(self, exchange: Held | None) -> None:
        """There is a connection: sending has the patience for an answer, not that for connecting."""
        if exchange is None:
            return
        exchange.connection = self
        exchange.check()
        self.timeout = exchange.read_timeout_s
        self.sock.settimeout(exchange.read_timeout_s)
        exchange.connected()


class _Connection(_Tracked, HTTPConnection):
    response_class = _Response


class _SecureConnection(_Tracked, HTTPSConnection):
    is_secure = True
    response_class = _Response


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


_POOLS = {"http": _Pool, "https": _SecurePool}


class PoolAdapter(HTTPAdapter):
    """A large pool that never blocks and never retries. It is for one URL and one set of settings."""

    _found: Any = None

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        # Finding it anew, by URL and settings, costs a tenth of sending the request.
        if self._found is None:
            self._found = super().get_connection_with_tls_context(*args, **kwargs)
        return self._found

    def build_response(self, request: Any, response: Any) -> Any:
        # The library's own object parses cookies and keeps what nobody here asks for.
        return response

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(*args, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager
