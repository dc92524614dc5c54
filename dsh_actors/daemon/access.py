"""Who may ask: everybody who reaches the Unix socket, and on TCP who has the token and means this machine."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from typing import Any

from dsh_actors.daemon.routes import Refusal
from dsh_actors.errors import StorageError, UsageError

__all__ = ["LISTENER_KEY", "Access", "load_token"]

LISTENER_KEY = "dsh.listener"
"""In the environment of a request: ``unix`` or ``tcp``."""

_TOKEN_BYTES = 32
_LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})


class Access:
    """``token`` is what TCP needs; None where nothing listens on TCP."""

    def __init__(self, token: str | None) -> None:
        self._token = token.encode() if token is not None else None

    def require(self, environ: Mapping[str, Any], *, is_open: bool) -> None:
        """Raises `Refusal` for a request that may not be answered. ``is_open``: no token is needed for it."""
        if environ.get(LISTENER_KEY) == "unix":
            return
        # A page of the web whose name was made to point here still names itself.
        _require_local(environ.get("HTTP_HOST", ""), "Host")
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and origin != f"http://{environ.get('HTTP_HOST', '')}":
            raise Refusal(403, "FOREIGN_ORIGIN", "pages from elsewhere may not ask")
        if is_open:
            return
        kind, _, given = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if (
            self._token is None
            or kind.lower() != "bearer"
            or not hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token)
        ):
            raise Refusal(
                401,
                "NO_TOKEN",
                "the token is missing or wrong",
                "send Authorization: Bearer TOKEN; it stands in daemon/token in DSH_HOME",
                {"WWW-Authenticate": "Bearer"},
            )


def _require_local(host: str, what: str) -> None:
    name, colon, port = host.rpartition(":")
    if not colon or port.endswith("]") or not port.isdigit():
        name = host
    if name.lower() not in _LOCAL_NAMES:
        raise Refusal(403, "FOREIGN_HOST", f"{what} names another machine than this one")


def load_token(directory: str) -> str:
    """The token in ``directory``, made where there is none; for its owner only.

    Raises `UsageError` for a file that others can read, `StorageError`.
    """
    path = os.path.join(directory, "token")
    try:
        return _read_token(path) or _make_token(path)
    except OSError as error:
        raise StorageError(f"cannot keep the token in {path}: {error.strerror}") from error


def _read_token(path: str) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or status.st_uid != os.geteuid():
            raise UsageError(f"others can read {path}", hint=f"remove it: a new token is made (rm {path})")
        text = file.read(4096).decode("ascii", "replace").strip()
    if not text.isprintable() or len(text) < 16:
        raise UsageError(f"{path} holds no token", hint=f"remove it: a new token is made (rm {path})")
    return text


def _make_token(path: str) -> str:
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(token.encode() + b"\n")
    return token
