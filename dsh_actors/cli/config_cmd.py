"""`dsh config`: what is in force, and where each value came from."""

from __future__ import annotations

import os

import click

from dsh_actors.cli.failures import display, one_line
from dsh_actors.cli.lines import json_line
from dsh_actors.cli.places import working_directory
from dsh_actors.config import Config, load_config
from dsh_actors.task_spec import require_preset

__all__ = ["COMMAND"]

COMMAND = click.Group("config", help="Show the configuration in force.")


@COMMAND.command("show")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def show(as_json: bool) -> int:
    """Print each value with its origin. Keys of providers are never shown."""
    config: Config = load_config(cwd=working_directory(None))
    require_preset(config)
    rows = list(config.rows())
    if as_json:
        for name, value, origin in rows:
            shown = display(value) if isinstance(value, str) else value
            row = {"name": name, "value": shown, "origin": display(origin)}
            click.echo(json_line(row).decode(), nl=False)
        return 0
    width = max(len(name) for name, _, _ in rows)
    for name, value, origin in rows:
        click.echo(one_line(f"{name:<{width}} = {_shown(value)}  ({origin})"))
    return 0


def _shown(value: object) -> str:
    match value:
        case None:
            return "unset"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
    return str(value)


@COMMAND.command("path")
def path() -> int:
    """Print the files that are read, in order; the first is the user's own."""
    config = load_config(cwd=working_directory(None))
    own = [f"{config.home}/config.toml"] if config.home else []
    for name in dict.fromkeys([*own, *config.files]):
        click.echo(os.fsencode(name))  # for programs: the bytes of the system, whatever they are
    if not own:
        click.echo(display(f"no home: {config.home_problem}"), err=True)
    return 0
