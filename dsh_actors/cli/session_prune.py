"""`dsh session prune`: remove stored sessions by age, number and size. Sessions in use are never touched."""

from __future__ import annotations

import re

import click

from dsh_actors.adapters.storage.backend import DiskStorage
from dsh_actors.cli.session_common import (
    as_json_option,
    flush,
    images,
    note,
    now_ms,
    size_text,
    storage,
    time_text,
    write_json,
    write_text,
)
from dsh_actors.cli.session_images import sweep
from dsh_actors.core.retention import KeptSession, Retention, choose
from dsh_actors.errors import SessionBusy, SessionError, SessionNotFound, UsageError
from dsh_actors.ports import SessionListing

__all__ = ["COMMAND", "parse_age", "parse_size"]

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(?:i?b)?")
_MOST = float(2**62)
"""More than there is of either; digits without end are infinite as a float."""

_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


def parse_age(text: str) -> int:
    """Milliseconds of a duration with the unit s, m, h, d or w. Raises `UsageError`."""
    found = _AGE.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"--older-than: {text!r} is not a duration such as 90s, 12h, 30d or 8w")
    return _whole(float(found[1]) * _SECONDS[found[2]] * 1000)


def parse_size(text: str) -> int:
    """Bytes of a size such as ``500M`` or ``2G`` (powers of 1024). Raises `UsageError`."""
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"--max-bytes: {text!r} is not a size such as 500M or 2G")
    return _whole(float(found[1]) * _BYTES[found[2]])


def _whole(amount: float) -> int:
    return round(min(amount, _MOST))


@click.command("prune", short_help="Remove sessions by age, number and size.")
@click.option("--older-than", metavar="DURATION", help="Remove what did not change for so long (30d, 12h).")
@click.option("--keep", type=click.IntRange(min=0), metavar="N", help="The newest N stay in any case.")
@click.option("--max-bytes", metavar="SIZE", help="Then remove the oldest until the rest fits (500M, 2G).")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@as_json_option
def prune(
    older_than: str | None, keep: int | None, max_bytes: str | None, dry_run: bool, as_json: bool
) -> int:
    """Remove stored sessions, the oldest first.

    With --keep alone all but the newest N go. A sub-agent's session goes with its parent's. Images that no
    session refers to and that were not used for a day go too.
    """
    rule = Retention(
        None if older_than is None else parse_age(older_than),
        keep,
        None if max_bytes is None else parse_size(max_bytes),
    )
    if rule == Retention():
        raise UsageError("say what may go: --older-than DURATION, --keep N or --max-bytes SIZE")
    stored = storage(reading=False)
    chosen = choose([_kept(stored, listing) for listing in stored.list()], rule, now_ms())
    count, freed, failure = 0, 0, None
    for session in chosen:
        try:
            if dry_run:
                stored.require_removable(session.id)
            else:
                stored.delete(session.id)
        except (SessionBusy, SessionNotFound):
            continue  # used again, or removed by somebody else, since it was chosen
        except SessionError as error:
            failure = failure or error
            continue
        count, freed = count + 1, freed + session.size
        _write_line(session, dry_run, as_json)
    swept = None if dry_run else _sweep_images(stored)
    if as_json:
        gone = {} if swept is None else {"images": swept[0], "image_bytes": swept[1]}
        write_json({"total": {"sessions": count, "bytes": freed, "dry_run": dry_run, **gone}})
    else:
        write_text(f"{'would remove' if dry_run else 'removed'} {count} sessions, {size_text(freed)}")
        if swept is not None:
            write_text(f"removed {swept[0]} images that no session refers to, {size_text(swept[1])}")
    if failure is not None:
        flush()
        raise failure
    return 0


def _sweep_images(stored: DiskStorage) -> tuple[int, int] | None:
    """Remove images that nothing refers to any more; None where there was none."""
    try:
        swept = sweep(stored, images())
    except SessionError as error:
        note(f"images stay, as a session cannot be read: {error.message}")
        return None
    return swept if swept[0] else None


def _kept(stored: DiskStorage, listing: SessionListing) -> KeptSession:
    try:
        header = stored.header(listing.id)
        parent = header.parent_session if header.origin == "subagent" else None
    except SessionError:
        parent = None  # damaged: it stands for itself
    return KeptSession(listing.id, parent, listing.updated, _size(stored, listing), listing.status)


def _size(stored: DiskStorage, listing: SessionListing) -> int:
    try:
        return stored.size(listing.id)
    except SessionError:
        return 0  # it went away, or its directory cannot be told


def _write_line(session: KeptSession, dry_run: bool, as_json: bool) -> None:
    if as_json:
        row = {"id": session.id, "updated": session.updated, "bytes": session.size, "status": session.status}
        write_json({**row, "dry_run": dry_run})
        return
    verb = "would remove" if dry_run else "removed"
    write_text(
        f"{verb} {session.id}  {time_text(session.updated)}  {session.status}  {size_text(session.size)}"
    )


COMMAND = prune
