"""`dsh agent send`, `steer` and `inject`: give an agent of the daemon a message."""

from __future__ import annotations

import click

from dsh_actors.cli.agent_common import connect, daemon_options, finish_waiting
from dsh_actors.cli.options import DURATION
from dsh_actors.cli.printing import write_json
from dsh_actors.cli.prompt_input import read_prompt
from dsh_actors.errors import UsageError

__all__ = ["INJECT", "SEND", "STEER"]

_HELP = {
    "send": "Give agent ID a message for a turn of its own; it is woken for it.",
    "steer": "Give agent ID a message before its next step, in the turn that goes on.",
    "inject": "Add TEXT to what agent ID is told next; alone it starts nothing.",
}


def _command(how: str) -> click.Command:
    @click.command(how, help=_HELP[how] + " TEXT - or none is standard input.")
    @click.argument("agent_id", metavar="ID")
    @click.argument("text", required=False)
    @click.option("--wait", is_flag=True, help="Wait until nothing is owed, and print the answer.")
    @click.option("--timeout", type=DURATION, metavar="DURATION", help="Wait no longer than this; exit 124.")
    @daemon_options
    def deliver(
        agent_id: str, text: str | None, wait: bool, timeout: float | None, socket: str | None, as_json: bool
    ) -> int:
        if timeout is not None and not wait:
            raise UsageError("--timeout is for --wait: a message is delivered at once")
        message = read_prompt(text, None, ()).text
        with connect(socket) as client:
            delivered = client.deliver(agent_id, message, how)
            if wait:
                ends = client.wait([agent_id], timeout_s=timeout)
                return finish_waiting([agent_id], ends, timeout, any_of=False, as_json=as_json)
        if as_json:
            write_json(delivered)
        return 0

    return deliver


SEND, STEER, INJECT = _command("send"), _command("steer"), _command("inject")
