"""Doubles of what stands in the way: servers with certificates of our own authority, proxies, mute ports."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.adapters.llm.llm_kit import HANG_S, Server

__all__ = [
    "AUTHORITY",
    "CERTIFICATES",
    "PROXY_NAMES",
    "Greeting",
    "Proxy",
    "SecureServer",
    "deaf_listener",
    "mute_listener",
]

CERTIFICATES = Path(__file__).parent / "certificates"
AUTHORITY = str(CERTIFICATES / "ca.pem")
PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class SecureServer(Server):
    """`Server` behind TLS, with the certificate for this name."""

    def __init__(self, handle: Callable[[socket.socket, bytes], object], name: str = "localhost") -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATES / f"{name}.pem")
        super().__init__(handle)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}/v1"

    def _serve(self, connection: socket.socket) -> None:
        try:
            with self._context.wrap_socket(connection, server_side=True) as secure:
                super()._serve(secure)
        except OSError:
            self.gone.set()  # the client does not like the certificate


class Greeting(Server):
    """Says the same to everybody before it was asked."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        super().__init__(lambda connection, request: None)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            connection.sendall(self._words)
        self.gone.set()


class Proxy:
    """A proxy that opens tunnels, or answers each request with ``refusal``. ``heads``: what it was asked."""

    def __init__(self, refusal: bytes | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._refusal = refusal
        self.heads: list[str] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            head = b""
            while b"\r\n\r\n" not in head:
                piece = client.recv(65536)
                if not piece:
                    return
                head += piece
            self.heads.append(head.decode("latin-1"))
            if self._refusal is not None:
                client.sendall(self._refusal)
                return
            host, _, port = self.heads[-1].split()[1].rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join(HANG_S)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(HANG_S)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # one side is gone


@contextmanager
def deaf_listener() -> Iterator[int]:
    """A port whose queue of connections is full, so that nobody gets an answer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        yield port
        for each in waiting:
            each.close()


@contextmanager
def mute_listener() -> Iterator[int]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]
