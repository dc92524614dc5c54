"""`dsh agent`: speaks to the daemon, from any shell."""

from __future__ import annotations

from dsh_actors.cli.groups import LazyGroup

__all__ = ["COMMAND"]

COMMANDS = {
    "create": "dsh_actors.cli.agent_create",
    "send": "dsh_actors.cli.agent_send:SEND",
    "steer": "dsh_actors.cli.agent_send:STEER",
    "inject": "dsh_actors.cli.agent_send:INJECT",
    "cancel": "dsh_actors.cli.agent_change:CANCEL",
    "wait": "dsh_actors.cli.agent_wait",
    "status": "dsh_actors.cli.agent_look:STATUS",
    "ls": "dsh_actors.cli.agent_look:LS",
    "events": "dsh_actors.cli.agent_events",
    "approvals": "dsh_actors.cli.agent_look:APPROVALS",
    "approve": "dsh_actors.cli.agent_change:APPROVE",
    "fork": "dsh_actors.cli.agent_change:FORK",
    "dispose": "dsh_actors.cli.agent_change:DISPOSE",
}

COMMAND = LazyGroup(
    "agent", COMMANDS, help="Create, steer, watch and end the agents of the daemon (dsh serve)."
)
