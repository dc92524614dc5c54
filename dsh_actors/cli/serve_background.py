"""A daemon in the background: start it and wait until it is ready, or end it and wait until it has ended."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence

import click

from dsh_actors.daemon.sockets import short_path
from dsh_actors.errors import HarnessError, UsageError
from dsh_actors.runtime.process_spawn import close_now

__all__ = ["start_in_background", "stop_daemon"]

_STOP_S = 20.0
_LOG = "log"
_MAX_LOG_BYTES = 1 << 20
"""A log that is longer is set aside, as ``log.old``, when the next daemon starts."""
_CREDENTIALS = struct.Struct("3i")


def start_in_background(options: Sequence[str], directory: str) -> int:
    """Run ``dsh serve OPTIONS`` in a session of its own; the exit code, 0 as soon as it listens.

    What it has to say goes to a file in ``directory``, and to standard error if it does not get so far.
    """
    os.makedirs(directory, mode=0o700, exist_ok=True)
    log_path = os.path.join(directory, _LOG)
    ready, told = os.pipe()
    with os.fdopen(ready, "rb") as pipe:
        log, begin = _open_log(log_path)
        try:
            process = subprocess.Popen(
                [*_this_program(), "serve", *options, "--ready-fd", str(told)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(told,),
                start_new_session=True,
            )
        finally:
            # Our end of the pipe must be closed before the reading, or that has no end.
            close_now(told)
            close_now(log)
        try:
            places = pipe.read().decode().splitlines()
        except BaseException:
            process.terminate()  # a signal: whoever started it does not wait for it any more
            raise
    if places:
        click.echo("\n".join(places))
        process.returncode = 0  # it goes on without us: that nobody waits for it is the point
        return 0
    with open(log_path, "rb") as said:
        said.seek(begin)
        sys.stderr.write(said.read().decode("utf-8", "replace")[-2000:])
    return process.wait()


def _open_log(path: str) -> tuple[int, int]:
    """The log, and where in it the new daemon's words begin: another one may still be writing there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    log = os.open(path, flags, 0o600)
    size = os.fstat(log).st_size
    if size <= _MAX_LOG_BYTES:
        return log, size
    close_now(log)
    os.replace(path, path + ".old")
    return os.open(path, flags, 0o600), 0


def _this_program() -> list[str]:
    """How the program that runs was started, without its own arguments."""
    own = len(sys.argv) - 1
    return [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - own]]


def stop_daemon(path: str) -> int:
    """Ask the daemon that listens at ``path`` to end, and wait until it has; the exit code.

    Raises `UsageError` where none listens, `HarnessError` where it does not end in time.
    """
    pid = _listener(path)
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return 0  # it was just ending
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        poller = select.poll()
        poller.register(process, select.POLLIN)
        if not poller.poll(_STOP_S * 1000):
            raise HarnessError(
                f"the daemon (pid {pid}) has not ended in {_STOP_S:g} s",
                hint=f"a second signal ends it at once: kill {pid}",
            )
    except ProcessLookupError:
        return 0
    finally:
        os.close(process)
    return 0


def _listener(path: str) -> int:
    """The process that listens at ``path``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            with short_path(path) as address:
                probe.connect(address)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise UsageError(f"no daemon listens at {path}") from error
        except OSError as error:
            raise UsageError(f"cannot reach a daemon at {path}: {error.strerror}") from error
        found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(found)[0]
    return pid
