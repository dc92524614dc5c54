"""`dsh agent events`: the events of an agent of the daemon as JSON lines, stored ones and live ones."""

from __future__ import annotations

import click

from dsh_actors.cli.agent_common import connect, daemon_options
from dsh_actors.cli.printing import flush, write_json
from dsh_actors.daemon.client import ServerEvent
from dsh_actors.errors import HarnessError

__all__ = ["COMMAND"]


@click.command("events", short_help="Print an agent's events as JSON lines.")
@click.argument("agent_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until the agent is disposed of.")
@click.option("--after", type=click.IntRange(min=-1), default=-1, help="Only events behind this one.")
@daemon_options
def events(agent_id: str, follow: bool, after: int, socket: str | None, as_json: bool) -> int:
    """Print the events of the agent's session, one JSON object a line, with or without --json.

    A line of type gap, with from and to, stands where the log does not hold them any more, one of type
    unreadable, with code and message, where the log is damaged: that makes the exit code 1.
    """
    fault = None
    with connect(socket) as client:
        for event in client.events(agent_id, after=after, follow=follow):
            if event.name == "unreadable" and event.seq is None:
                fault = HarnessError(str(event.data.get("message")), code=str(event.data.get("code")))
            write_json(_line(event))
            if follow:
                flush()
    if fault is not None:
        raise fault
    return 0


def _line(event: ServerEvent) -> object:
    """Events of the log as they are there; the daemon's own ones with their name as type."""
    return event.data if event.seq is not None else {**event.data, "type": event.name}


COMMAND = events
