"""The HTTP side of a model call, over requests: connections, one exchange, its abort and its errors.

Importing this costs a tenth of a second, so providers do it with their first request.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any

import requests
from urllib3.exceptions import (
    DecodeError,
    HTTPError,
    InvalidHeader,
    NameResolutionError,
    NewConnectionError,
    ReadTimeoutError,
)
from urllib3.exceptions import ProxyError as PoolProxyError
from urllib3.response import BaseHTTPResponse

from dsh_actors.adapters.llm.connections import PoolAdapter, running
from dsh_actors.adapters.llm.errors import clean_message
from dsh_actors.adapters.llm.settings import ProviderConfig
from dsh_actors.adapters.llm.surroundings import (
    UnusableCertificates,
    UnusableProxy,
    certificates,
    proxies_for,
)
from dsh_actors.core.chunks import Failure
from dsh_actors.ports import StreamControl

__all__ = ["NETWORK_ERRORS", "Exchange", "Transport", "network_failure"]

MAX_ERROR_BYTES = 65_536
ERROR_BODY_S = 5.0
SPARE_S = 5.0
"""The socket's own patience ends so much later than the watchdog's, which knows what is waited for."""

DRAIN_S = 0.25
"""How long to wait for the end of a body whose last event has come, so the connection can be reused."""

NETWORK_ERRORS = (requests.RequestException, HTTPError, OSError)
"""What sending and reading may raise. `network_failure` says what it means."""


class Transport:
    """Sends to one URL. The proxy and certificate settings of the environment are read once.

    Precedence for certificates: the configured file, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE,
    the bundled roots. ``via`` names the proxy in use for people, if there is one. ``read_timeout_s`` is for
    calls that no watchdog looks after; None is longer than all of its clocks.

    Raises `UnusableCertificates`, `UnusableProxy`, or what `requests` raises for a URL that is none.
    """

    def __init__(
        self,
        config: ProviderConfig,
        url: str,
        headers: Mapping[str, str],
        method: str = "POST",
        read_timeout_s: float | None = None,
    ) -> None:
        self._config = config
        self._adapter = PoolAdapter(pool_connections=8, pool_maxsize=config.max_concurrency)
        session = requests.Session()
        self._template = requests.Request(method, url, headers=dict(headers)).prepare()
        settings = session.merge_environment_settings(self._template.url, {}, True, None, None)
        self._verify: bool | str = certificates(config) or True
        self._proxies, self.via = proxies_for(config.base_url, settings["proxies"])
        longest = max(config.first_event_timeout_s, config.queue_timeout_s, config.idle_timeout_s)
        self.read_timeout_s = longest + SPARE_S if read_timeout_s is None else read_timeout_s
        session.close()
        self._headers = dict(self._template.headers)

    def exchange(self, control: StreamControl) -> Exchange:
        return Exchange(self, control)

    def send(self, body: bytes) -> BaseHTTPResponse:
        """Send one request and wait for the response's head. No redirect, cookie or netrc entry."""
        request = copy(self._template)
        request.body = body
        request.headers = {**self._headers, "Content-Length": str(len(body))}  # type: ignore[assignment]
        timeouts = (self._config.connect_timeout_s, self.read_timeout_s)
        # The adapter and not the session: nothing of the environment may replace the credentials.
        response: Any = self._adapter.send(
            request, stream=True, timeout=timeouts, verify=self._verify, proxies=self._proxies
        )
        return response  # type: ignore[no-any-return]  # see `PoolAdapter.build_response`


class Exchange:
    """One request and its response. Only the reader closes it; `abort` may come from elsewhere.

    ``on_connected`` is called when there is a connection, new or not, before anything is sent.
    """

    def __init__(self, transport: Transport, control: StreamControl) -> None:
        self.connection: Any = None
        self.wire: socket.socket | None = None
        self.on_connected: Callable[[], None] | None = None
        self.read_timeout_s = transport.read_timeout_s
        self.is_new = False
        self._transport = transport
        self._control = control
        self._response: BaseHTTPResponse | None = None
        self._drain_end: float | None = None

    def check(self) -> None:
        """Raises OSError after an abort, or too late in `drain`, so that nothing more is sent or read."""
        if self._control.aborted is not None:
            raise ConnectionAbortedError("the call was aborted")
        if self._drain_end is not None and time.monotonic() > self._drain_end:
            raise TimeoutError("the body has no end")

    def connected(self) -> None:
        if self.on_connected is not None:
            self.on_connected()

    def send(self, body: bytes) -> BaseHTTPResponse:
        """Send and wait for the response's head.

        A kept connection that the server closed in the meantime is replaced once: nothing of a response
        had come, so the request was not taken.
        """
        self.check()
        running.exchange = self
        try:
            try:
                self._response = self._transport.send(body)
            except NETWORK_ERRORS as error:
                if self.is_new or not _was_stale(error):
                    raise
                self.check()
                self._response = self._transport.send(body)
        finally:
            running.exchange = None
        return self._response

    def read(self, size: int) -> bytes:
        """What has arrived of the body, waiting for the first byte; empty at its end."""
        assert self._response is not None
        return self._response.read1(size, decode_content=True)

    def abort(self) -> None:
        """Wake a blocked read or write: it ends with an error or as if the body ended."""
        response = self._response
        try:
            if response is not None:
                response.shutdown()
            elif self.wire is not None:
                self.wire.shutdown(socket.SHUT_RDWR)
            elif self.connection is not None and self.connection.sock is not None:
                self.connection.sock.shutdown(socket.SHUT_RDWR)
        except (ValueError, RuntimeError, OSError):
            return  # it was over already, or never connected

    def drain(self, seconds: float | None = None, limit: int = MAX_ERROR_BYTES) -> bytes:
        """Read on, but not for long; a body read to its end leaves its connection to the next call.

        ``seconds``: `DRAIN_S` unless given.
        """
        pieces: list[bytes] = []
        size, deadline = 0, time.monotonic() + (DRAIN_S if seconds is None else seconds)
        self._drain_end = deadline
        try:
            while size < limit:
                left = deadline - time.monotonic()
                if left <= 0 or self._control.aborted is not None:
                    break
                sock = None if self.connection is None else self.connection.sock
                if sock is not None:
                    sock.settimeout(left)
                data = self.read(limit - size)
                if not data:
                    break
                pieces.append(data)
                size += len(data)
        except NETWORK_ERRORS:
            pass  # what came is all there is; the connection is discarded
        return b"".join(pieces)

    def error_body(self) -> bytes:
        return self.drain(ERROR_BODY_S)

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response.release_conn()


def _was_stale(error: BaseException) -> bool:
    """Whether the peer had closed or reset the connection before it answered anything."""
    kinds = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)
    return any(isinstance(link, kinds) for link in _chain(error))


def network_failure(error: BaseException, endpoint: str, secret: str | None = None) -> Failure:
    """What an exception of `NETWORK_ERRORS` means. ``endpoint`` is named in the message."""
    chain = list(_chain(error))
    code, text = _judge(chain)
    return Failure(clean_message(f"{text} ({endpoint})", secret), code)


def _judge(chain: list[BaseException]) -> tuple[str, str]:
    def first(*types: type[BaseException]) -> BaseException | None:
        return next((link for link in chain if isinstance(link, types)), None)

    if first(requests.Timeout, ReadTimeoutError, TimeoutError):
        connecting = first(requests.ConnectTimeout, NewConnectionError)
        return "TIMEOUT", "no connection in time" if connecting else "no answer in time"
    unusable = first(UnusableCertificates, UnusableProxy)
    if unusable is not None:
        return "TLS" if isinstance(unusable, UnusableCertificates) else "INVALID_REQUEST", str(unusable)
    certificate = first(ssl.SSLError)
    if certificate is not None and not isinstance(certificate, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "TLS", f"no secure connection: {certificate}"
    if first(InvalidHeader):
        return "MALFORMED_RESPONSE", "the response has headers that contradict each other"
    local = first(requests.exceptions.InvalidURL, requests.exceptions.InvalidHeader)
    if local is None and isinstance(chain[0], ValueError) and not first(HTTPError, OSError):
        local = chain[0]
    if local is not None:
        return "INVALID_REQUEST", f"the request could not be built: {local}"
    if first(DecodeError, requests.exceptions.ContentDecodingError):
        return "MALFORMED_RESPONSE", "the response's compression is broken"
    if first(NameResolutionError, socket.gaierror):
        return "TRANSPORT", "the host name was not found"
    if any(str(link).startswith("Tunnel connection failed: 407") for link in chain):
        return "AUTH", "the proxy wants other credentials than those in its address"
    if first(requests.exceptions.ProxyError, PoolProxyError):
        return "TRANSPORT", f"the proxy cannot be used: {_root(chain)}"
    if first(NewConnectionError):
        return "TRANSPORT", f"cannot connect: {_root(chain)}"
    flood = first(http.client.HTTPException)
    if type(flood) in (http.client.HTTPException, http.client.LineTooLong):
        return "MALFORMED_RESPONSE", f"the response cannot be read: {flood}"
    if first(http.client.IncompleteRead):
        return "STREAM_CLOSED", "the response was cut off"
    return "TRANSPORT", f"the connection failed: {_root(chain)}"


def _root(chain: list[BaseException]) -> str:
    """The system's own words where there are any: the library's wrap them in its internals."""
    for link in reversed(chain):
        if isinstance(link, OSError) and link.strerror:
            return link.strerror
    return str(chain[-1]) or type(chain[-1]).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception and all that it wraps: as cause, context, reason or first argument."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        link = waiting.pop(0)
        if id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        inner = (link.__cause__, link.__context__, getattr(link, "reason", None), *link.args)
        waiting.extend(item for item in inner if isinstance(item, BaseException))
