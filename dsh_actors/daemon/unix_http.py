"""HTTP over a Unix socket for `requests`: an adapter that connects to one path, whatever the URL's host."""

from __future__ import annotations

import socket
from typing import Any

from requests import PreparedRequest
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import NewConnectionError

from dsh_actors.daemon.sockets import short_path

__all__ = ["UnixAdapter"]


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, **options: Any) -> None:
        super().__init__("localhost", **options)
        self._path = path

    def connect(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        timeout = self.timeout
        sock.settimeout(timeout if isinstance(timeout, int | float) else None)
        try:
            with short_path(self._path) as address:
                sock.connect(address)
        except OSError as error:
            sock.close()
            raise NewConnectionError(self, str(error)) from error
        except BaseException:  # a signal, or whoever ends the wait
            sock.close()
            raise
        self.sock = sock


class _UnixPool(HTTPConnectionPool):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", maxsize=4)
        self._path = path

    def _new_conn(self) -> _UnixConnection:
        self.num_connections += 1
        return _UnixConnection(self._path, timeout=self.timeout.connect_timeout)


class UnixAdapter(HTTPAdapter):
    """Sends every request of the session that it is mounted in to the socket at ``path``."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._pool = _UnixPool(path)

    def get_connection_with_tls_context(
        self, request: PreparedRequest, verify: Any, proxies: Any = None, cert: Any = None
    ) -> HTTPConnectionPool:
        return self._pool

    def request_url(self, request: PreparedRequest, proxies: Any) -> str:
        return request.path_url

    def close(self) -> None:
        self._pool.close()
        super().close()
