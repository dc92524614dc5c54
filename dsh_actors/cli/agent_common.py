"""What the subcommands of `dsh agent` share: where the daemon is, and how an awaited end is told."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from dsh_actors.cli.printing import flush, write, write_json, write_text
from dsh_actors.cli.streams import STREAMS
from dsh_actors.config import find_home, load_config
from dsh_actors.core.exit_codes import EXIT_CODES, error_line, exit_code_of
from dsh_actors.core.text import JsonObject
from dsh_actors.daemon.client import DaemonClient, loopback_url
from dsh_actors.errors import ConfigError, CredentialError, UsageError
from dsh_actors.runtime.signals import waking_signals

__all__ = ["connect", "daemon_options", "finish_waiting", "socket_option"]

_Command = TypeVar("_Command")

socket_option = click.option(
    "--socket",
    metavar="PATH|URL",
    help="Where the daemon listens: its socket, or http://127.0.0.1:PORT "
    "[default: DSH_SOCKET, else [daemon] socket, else daemon/socket in DSH_HOME].",
)
_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


def daemon_options(command: _Command) -> _Command:
    """The options that every subcommand has: ``--socket`` and ``--json``."""
    return socket_option(_json_option(command))  # type: ignore[type-var]


@contextmanager
def connect(socket: str | None) -> Iterator[DaemonClient]:
    """A client of the daemon that is meant; nothing is sent yet. Signals end every wait for it.

    Raises `UsageError` for an address that is none, `CredentialError` where it needs a token.
    """
    with waking_signals(), _client(socket) as client:
        yield client


def _client(socket: str | None) -> DaemonClient:
    address = socket or os.environ.get("DSH_SOCKET")
    if address is not None and "://" in address:
        url = loopback_url(address)
        return DaemonClient(url, _token(url))
    if address is not None:
        return DaemonClient(os.path.abspath(os.path.expanduser(address)))
    return DaemonClient(_configured_socket() or os.path.join(_home(), "daemon", "socket"))


def _configured_socket() -> str | None:
    try:
        return load_config(project_file=False).daemon.socket
    except ConfigError:
        return None  # no daemon starts with it either; one that runs is where it is by default


def _home() -> str:
    home = find_home(os.environ)
    if home.path is None:
        raise UsageError(f"no place for a daemon: {home.problem}", hint="set DSH_HOME, or give --socket")
    return home.path


def _token(address: str) -> str:
    path = os.path.join(_home(), "daemon", "token")
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise CredentialError(f"{address} needs the daemon's token: cannot read {path}: {reason}") from error
    if not token.isprintable() or not token:
        raise CredentialError(f"{address} needs the daemon's token: {path} holds none")
    return token


def finish_waiting(
    ids: Sequence[str],
    ends: Mapping[str, JsonObject | None],
    timeout_s: float | None,
    *,
    any_of: bool,
    as_json: bool,
) -> int:
    """Print how a wait ended; the exit code: that of the one agent, else the worst of them.

    ``ends`` has those that are done, None for one that was never asked anything, which is no failure. One
    agent's answer is printed as `dsh run` prints it, and nothing when it failed. With ``any_of``
    those that go on do not count, unless it is all of them.
    """
    if as_json:
        for agent_id in ids:
            write_json({"id": agent_id, "done": agent_id in ends, "end": ends.get(agent_id)})
    open_ids = [agent_id for agent_id in ids if agent_id not in ends]
    if open_ids and not (any_of and ends):
        return _fail("timeout", _still_going(open_ids, len(ids), timeout_s))
    done = {agent_id: end for agent_id, end in ends.items() if end is not None}
    if len(ids) == 1 and not as_json:
        return _tell_answer(*done.popitem()) if done else 0
    if not as_json:
        for agent_id, end in ends.items():
            write_text(f"{agent_id}  {'idle' if end is None else end.get('status')}")
    flush()
    failed = {agent_id: end for agent_id, end in done.items() if _code(end)}
    if not failed:
        return 0
    worst = max(failed, key=lambda agent_id: _code(failed[agent_id]))
    if not as_json:
        count = f"{len(failed)} of {len(ids)} agents did not complete; " if len(ids) > 1 else ""
        _complain(error_line(_status(failed[worst]), count + _message(failed[worst]), worst))
    return _code(failed[worst])


def _still_going(open_ids: Sequence[str], count: int, timeout_s: float | None) -> str:
    passed = "" if timeout_s is None else f" after {timeout_s:g} s"
    if count == 1:
        return f"agent {open_ids[0]} is not done{passed}"
    return f"{len(open_ids)} of {count} agents are not done{passed}"


def _tell_answer(agent_id: str, end: JsonObject) -> int:
    code, answer = _code(end), end.get("answer")
    if code == 0 and isinstance(answer, str):
        write(answer.encode("utf-8", "replace") + b"\n")
        flush()
    if code:
        _complain(error_line(_status(end), _message(end), agent_id))
    return code


def _code(end: JsonObject) -> int:
    code: Any = end.get("exit_code")
    return code if isinstance(code, int) else exit_code_of("internal")


def _status(end: JsonObject) -> str:
    return str(end.get("status") or EXIT_CODES["internal"].name)


def _message(end: JsonObject) -> str:
    return str(end.get("message") or "no reason was given")


def _fail(reason: str, message: str) -> int:
    flush()
    _complain(error_line(EXIT_CODES[reason].name, message))
    return exit_code_of(reason)


def _complain(line: str) -> None:
    sys.stderr.write(line + "\n")
    STREAMS.flush()
