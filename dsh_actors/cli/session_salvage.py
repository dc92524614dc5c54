"""`dsh session salvage`: copy what is readable of a damaged session to a new one. The source stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import click

from dsh_actors.adapters.storage.importing import store_session
from dsh_actors.cli.places import working_directory
from dsh_actors.cli.session_common import as_json_option, storage, write_json, write_text
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.salvage import Damage, Loss, Salvager
from dsh_actors.errors import SessionBusy, SessionCorrupt, SessionExists
from dsh_actors.ports import SessionStorage
from dsh_actors.task_spec import chosen_session_id, session_exists

if TYPE_CHECKING:
    from dsh_actors.adapters.storage.salvage import DamagedLog
    from dsh_actors.adapters.storage.sqlite_damage import DamagedRows

__all__ = ["COMMAND"]


@click.command("salvage", short_help="Copy what is readable of a damaged session.")
@click.argument("session")
@click.option("--to", "new_id", metavar="NEW_ID", help="The id of the copy [default: SESSION-salvaged].")
@click.option("-C", "--cwd", metavar="DIR", help="Its directory, where the one recorded is lost.")
@as_json_option
def salvage(session: str, new_id: str | None, cwd: str | None, as_json: bool) -> int:
    """Copy what is readable of a session to a new one and list what is missing.

    All before the first loss is copied as it is. Behind a loss the copy goes on with the next whole
    turn, or step of the open turn; events are numbered anew, and citations of lost events dropped.
    """
    stored = storage(reading=False)
    if stored.is_in_use(SessionId(session)):
        raise SessionBusy(f"session {session!r} is in use", hint="wait for its run to end")
    target = chosen_session_id(new_id) if new_id is not None else _free_id(stored, session)
    if session_exists(stored, target):
        raise SessionExists(f"session {target!r} exists already", hint="choose another id with --to")
    log = stored.damaged(SessionId(session))
    header = log.header(working_directory(cwd) if cwd is not None else None)
    # Two passes: the header of the copy says how long its inherited part is.
    rehearsal = Salvager(header)
    for _event in _salvaged(log, rehearsal):
        continue
    if not rehearsal.has_kept:
        raise SessionCorrupt(f"no event of session {session!r} can be read", hint="put back a copy of it")
    copy_header = replace(header, id=target, seed_length=rehearsal.seed_length)
    salvager = Salvager(header)
    kept = store_session(stored, copy_header, _salvaged(log, salvager))
    _report(header, target, kept, salvager.losses, as_json)
    return 0


def _salvaged(log: DamagedLog | DamagedRows, salvager: Salvager) -> Iterator[Event]:
    for item in log.items():
        if isinstance(item, Event):
            yield from salvager.take(item)
        elif isinstance(item, Damage):
            salvager.damage(item)
    yield from salvager.finish()


def _free_id(stored: SessionStorage, session: str) -> SessionId:
    for number in count(1):
        name = SessionId(f"{session}-salvaged" + (f"-{number}" if number > 1 else ""))
        if not session_exists(stored, name):
            return name
    raise AssertionError("count() ends never")


def _report(header: SessionHeader, target: SessionId, kept: int, losses: list[Loss], as_json: bool) -> None:
    if as_json:
        gaps = [loss.to_json() for loss in losses]
        write_json({"id": target, "from": header.id, "events": kept, "gaps": gaps})
        return
    write_text(f"{target}: {kept} events of {header.id}, {len(losses) or 'no'} gaps")
    for loss in losses:
        write_text(f"  {_missing(loss)}: {loss.reason}")
        for damage in loss.damages:
            where = f"{damage.place} at byte {damage.offset}, {damage.size} bytes"
            write_text(f"    {where}: {damage.reason}")


def _missing(loss: Loss) -> str:
    if loss.first is None:
        return "no events missing"
    if loss.last is None:
        return f"events from {loss.first} on"
    return f"events {loss.first} to {loss.last}"


COMMAND = salvage
