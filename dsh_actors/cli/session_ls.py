"""`dsh session ls`: one line a stored session, the newest first. Damage never stops the list."""

from __future__ import annotations

import click

from dsh_actors.adapters.storage.backend import DiskStorage
from dsh_actors.cli.failures import describe_error, one_line
from dsh_actors.cli.places import working_directory
from dsh_actors.cli.session_common import (
    as_json_option,
    configuration,
    note,
    time_text,
    write_json,
    write_text,
)
from dsh_actors.cli.stored import listings, open_storage
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionError, SessionNotFound, StorageError
from dsh_actors.ports import SessionListing

__all__ = ["COMMAND"]

_MOST = 1 << 62
"""More than there can be, and still a number that every library takes."""


@click.command("ls")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="No more than this many, the newest first.")
@click.option("--here", is_flag=True, help="Only sessions of the current directory.")
@click.option("--all", "with_agents", is_flag=True, help="Sub-agents' sessions, too.")
@as_json_option
def ls(limit: int | None, here: bool, with_agents: bool, as_json: bool) -> int:
    """List sessions, the newest first."""
    cwd = working_directory(None) if here else None
    config = configuration()
    seen: set[SessionId] = set()
    most = None if limit is None else min(limit, _MOST)
    for listing in listings(config, cwd, most, roots_only=not with_agents):
        if as_json:
            write_json({name: getattr(listing, name) for name in SessionListing.__dataclass_fields__})
        else:
            write_text(_as_text(listing))
        if listing.status == "corrupt" or listing.id in seen:
            _explain(open_storage(config), listing.id)
        seen.add(listing.id)
    return 0


def _explain(stored: DiskStorage, session_id: SessionId) -> None:
    """Say so where what is wrong is no damage: a session that is there twice, or may not be read."""
    try:
        stored.path(session_id)
    except SessionNotFound:
        return  # removed meanwhile
    except SessionError as error:
        note(describe_error(error))
        return
    try:
        stored.header(session_id)
    except StorageError as error:
        note(describe_error(error))
    except SessionError:
        return  # damage, which the list tells of


def _as_text(listing: SessionListing) -> str:
    when = time_text(listing.updated)
    state = f"{listing.status:<11}  {listing.turns:>3} turns"
    whose = f"  (sub-agent of {listing.parent})" if listing.parent else ""
    return one_line(f"{listing.id}  {when}  {state}  {listing.cwd or '-'}  {listing.title or '-'}{whose}")


COMMAND = ls
