"""`dsh session path`: where a session is on disk."""

from __future__ import annotations

import os

import click

from dsh_actors.cli.session_common import storage
from dsh_actors.core.ids import SessionId

__all__ = ["COMMAND"]


@click.command("path")
@click.argument("session")
def path(session: str) -> int:
    """Print the directory of a session."""
    click.echo(os.fsencode(storage().path(SessionId(session))))
    return 0


COMMAND = path
