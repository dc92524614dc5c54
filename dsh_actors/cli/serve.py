"""`dsh serve`: the daemon in the foreground, or started in the background and left there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import click

from dsh_actors.cli.debugging import install_debugging
from dsh_actors.cli.options import DURATION, keyed_option
from dsh_actors.cli.stopping import SignalWatch
from dsh_actors.config import Config, load_config
from dsh_actors.errors import UsageError
from dsh_actors.runs import GRACE_S

if TYPE_CHECKING:
    from dsh_actors.daemon.server import Daemon

__all__ = ["COMMAND"]

_ONCE_IDLE_S = 1.0
_KEYS = {
    "socket": "daemon.socket",
    "listen": "daemon.listen",
    "approval_timeout": "daemon.approval_timeout",
    "max_live": "daemon.max_live",
}
_LOG = "log"


def serve(
    *, idle_exit: float | None, once: bool, detach: bool, ready_fd: int | None, **options: Any
) -> int:
    """Host agents until a signal; the exit code. Raises what keeps the daemon from starting."""
    given = {_KEYS[name]: value for name, value in options.items() if value is not None}
    if given.get("daemon.socket"):
        given["daemon.socket"] = os.path.abspath(given["daemon.socket"])
    _require_descriptor(ready_fd)
    config = load_config(options=given, project_file=False)
    home = config.require_home(writable=True)
    if detach:
        return _detach(config, home)
    from dsh_actors.daemon.server import Daemon

    install_debugging()
    signals = SignalWatch()
    try:
        idle_exit_s = _ONCE_IDLE_S if once and idle_exit is None else idle_exit
        daemon = Daemon(config, idle_exit_s=idle_exit_s, once=once)
        daemon.start()
        try:
            signals.on_first = daemon.stopping.set
            if signals.name is not None:
                daemon.stopping.set()
            _say_ready(daemon, ready_fd)
            daemon.wait()
        finally:
            daemon.close(GRACE_S)
    finally:
        signals.close()
    return 0


def _require_descriptor(number: int | None) -> None:
    """Keep it from children: whoever waits for its end must not wait for theirs. Raises `UsageError`."""
    if number is None:
        return
    try:
        os.set_inheritable(number, False)
    except OSError as error:
        raise UsageError(f"--ready-fd {number}: there is no such descriptor") from error


def _say_ready(daemon: Daemon, ready_fd: int | None) -> None:
    places = [daemon.socket_path] + ([daemon.url] if daemon.url else [])
    with contextlib.suppress(OSError, ValueError):  # nobody has to listen
        sys.stderr.write(f"dsh: serving at {' and '.join(places)} (pid {os.getpid()})\n")
        sys.stderr.flush()
    if ready_fd is None:
        return
    try:
        with os.fdopen(ready_fd, "w", encoding="utf-8") as pipe:
            pipe.write("".join(f"{place}\n" for place in places))
    except BrokenPipeError:
        return  # whoever waited does not any more
    except OSError as error:
        raise UsageError(f"--ready-fd {ready_fd} cannot be written: {error.strerror}") from error


def _detach(config: Config, home: str) -> int:
    """Start this command again in a session of its own, and wait until it is ready or has failed."""
    from dsh_actors.runtime.process_spawn import close_now  # only here

    directory = os.path.join(home, "daemon")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    log_path = os.path.join(directory, _LOG)
    words = [word for word in sys.argv[1:] if word != "--detach"]
    ready, told = os.pipe()
    with os.fdopen(ready, "rb") as pipe:
        descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "dsh_actors", *words, "--ready-fd", str(told)],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=descriptor,
                pass_fds=(told,),
                start_new_session=True,
            )
        finally:
            # Ours of the pipe must be closed before the reading, or that has no end.
            close_now(told)
            close_now(descriptor)
        try:
            places = pipe.read().decode().splitlines()
        except BaseException:
            process.terminate()  # a signal: whoever started it does not wait for it any more
            raise
    if places:
        click.echo("\n".join(places))
        # It goes on without us: that it is not waited for is the point.
        process.returncode = 0
        return 0
    with open(log_path, encoding="utf-8", errors="replace") as log:
        sys.stderr.write(log.read()[-2000:])
    return process.wait()




COMMAND = click.Command(
    "serve",
    params=[
        keyed_option(["--socket"], "daemon.socket", "PATH"),
        keyed_option(["--listen"], "daemon.listen", "HOST:PORT"),
        keyed_option(["--approval-timeout"], "daemon.approval_timeout"),
        keyed_option(["--max-live"], "daemon.max_live"),
        click.Option(
            ["--idle-exit"],
            type=DURATION,
            metavar="DURATION",
            help="Stop when nothing ran and nobody was connected for so long.",
        ),
        click.Option(
            ["--once"],
            is_flag=True,
            help="Stop when what it was started for is done: as --idle-exit 1s, from its first use on.",
        ),
        click.Option(
            ["--detach"],
            is_flag=True,
            help="Start it in the background; return when it is ready, with where it listens on stdout.",
        ),
        click.Option(
            ["--ready-fd"],
            type=click.IntRange(min=3),
            metavar="N",
            help="Write where it listens to this descriptor, a line each, and close it, when it is ready.",
        ),
    ],
    callback=serve,
    help="Host many agents behind HTTP on a Unix socket, until a signal ends it. Talk to it with dsh agent.",
    short_help="Host many agents: the daemon.",
)
