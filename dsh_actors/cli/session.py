"""`dsh session`: list, show, export and find stored sessions. Only reads; damage never stops the list."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import click

from dsh_actors.cli.options import working_directory
from dsh_actors.cli.render import json_line, write_atomically
from dsh_actors.cli.stored import listings, open_storage
from dsh_actors.cli.transcript import markdown
from dsh_actors.config import load_config
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import StorageError
from dsh_actors.ports import SessionListing, SessionStorage

__all__ = ["COMMAND"]

COMMAND = click.Group("session", help="Look at stored sessions.")


def _storage() -> SessionStorage:
    return open_storage(load_config(cwd=working_directory(None)))


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)


@COMMAND.command("ls")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="No more than this many, the newest first.")
@click.option("--here", is_flag=True, help="Only sessions of the current directory.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def ls(limit: int | None, here: bool, as_json: bool) -> int:
    """List sessions, the newest first."""
    cwd = working_directory(None) if here else None
    for listing in listings(load_config(cwd=working_directory(None)), cwd, limit):
        if as_json:
            _write(json_line(_as_json(listing)))
        else:
            _write(f"{_as_text(listing)}\n".encode("utf-8", "backslashreplace"))
    return 0


def _as_json(listing: SessionListing) -> dict[str, object]:
    return {name: getattr(listing, name) for name in SessionListing.__dataclass_fields__}


def _as_text(listing: SessionListing) -> str:
    when = _time(listing.updated)
    title = listing.title or "-"
    state = f"{listing.status:<11}  {listing.turns:>3} turns"
    return f"{listing.id}  {when}  {state}  {listing.cwd or '-'}  {title}"


def _time(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "?"


@COMMAND.command("show")
@click.argument("session")
@click.option("--json", "as_json", is_flag=True, help="The stored events, one JSON object a line.")
def show(session: str, as_json: bool) -> int:
    """Print a session as text, or its events."""
    for piece in _events(session) if as_json else _text(session):
        _write(piece)
    return 0


@COMMAND.command("export")
@click.argument("session")
@click.option(
    "--format", "form", type=click.Choice(["jsonl", "markdown"]), default="jsonl", show_default=True
)
@click.option("-o", "--output", metavar="FILE", help="Write to a file instead, atomically.")
def export(session: str, form: str, output: str | None) -> int:
    """Print a session whole: its header and every event as JSON lines, or as Markdown."""
    pieces = _plain_layout(session) if form == "jsonl" else _text(session)
    if output is None:
        for piece in pieces:
            _write(piece)
        return 0
    try:
        write_atomically(output, b"".join(pieces))
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}") from error
    return 0


@COMMAND.command("path")
@click.argument("session")
def path(session: str) -> int:
    """Print the directory of a session."""
    click.echo(_storage().path(SessionId(session)))
    return 0


def _events(session: str) -> Iterator[bytes]:
    for event in _storage().read(SessionId(session)):
        yield json_line(event.to_json())


def _plain_layout(session: str) -> Iterator[bytes]:
    storage = _storage()
    yield json_line({"type": "session", **storage.header(SessionId(session)).to_json()})
    for event in storage.read(SessionId(session)):
        yield json_line(event.to_json())


def _text(session: str) -> Iterator[bytes]:
    storage = _storage()
    header = storage.header(SessionId(session))
    for piece in markdown(header, storage.read(SessionId(session))):
        yield piece.encode("utf-8", "backslashreplace")
