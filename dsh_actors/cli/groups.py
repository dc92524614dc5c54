"""Groups of commands; each command lives in a module of its own that is imported when the command is used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from dsh_actors.errors import UsageError

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """Commands by name, imported late. ``modules``: where each one's ``COMMAND`` is, or ``module:NAME``."""

    def __init__(self, name: str, modules: Mapping[str, str], **options: Any) -> None:
        super().__init__(name, **options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self._modules.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name or "COMMAND")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises `UsageError` for a name that is none of them, with the nearest one."""
        name = args[0]
        if name not in self._modules and not name.startswith("-"):
            from dsh_actors.config import nearest

            named = name if ctx.parent is None else f"{self.name} {name}"
            raise UsageError(f"no command {named!r}; {nearest(name, self._modules)}")
        return super().resolve_command(ctx, args)
