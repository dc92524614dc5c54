"""`dsh help`: the contracts that scripts rely on, and the help of each command."""

from __future__ import annotations

import json

import click

from dsh_actors.core.exit_codes import EXIT_TABLE, SIGNAL_CODES, ExitCode
from dsh_actors.errors import UsageError

__all__ = ["COMMAND", "exit_code_lines"]

TOPICS: tuple[str, ...] = ("exit-codes", "events", "results")


def exit_code_lines() -> list[str]:
    """The table of exit codes as text, one row a code with its reasons below."""
    lines = []
    for row in EXIT_TABLE:
        lines.append(f"{_codes(row):>13}  {row.name:<9}  {row.meaning}")
        if row.reasons != (row.name,):
            lines.append(f"{'':>13}  {'':<9}  reasons: {', '.join(row.reasons)}")
    return lines


def _codes(row: ExitCode) -> str:
    return ", ".join(map(str, sorted(SIGNAL_CODES.values()))) if row.name == "signal" else str(row.code)


@click.command("help", short_help="Explain a command, exit-codes, events or results.")
@click.argument("topic", nargs=-1, metavar="[COMMAND... | TOPIC]")
@click.pass_context
def COMMAND(ctx: click.Context, topic: tuple[str, ...]) -> int:
    """Explain a command such as `session ls`, or a topic: exit-codes, events (of run), results (of batch)."""
    parent = ctx.parent or ctx
    match topic:
        case ():
            click.echo(parent.get_help())
        case ("exit-codes",):
            click.echo("\n".join(exit_code_lines()))
        case ("events",):
            from dsh_actors.cli.event_schema import line_schema

            click.echo(json.dumps(line_schema(), indent=2))
        case ("results",):
            from dsh_actors.cli.batch_schema import result_schema

            click.echo(json.dumps(result_schema(), indent=2))
        case _:
            _explain(parent, topic)
    return 0


def _explain(parent: click.Context, words: tuple[str, ...]) -> None:
    """Print the help of the command that the words name, from group to group. Raises `UsageError`."""
    topics = TOPICS
    for position, word in enumerate(words):
        group, named = parent.command, " ".join(words[: position + 1])
        if not isinstance(group, click.Group):
            raise UsageError(f"no help on {named!r}; {' '.join(words[:position])} has no subcommands")
        command = group.get_command(parent, word)
        if command is None:
            from dsh_actors.config import nearest

            known = [*topics, *group.list_commands(parent)]
            raise UsageError(f"no help on {named!r}; {nearest(word, known)}")
        parent, topics = click.Context(command, info_name=word, parent=parent), ()
    click.echo(parent.get_help())
