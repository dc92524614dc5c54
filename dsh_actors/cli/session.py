"""`dsh session`: look at and look after stored sessions."""

from __future__ import annotations

from dsh_actors.cli.groups import LazyGroup

__all__ = ["COMMAND"]

COMMANDS = {
    "ls": "dsh_actors.cli.session_ls",
    "search": "dsh_actors.cli.session_search",
    "show": "dsh_actors.cli.session_show",
    "path": "dsh_actors.cli.session_path",
    "stats": "dsh_actors.cli.session_stats",
    "export": "dsh_actors.cli.session_export",
    "import": "dsh_actors.cli.session_import",
    "fork": "dsh_actors.cli.session_fork",
    "verify": "dsh_actors.cli.session_verify",
    "salvage": "dsh_actors.cli.session_salvage",
    "prune": "dsh_actors.cli.session_prune",
}

COMMAND = LazyGroup("session", COMMANDS, help="Look at and look after stored sessions.")
