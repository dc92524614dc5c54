"""`dsh session`: look at and look after stored sessions. Each subcommand is a module, imported when used."""

from __future__ import annotations

import importlib

import click

from dsh_actors.errors import UsageError

__all__ = ["COMMAND"]

COMMANDS = {
    "ls": "dsh_actors.cli.session_ls",
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


class SessionGroup(click.Group):
    """Subcommands by name, imported late."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = COMMANDS.get(cmd_name)
        return importlib.import_module(module).COMMAND if module else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            from dsh_actors.config import nearest

            raise UsageError(f"no command 'session {name}'; {nearest(name, COMMANDS)}")
        return super().resolve_command(ctx, args)


COMMAND = SessionGroup("session", help="Look at and look after stored sessions.")
