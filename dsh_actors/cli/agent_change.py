"""`dsh agent cancel`, `approve`, `fork` and `dispose`: what changes an agent of the daemon."""

from __future__ import annotations

import re

import click

from dsh_actors.cli.agent_common import connect, daemon_options
from dsh_actors.cli.printing import write_json, write_text
from dsh_actors.cli.prompt_input import argument_text
from dsh_actors.daemon.client import DaemonClient
from dsh_actors.errors import UsageError
from dsh_actors.task_spec import chosen_session_id

__all__ = ["APPROVE", "CANCEL", "DISPOSE", "FORK"]

_FORK_POINT = re.compile(r"(.+)@(\d{1,15})", re.DOTALL)


@click.command("cancel")
@click.argument("agent_id", metavar="ID")
@click.option("--keep-inbox", is_flag=True, help="Keep the messages that wait for a turn.")
@daemon_options
def cancel(agent_id: str, keep_inbox: bool, socket: str | None, as_json: bool) -> int:
    """Stop what the agent does. It stays, and takes new messages."""
    with connect(socket) as client:
        client.cancel(agent_id, keep_inbox=keep_inbox)
    if as_json:
        write_json({"id": agent_id, "cancelled": True})
    return 0


@click.command("approve")
@click.argument("agent_id", metavar="ID")
@click.argument("approval")
@click.option("--deny", is_flag=True, help="Refuse the call instead; the model is told.")
@daemon_options
def approve(agent_id: str, approval: str, deny: bool, socket: str | None, as_json: bool) -> int:
    """Allow the call that agent ID asks for as APPROVAL. Open ones: dsh agent approvals"""
    with connect(socket) as client:
        _require_question(client, agent_id, approval)
        client.decide(approval, allow=not deny)
    if as_json:
        write_json({"id": agent_id, "approval": approval, "decision": "deny" if deny else "allow"})
    return 0


def _require_question(client: DaemonClient, agent_id: str, approval: str) -> None:
    """An answer must not go to a question of another agent."""
    owners = {each.get("id"): each.get("agent") for each in client.approvals()}
    if owners.get(approval) != agent_id:
        client.agent(agent_id)  # says so when there is no such agent
        raise UsageError(
            f"agent {agent_id} has no open question {approval}",
            hint="it may be answered or past its deadline; see: dsh agent approvals",
        )


@click.command("fork")
@click.argument("agent_id", metavar="ID[@SEQ]")
@click.argument("prompt", required=False)
@click.option("--session-id", metavar="NEW", help="The id of the new agent.")
@daemon_options
def fork(agent_id: str, prompt: str | None, session_id: str | None, socket: str | None, as_json: bool) -> int:
    """Begin a new agent with a copy of this one's session, whole or up to event SEQ; print its id."""
    if session_id is not None:
        chosen_session_id(session_id)
    text = None if prompt is None else argument_text(prompt)
    if text is not None and not text.strip():
        raise UsageError("the prompt is blank", hint="leave it out to copy only")
    point = _FORK_POINT.fullmatch(agent_id)
    source, at_seq = (point[1], int(point[2])) if point else (agent_id, None)
    with connect(socket) as client:
        made = client.fork(source, at_seq=at_seq, session_id=session_id, prompt=text)
    if as_json:
        write_json(made)
    else:
        write_text(str(made.get("id")))
    return 0


@click.command("dispose")
@click.argument("agent_ids", metavar="ID...", nargs=-1, required=True)
@daemon_options
def dispose(agent_ids: tuple[str, ...], socket: str | None, as_json: bool) -> int:
    """End agents and forget them. Their sessions stay: see dsh session."""
    with connect(socket) as client:
        for agent_id in agent_ids:
            client.dispose(agent_id)
            if as_json:
                write_json({"id": agent_id, "disposed": True})
    return 0


CANCEL, APPROVE, FORK, DISPOSE = cancel, approve, fork, dispose
