"""`dsh serve`: the daemon in the foreground, or started in the background and left there."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from dsh_actors.cli.debugging import install_debugging
from dsh_actors.cli.options import DURATION, keyed_option
from dsh_actors.cli.stopping import SignalWatch
from dsh_actors.config import Config, load_config
from dsh_actors.core.options import GRACE_S
from dsh_actors.errors import UsageError

if TYPE_CHECKING:
    from dsh_actors.daemon.server import Daemon

__all__ = ["COMMAND"]

_ONCE_IDLE_S = 1.0
_KEYS = ("socket", "listen", "approval_timeout", "max_live")


def serve(
    *,
    idle_exit: float | None,
    once: bool,
    detach: bool,
    stop: bool,
    ready_fd: int | None,
    **options: Any,
) -> int:
    """Host agents until a signal; the exit code. Raises what keeps the daemon from starting."""
    given = {name: options[name] for name in _KEYS if options[name] is not None}
    elsewhere = os.environ.get("DSH_SOCKET")  # where dsh agent looks first
    if elsewhere and "://" not in elsewhere:
        given.setdefault("socket", elsewhere)
    if "socket" in given:
        given["socket"] = os.path.abspath(given["socket"])
    _require_descriptor(ready_fd)
    config = load_config(options={f"daemon.{n}": value for n, value in given.items()}, project_file=False)
    directory = os.path.join(config.require_home(writable=not stop), "daemon")
    if stop:
        from dsh_actors.cli.serve_background import stop_daemon

        return stop_daemon(config.daemon.socket or os.path.join(directory, "socket"))
    if detach:
        from dsh_actors.cli.serve_background import start_in_background

        words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        words += [f"--idle-exit={idle_exit}"] if idle_exit is not None else []
        return start_in_background([*words, *(["--once"] if once else [])], directory)
    idle_exit_s = _ONCE_IDLE_S if once and idle_exit is None else idle_exit
    return _run(config, ready_fd, idle_exit_s, once)


def _run(config: Config, ready_fd: int | None, idle_exit_s: float | None, once: bool) -> int:
    from dsh_actors.daemon.server import Daemon

    install_debugging()
    signals = SignalWatch()
    try:
        daemon = Daemon(config, idle_exit_s=idle_exit_s, once=once)
        signals.on_first = daemon.stopping.set
        daemon.start()
        try:
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
        click.Option(["--stop"], is_flag=True, help="End the one that runs, and wait until it has ended."),
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
