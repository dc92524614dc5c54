"""One line of ``dsh session ls`` for a session on disk. Damage of any kind becomes a status."""

from __future__ import annotations

import os

from dsh_actors.adapters.storage.layout import LOCK_NAME, LOG_NAME, SESSION_PARTS, id_of_name
from dsh_actors.adapters.storage.lock import is_held
from dsh_actors.adapters.storage.recovery import Batch, LogReader
from dsh_actors.adapters.storage.segments import segment_names
from dsh_actors.adapters.storage.summary import SessionSummary
from dsh_actors.core.events import SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import EventRefused, SessionCorrupt, SessionError, SessionUnsupported
from dsh_actors.ports import SessionListing

__all__ = ["list_session"]

_MAX_ATTEMPTS = 5


def list_session(directory: str, updated_ms: int) -> SessionListing:
    """Raises nothing. ``updated_ms`` is when the session last changed."""
    seen = None
    for _ in range(_MAX_ATTEMPTS):
        summary, header, status, now_seen = _summarise(directory)
        # Its writer may have been taking a write back: damage counts once it is seen twice unchanged.
        if status != "corrupt" or now_seen == seen:
            break
        seen = now_seen
    if not status:
        status = "live" if is_held(os.path.join(directory, LOCK_NAME)) else summary.status
    session_id = SessionId(id_of_name(os.path.basename(directory))) if header is None else header.id
    return SessionListing(
        session_id,
        None if header is None else header.cwd,
        summary.title,
        updated_ms if header is None else header.created_at,
        updated_ms,
        summary.turns,
        status,
        None if header is None else header.agent_above,
    )


def _summarise(
    directory: str,
) -> tuple[SessionSummary, SessionHeader | None, str, tuple[object, ...]]:
    """The fold of a log, its header, what is wrong with it, and which state of it was read."""
    summary, reader, header = SessionSummary(), None, None
    try:
        if _has_no_bytes(directory):
            return summary, None, "empty", ()
        reader = LogReader(directory)
        header = reader.header()
        for batch in reader.batches():
            _observe(summary, batch)
    except SessionUnsupported:
        return summary, header, "unsupported", ()
    except (SessionError, EventRefused, OSError):
        return summary, header, "corrupt", () if reader is None else reader.seen
    return summary, header, "", ()


def _observe(summary: SessionSummary, batch: Batch) -> None:
    try:
        summary.observe_lines(batch.lines)
    except EventRefused:
        if not batch.is_torn:
            raise


def _has_no_bytes(directory: str) -> bool:
    names = set(os.listdir(directory))
    if names - SESSION_PARTS and LOG_NAME not in names:
        raise SessionCorrupt(f"{directory} is no session")
    log = os.path.join(directory, LOG_NAME)
    if not os.path.isdir(log):
        return True
    paths = [os.path.join(log, name) for name in segment_names(log)]
    return all(os.path.isfile(path) and os.path.getsize(path) == 0 for path in paths)
