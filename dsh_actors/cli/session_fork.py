"""`dsh session fork`: branch a stored session at an event, without running anything."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import click

from dsh_actors.adapters.storage.importing import store_session
from dsh_actors.cli.session_common import (
    as_json_option,
    now_ms,
    storage,
    write_json,
    write_text,
)
from dsh_actors.core.events import Event
from dsh_actors.core.fork import plan_fork
from dsh_actors.core.ids import SessionId, dated_session_id
from dsh_actors.errors import SessionExists
from dsh_actors.ports import SessionStorage
from dsh_actors.task_spec import chosen_session_id, fork_point, session_exists

__all__ = ["COMMAND"]


class _Stored:
    """The events of a session, as often as they are asked for."""

    def __init__(self, sessions: SessionStorage, session_id: SessionId) -> None:
        self._sessions = sessions
        self._session_id = session_id

    def __iter__(self) -> Iterator[Event]:
        return self._sessions.read(self._session_id)


@click.command("fork", short_help="Branch a session without running anything.")
@click.argument("session", metavar="ID[@SEQ]")
@click.option("--session-id", metavar="NEW", help="The id of the new session.")
@as_json_option
def fork(session: str, session_id: str | None, as_json: bool) -> int:
    """Make a new session of the events up to SEQ (default: all) and print its id."""
    sessions = storage(reading=False)
    source, at_seq = fork_point(sessions, session)
    at_ms = now_ms()
    if session_id is not None:
        child = chosen_session_id(session_id)
    else:
        child = dated_session_id(at_ms, secrets.token_hex(4))
    if session_exists(sessions, child):
        raise SessionExists(f"session {child!r} exists already", hint="choose another id")
    header, events = plan_fork(sessions.header(source), _Stored(sessions, source), child, at_seq, at_ms)
    count = store_session(sessions, header, events)
    if as_json:
        write_json({"id": child, "parent": source, "seed_length": header.seed_length, "events": count})
    else:
        write_text(child)
    return 0


COMMAND = fork
