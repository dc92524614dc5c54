"""`dsh agent wait`: until agents of the daemon owe nothing; the exit code is theirs."""

from __future__ import annotations

import click

from dsh_actors.cli.agent_common import connect, daemon_options, finish_waiting
from dsh_actors.cli.options import DURATION

__all__ = ["COMMAND"]


@click.command("wait", short_help="Wait for agents; the exit code is theirs.")
@click.argument("agent_ids", metavar="ID...", nargs=-1, required=True)
@click.option("--any", "any_of", is_flag=True, help="Wait for the first of them.")
@click.option("--timeout", type=DURATION, metavar="DURATION", help="Wait no longer than this; exit 124.")
@daemon_options
def wait(
    agent_ids: tuple[str, ...], any_of: bool, timeout: float | None, socket: str | None, as_json: bool
) -> int:
    """Wait until the agents owe nothing, and exit as the worst of them did.

    The answer of a single agent is printed as dsh run prints it; of several, a line each.
    """
    with connect(socket) as client:
        ids = list(dict.fromkeys(agent_ids))
        ends = client.wait(ids, any_of=any_of, timeout_s=timeout)
    return finish_waiting(ids, ends, timeout, any_of=any_of, as_json=as_json)


COMMAND = wait
