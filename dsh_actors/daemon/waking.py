"""Bringing agents up: new ones, sleeping ones, and those whose run the end of a process has cut.

Everything here may wait. Whoever calls it holds the agent's door.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dsh_actors.actors.protocol import Setup
from dsh_actors.core.options import AgentOptions, LimitBase
from dsh_actors.daemon.interrupted import NOT_STORED, CutRun, read_cut_run
from dsh_actors.daemon.kept_options import options_from_json, options_to_json
from dsh_actors.daemon.live import LiveAgent, base_to_json, limit_base_of
from dsh_actors.daemon.live_table import DISPOSE_S, LiveTable
from dsh_actors.daemon.registry import AgentRow
from dsh_actors.errors import (
    ActorGone,
    AgentNotFound,
    SessionCorrupt,
    SessionNotFound,
    SessionUnsupported,
    UsageError,
)
from dsh_actors.runtime.files import run_native

if TYPE_CHECKING:
    from dsh_actors.handle import AgentHandle

__all__ = ["awake", "create", "cut_run"]

BringUp = Callable[[Setup], "AgentHandle"]

_FATAL = (SessionCorrupt, SessionUnsupported, SessionNotFound, UsageError)
"""What a later try will not change by itself."""

_GO_ON = (
    "The process that runs you was stopped in the middle of your turn and has started again. Calls that were "
    "under way have been closed; where their results say that the outcome is unknown, look before you repeat "
    "them. Go on with the task."
)

_WORK_CUT = (
    "The process that runs you was stopped and has started again. What you had started and were to hear of "
    "after your turn was ended with it: {}. Look at what it came to, start it again where it is needed, and "
    "go on with the task."
)


def create(table: LiveTable, options: AgentOptions, bring_up: BringUp) -> LiveAgent:
    """Bring a new agent up and give it a row; nothing stays of it where that fails."""
    table.require_open()
    table.room.take()
    try:
        live = LiveAgent(table, _blank_row(), options.limits)
        handle = live.handle = bring_up(live.setup)
        try:
            _describe(table, live)
            table.require_open()  # nobody would end it any more
            table.writer.save(live.row, options_to_json(options))
            if table.closing:  # meanwhile, and its agents are counted already
                table.writer.remove(live.row.id)
                table.require_open()
        except BaseException:
            handle.dispose(DISPOSE_S)
            raise
    except BaseException:
        table.room.give_back()
        raise
    _enter(table, live)
    return live


def awake(table: LiveTable, agent_id: str, wait_s: float | None = None) -> LiveAgent:
    """The live agent, woken if need be. A run of it that was cut goes on.

    Raises `AgentNotFound`, `HostFull`, `SessionBusy` while another process has the session, `ActorGone`
    where the agent or the host is just ending, and what `Harness.resume` raises; where trying again does not
    help the agent is failed then.
    """
    table.require_open()
    live = table.live.get(agent_id)
    if live is not None:
        if live.going:
            raise ActorGone(f"agent {agent_id} has just ended: {live.row.error}")
        return live
    row = table.read(agent_id)
    table.room.take(wait_s)
    try:
        live, cut = _resume(table, row)
    except BaseException as error:
        table.room.give_back()
        if isinstance(error, _FATAL):
            table.fail(row, error.message)
        raise
    _enter(table, live)
    if cut is not None:
        _go_on(table, live, cut)
    return live


def _resume(table: LiveTable, row: AgentRow) -> tuple[LiveAgent, CutRun | None]:
    kept = run_native(table.registry.options, row.id)
    if kept is None:
        raise AgentNotFound(f"there is no agent {row.id}")
    cut = None
    if row.run_from is not None:
        cut = cut_run(table, row)
    base = limit_base_of(row, cut.fold if cut is not None else None)
    options = options_from_json(kept, base)
    live = LiveAgent(table, row, options.limits)
    live.handle = _open(table, row, options, live.setup)
    try:
        status = live.handle.status()
        row.turn, row.next_turn, row.next_step = status.turn, status.next_turn, status.next_step
        live.next_seq = status.next_seq
        table.require_open()  # nobody would end it any more
    except BaseException:
        live.handle.dispose(DISPOSE_S, keep_inbox=True)
        raise
    return live, cut


def cut_run(table: LiveTable, row: AgentRow) -> CutRun:
    """What the log has of the run of ``row`` that the end of a process has cut.

    Where its first message had not reached the disk, there is no log: the row forgets what it was to become.
    Raises what reading a session raises.
    """
    cut = read_cut_run(table.harness.read_from(row.id, row.run_from or 0), table.price_of)
    if not cut.has_log and not row.run_from and not row.tokens:
        row.turn = row.next_turn = row.next_step = 0
        row.title = None
    return cut


def _open(table: LiveTable, row: AgentRow, options: AgentOptions, setup: Setup) -> AgentHandle:
    try:
        return table.harness.resume(row.id, options, setup)
    except SessionNotFound:
        if row.turn or row.next_turn or row.next_step or row.run_from:
            raise
        # Nothing was ever said to it, so that there is no session yet.
        return table.harness.create(replace(options, session_id=row.id), setup)


def _describe(table: LiveTable, live: LiveAgent) -> None:
    """Fill the row of a new agent."""
    handle, row, now = live.handle, live.row, table.now_ms()
    status = handle.status()
    row.id, row.cwd, row.model = handle.id, handle.header.cwd or "", handle.model
    row.parent = handle.header.parent_session
    row.turn, row.next_turn, row.next_step = status.turn, status.next_turn, status.next_step
    row.base = base_to_json(handle.limit_base())
    row.created = row.updated = now
    live.next_seq = status.next_seq


def _enter(table: LiveTable, live: LiveAgent) -> None:
    row = live.row
    row.state, row.error = "idle", None
    table.live[row.id] = live
    live.subscribers = table.subscribers.get(row.id)
    table.room.is_idle(row.id)
    table.changed(live)


def _go_on(table: LiveTable, live: LiveAgent, cut: CutRun) -> None:
    """Take up the run that the end of a process has cut."""
    live.take_up_run(cut.fold)
    table.room.is_busy(live.row.id)
    if cut.is_open:
        live.handle.steer(_GO_ON)
    elif cut.left:
        live.handle.steer(_WORK_CUT.format(", ".join(cut.left)))
    elif live.row.next_turn or (live.row.next_step and not cut.fold.has_ended):
        live.handle.wake()
    else:
        table.run_over(live, *(() if cut.is_begun else ("interrupted", NOT_STORED)))


def _blank_row() -> AgentRow:
    no_base = base_to_json(LimitBase())
    return AgentRow("", "idle", None, "", "", None, 0, 0, 0, 0, 0.0, None, 0, 0, None, None, no_base, None, 0)
