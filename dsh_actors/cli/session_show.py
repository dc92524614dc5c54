"""`dsh session show`: a session on the terminal, as text or as its events."""

from __future__ import annotations

import click

from dsh_actors.cli.session_common import storage, write, write_json
from dsh_actors.cli.transcript import markdown
from dsh_actors.core.ids import SessionId

__all__ = ["COMMAND"]


@click.command("show")
@click.argument("session")
@click.option("--json", "as_json", is_flag=True, help="The stored events, one JSON object a line.")
def show(session: str, as_json: bool) -> int:
    """Print a session as text, or its events."""
    sessions, session_id = storage(), SessionId(session)
    if as_json:
        for event in sessions.read(session_id):
            write_json(event.to_json())
        return 0
    header = sessions.header(session_id)
    for piece in markdown(header, sessions.read(session_id)):
        write(piece.encode("utf-8", "backslashreplace"))
    return 0


COMMAND = show
