"""What is left of a run whose process ended before it was over: read from the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dsh_actors.core.events import Event
from dsh_actors.core.outcome import OutcomeFold
from dsh_actors.core.owed_work import OwedWork
from dsh_actors.core.pricing import PriceOf
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import SessionNotFound

__all__ = ["NOT_STORED", "CutRun", "read_cut_run"]

NOT_STORED = "the daemon was stopped before the message was stored; send it again"


@dataclass(frozen=True, slots=True)
class CutRun:
    """``fold`` has what the run came to. ``is_open``: it was cut in the middle of a turn.

    ``is_begun``: the log has something of it. ``has_log``: there is a log at all. ``left``: what the agent
    had started and had not heard the end of when its last turn was over, by id.
    """

    fold: OutcomeFold
    is_open: bool
    is_begun: bool = True
    has_log: bool = True
    left: tuple[str, ...] = ()


def read_cut_run(events: Iterable[Event], price_of: PriceOf) -> CutRun:
    """Fold the events of a run. Raises what reading a session raises; no session yet is no event."""
    fold, work = OutcomeFold(price_of), OwedWork()
    is_open = is_begun = is_done = False
    try:
        for event in events:
            if event.type == "turn/start":
                is_open = True
            elif event.type == "turn/end":
                is_open = _is_cut(event.data["reason"])
                is_done = event.data["reason"]["kind"] == "completed"
            fold.apply(event)
            work.apply(event)
            is_begun = True
    except SessionNotFound:
        return CutRun(OutcomeFold(price_of), is_open=False, is_begun=False, has_log=False)
    return CutRun(fold, is_open, is_begun, left=work.names if is_done else ())


def _is_cut(reason: JsonObject) -> bool:
    """Whether a turn was closed by the end of the process, in order or not, and by nobody else."""
    kind, cause = reason["kind"], reason.get("reason") or {}
    return kind == "interrupted" or (kind == "aborted" and cause.get("kind") == "disposed")
