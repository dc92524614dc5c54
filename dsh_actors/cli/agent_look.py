"""`dsh agent ls`, `status` and `approvals`: what the daemon's agents are and what they ask."""

from __future__ import annotations

import json

import click

from dsh_actors.cli.agent_common import connect, daemon_options
from dsh_actors.cli.agent_text import age_text, details, row
from dsh_actors.cli.failures import one_line
from dsh_actors.cli.printing import now_ms, time_text, write_json, write_text
from dsh_actors.core.text import JsonObject, shorten
from dsh_actors.errors import UsageError

__all__ = ["APPROVALS", "LS", "STATUS"]

STATES = ("running", "idle", "asleep", "failed")
_ARGUMENTS_SHOWN = 200


@click.command("ls", short_help="List agents, or watch them.")
@click.option("--state", type=click.Choice(STATES), help="Only agents in this state.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="No more than this many.")
@click.option("--watch", is_flag=True, help="Go on: a live table on a terminal, else a line a change.")
@daemon_options
def ls(state: str | None, limit: int | None, watch: bool, socket: str | None, as_json: bool) -> int:
    """List the daemon's agents: id, state, turn.step and tool, tokens, cost, age, title."""
    if watch and (state is not None or limit is not None):
        raise UsageError("--watch shows all agents; leave out --state and --limit")
    with connect(socket) as client:
        if watch:
            from dsh_actors.cli.agent_watch import watch_agents

            return watch_agents(client, as_json=as_json)
        now = now_ms()
        for info in client.agents(state, limit=limit):
            if as_json:
                write_json(info)
            else:
                write_text(row(info, age_text(info, now)))
    return 0


@click.command("status")
@click.argument("agent_id", metavar="ID")
@daemon_options
def status(agent_id: str, socket: str | None, as_json: bool) -> int:
    """Show all that the daemon knows of one agent."""
    with connect(socket) as client:
        info = client.agent(agent_id)
        asked = client.approvals() if info.get("approvals") and not as_json else []
    if as_json:
        write_json(info)
        return 0
    for line in details(info):
        write_text(line)
    for question in asked:
        if question.get("agent") == agent_id:
            write_text(f"{'asks:':<10}{_question(question)}")
    return 0


@click.command("approvals")
@daemon_options
def approvals(socket: str | None, as_json: bool) -> int:
    """List the questions that wait for dsh agent approve: agent, question, tool, arguments."""
    with connect(socket) as client:
        for question in client.approvals():
            if as_json:
                write_json(question)
            else:
                write_text(one_line(f"{question.get('agent')}  {_question(question)}"))
    return 0


def _question(question: JsonObject) -> str:
    arguments = question.get("arguments")
    shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    deadline = question.get("deadline")
    until = f"  (until {time_text(int(deadline))})" if isinstance(deadline, int | float) else ""
    return one_line(
        f"{question.get('id')}  {question.get('tool')}  {shorten(shown, _ARGUMENTS_SHOWN)}{until}"
    )


LS, STATUS, APPROVALS = ls, status, approvals
