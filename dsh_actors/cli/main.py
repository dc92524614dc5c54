"""The command group. Every outcome and every error becomes an exit code here, through one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dsh_actors import __version__
from dsh_actors.cli.failures import report
from dsh_actors.cli.groups import LazyGroup
from dsh_actors.cli.stopping import raising_signals
from dsh_actors.cli.streams import STREAMS
from dsh_actors.core.exit_codes import exit_code_of

__all__ = ["main"]

COMMANDS = {
    "run": "dsh_actors.cli.run",
    "serve": "dsh_actors.cli.serve",
    "agent": "dsh_actors.cli.agent",
    "batch": "dsh_actors.cli.batch",
    "script": "dsh_actors.cli.script",
    "session": "dsh_actors.cli.session",
    "models": "dsh_actors.cli.models_cmd",
    "config": "dsh_actors.cli.config_cmd",
    "doctor": "dsh_actors.cli.doctor",
    "help": "dsh_actors.cli.help_cmd",
}

GROUP = LazyGroup(
    "dsh",
    COMMANDS,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=lambda ctx, _param, wanted: _show_version(ctx, wanted),
            help="Show the version and exit.",
        )
    ],
    help="Run agents on the files at hand, without a person in between.",
    epilog="Exit codes: dsh help exit-codes",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(ctx: click.Context, wanted: bool) -> None:
    if wanted:
        click.echo(f"dsh {__version__}")
        ctx.exit()


def main(arguments: Sequence[str], *, stdin_missing: bool = False) -> int:
    """Run one command; the exit code. Nothing is raised, whatever happens."""
    STREAMS.prepare(stdin_missing=stdin_missing)
    try:
        with raising_signals():
            code = _invoke(list(arguments))
            STREAMS.flush()
        return code
    except BaseException as error:
        # The last line of defence: whatever a command let through becomes one line and a code.
        return report(error)


def _invoke(arguments: list[str]) -> int:
    try:
        with GROUP.make_context("dsh", arguments) as context:
            result: Any = GROUP.invoke(context)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return exit_code_of("usage")
    except click.exceptions.Exit as leave:
        return leave.exit_code
    return result if isinstance(result, int) else 0
