"""The listening sockets: one on the file system, for its owner only, and perhaps one on loopback."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator

from dsh_actors.errors import SessionBusy, StorageError, UsageError

__all__ = ["UnixListener", "loopback_address", "open_loopback", "short_path"]

BACKLOG = 256
MAX_PATH_BYTES = 107
"""What an address of a Unix socket holds, without its closing zero byte."""

_LOOK_S = 1.0


class UnixListener:
    """A listening socket at ``path``; `remove` takes its file away again.

    Raises `SessionBusy` where a daemon listens there, `UsageError` for something else in the place,
    `StorageError`. The file of a daemon that died is replaced.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            with short_path(self.path) as address:
                _clear(self.path, address)
                self.socket = _bind(address)
            self._identity = os.stat(self.path, follow_symlinks=False)
        except OSError as error:
            raise StorageError(f"cannot listen at {self.path}: {error.strerror or error}") from error

    def remove(self) -> None:
        """Take the file away, unless another one stands in its place. May be called again."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self.path, follow_symlinks=False), self._identity):
                os.unlink(self.path)


@contextlib.contextmanager
def short_path(path: str) -> Iterator[str]:
    """``path`` as an address that is short enough: a longer one is reached through its open directory.

    Raises OSError where the directory cannot be opened.
    """
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _clear(path: str, address: str) -> None:
    """Remove the socket of a daemon that died."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise UsageError(f"{path} is there and is no socket", hint="name another with --socket")
    if status.st_uid != os.geteuid():
        raise UsageError(f"the socket {path} is another user's", hint="name another with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_LOOK_S)
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ETIMEDOUT) and not isinstance(error, TimeoutError):
                raise
            # Its queue is full: somebody listens, and is busy.
    raise SessionBusy(
        f"a daemon listens at {path} already",
        hint="talk to that one; another needs a DSH_HOME of its own, and a --socket where one is named",
    )


def _bind(address: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before the file exists, so that there is no moment in which others could connect.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def loopback_address(text: str) -> tuple[str, int]:
    """``HOST:PORT`` of this machine. Raises `UsageError` for anything else."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise UsageError(f"--listen takes HOST:PORT, not {text!r}", hint="such as 127.0.0.1:8421")
    name = "127.0.0.1" if host == "localhost" else host
    try:
        is_loopback = ipaddress.ip_address(name).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise UsageError(
            f"--listen {text}: the daemon listens on this machine only",
            hint="use 127.0.0.1:PORT, and a tunnel (ssh -L) to reach it from elsewhere",
        )
    return name, int(port)


def open_loopback(text: str) -> socket.socket:
    """A listening TCP socket. Raises as `loopback_address` does, `SessionBusy` where the port is taken."""
    host, port = loopback_address(text)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise SessionBusy(f"somebody listens at {text} already", hint="name another port") from error
        raise StorageError(f"cannot listen at {text}: {error.strerror}") from error
    except BaseException:  # a signal
        listener.close()
        raise
    return listener
