"""The live agents of the daemon: how they come up, fall asleep, wake, fail, and end.

Whoever calls a method that may wait is in a task and holds the agent's door.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dsh_actors.actors.protocol import Setup
from dsh_actors.core.ids import SessionId
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.outcome import OutcomeFold
from dsh_actors.core.pricing import PriceOf
from dsh_actors.daemon.doors import Doors
from dsh_actors.daemon.info import AgentInfo, end_from_json
from dsh_actors.daemon.interrupted import CutRun, read_cut_run
from dsh_actors.daemon.kept_options import options_from_json, options_to_json
from dsh_actors.daemon.live import LiveAgent, Subscriber, info_of, limit_base_of
from dsh_actors.daemon.registry import AgentRow, Registry
from dsh_actors.daemon.room import Room
from dsh_actors.daemon.row_writer import RowWriter
from dsh_actors.daemon.waits import Waits
from dsh_actors.errors import (
    ActorGone,
    AgentNotFound,
    HarnessError,
    SessionCorrupt,
    SessionNotFound,
    SessionUnsupported,
    UsageError,
    error_chain,
)
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.tasks import TaskEnd, start_task
from dsh_actors.runtime.timers import when_waiting

if TYPE_CHECKING:
    from dsh_actors.handle import AgentHandle
    from dsh_actors.harness import Harness

__all__ = ["LiveTable", "OnChange"]

OnChange = Callable[[AgentInfo], None]
BringUp = Callable[[Setup], "AgentHandle"]

DISPOSE_S = 30.0

_FATAL = (SessionCorrupt, SessionUnsupported, SessionNotFound, UsageError)
"""What a later try will not change by itself."""

_GO_ON = (
    "The process that runs you was stopped in the middle of your turn and has started again. Calls that were "
    "under way have been closed; where their results say that the outcome is unknown, look before you repeat "
    "them. Go on with the task."
)


class LiveTable:
    """Owns the live agents and their rows. ``on_change`` hears of every change, in the hub or an actor."""

    def __init__(
        self,
        harness: Harness,
        registry: Registry,
        *,
        max_live: int,
        admission_wait_s: float,
        on_change: OnChange | None,
    ) -> None:
        self.harness = harness
        self.registry = registry
        self.writer = RowWriter(registry)
        self.doors = Doors()
        self.waits = Waits()
        self.room = Room(max_live, admission_wait_s, self.sleep_if_idle)
        self.live: dict[str, LiveAgent] = {}
        self.subscribers: dict[str, list[Subscriber]] = {}
        self.approvals: dict[str, int] = {}
        self.closing = False
        self._on_change = on_change
        self._undos = (
            harness.scope.observe("agent/status", self._on_status),
            harness.scope.observe("agent/disposed", self._on_disposed),
        )

    # --- what live agents ask and tell -------------------------------------------------------

    @property
    def price_of(self) -> PriceOf:
        return self.harness.config.price

    @property
    def sandbox(self) -> str:
        return self.harness.sandbox

    def now_ms(self) -> int:
        return self.harness.clock.now_ms()

    def info(self, live: LiveAgent) -> AgentInfo:
        return live.info(self.approvals.get(live.row.id, 0))

    def changed(self, live: LiveAgent) -> None:
        if not live.row.id:
            return  # it is just being made
        live.touch()
        self.writer.note(live.row)
        self.tell(live)

    def tell(self, live: LiveAgent) -> None:
        if self._on_change is not None:
            self.tell_of(self.info(live))

    def tell_of(self, info: AgentInfo) -> None:
        if self._on_change is None:
            return
        try:
            self._on_change(info)
        except Exception:
            LOGGER.exception("a change of agent %s could not be told", info.id)

    def stop_run(self, live: LiveAgent, why: str) -> None:
        cause = {"kind": "hook", "reason": why}
        _in_background(partial(live.handle.cancel, cause), f"daemon/{why} {live.row.id}")

    def warn_of_deadline(self, live: LiveAgent, seconds: int) -> None:
        text = (
            f"The time for this run ends in about {seconds} seconds. Finish now: start nothing new and give "
            "your final answer with what you have."
        )
        if live.is_running:
            _in_background(partial(live.handle.inject, text), f"daemon/deadline {live.row.id}")

    # --- coming up ---------------------------------------------------------------------------

    def read(self, agent_id: str) -> AgentRow:
        """The row of an agent that is not live. Raises `AgentNotFound`."""
        row = run_native(self.registry.read, agent_id)
        if row is None:
            raise AgentNotFound(f"there is no agent {agent_id}", hint="`dsh agent ls` lists them")
        return row

    def create(self, options: AgentOptions, bring_up: BringUp) -> LiveAgent:
        """Bring a new agent up and give it a row; nothing stays of it where that fails."""
        self._require_open()
        self.room.take()
        try:
            live = LiveAgent(self, _blank_row(), options.limits)
            handle = live.handle = bring_up(live.setup)
            try:
                self._describe(live)
                self.writer.save(live.row, options_to_json(options))
            except BaseException:
                handle.dispose(DISPOSE_S)
                raise
        except BaseException:
            self.room.give_back()
            raise
        self._enter(live)
        return live

    def awake(self, agent_id: str, wait_s: float | None = None) -> LiveAgent:
        """The live agent, woken if need be. A run of it that was cut goes on.

        Raises `AgentNotFound`, `HostFull`, `SessionBusy` while another process has the session, and what
        `Harness.resume` raises; where trying again does not help the agent is failed then.
        """
        live = self.live.get(agent_id)
        if live is not None:
            return live
        self._require_open()
        row = self.read(agent_id)
        self.room.take(wait_s)
        try:
            live, cut = self._resume(row)
        except BaseException as error:
            self.room.give_back()
            if isinstance(error, _FATAL):
                self.fail(row, error.message)
            raise
        self._enter(live)
        if cut is not None:
            self._go_on(live, cut)
        return live

    def _resume(self, row: AgentRow) -> tuple[LiveAgent, CutRun | None]:
        kept = run_native(self.registry.options, row.id)
        cut = None
        if row.run_from is not None:
            cut = read_cut_run(self.harness.read_from(row.id, row.run_from), self.price_of)
        base = limit_base_of(row, cut.fold if cut is not None else None)
        options = options_from_json(kept or "{}", base)
        live = LiveAgent(self, row, options.limits)
        live.handle = self._open(row, options, live.setup)
        try:
            status = live.handle.status()
            row.next_turn, row.next_step = status.next_turn, status.next_step
            live.next_seq = status.next_seq
        except BaseException:
            live.handle.dispose(DISPOSE_S, keep_inbox=True)
            raise
        return live, cut

    def _open(self, row: AgentRow, options: AgentOptions, setup: Setup) -> AgentHandle:
        from dataclasses import replace

        try:
            return self.harness.resume(row.id, options, setup)
        except SessionNotFound:
            if row.turn or row.next_turn or row.next_step or row.run_from:
                raise
            # Nothing was ever said to it, so that there is no session yet.
            return self.harness.create(replace(options, session_id=row.id), setup)

    def _describe(self, live: LiveAgent) -> None:
        """Fill the row of a new agent."""
        handle, row, now = live.handle, live.row, self.now_ms()
        status = handle.status()
        row.id, row.cwd, row.model = handle.id, handle.header.cwd or "", handle.model
        row.parent = handle.header.parent_session
        row.turn, row.next_turn, row.next_step = status.turn, status.next_turn, status.next_step
        standing = status.standing
        row.base = json.dumps([standing.steps, standing.tool_calls, standing.tokens])
        row.created = row.updated = now
        live.next_seq = status.next_seq

    def _enter(self, live: LiveAgent) -> None:
        row = live.row
        row.state, row.error = "idle", None
        self.live[row.id] = live
        live.subscribers = self.subscribers.get(row.id)
        self.room.is_idle(row.id)
        self.changed(live)

    def _go_on(self, live: LiveAgent, cut: CutRun) -> None:
        """Take up the run that the end of a process has cut."""
        live.take_up_run(cut.fold)
        self.room.is_busy(live.row.id)
        if cut.is_open:
            live.handle.steer(_GO_ON)
        elif live.row.next_turn or (live.row.next_step and not cut.fold.has_ended):
            live.handle.wake()
        else:
            self._run_over(live)

    # --- work and rest -----------------------------------------------------------------------

    def begin_run(self, live: LiveAgent) -> None:
        """Make it known, durably, that something is owed. Nothing happens in a run that goes on."""
        if live.fold is not None:
            return
        live.begin_run()
        self.room.is_busy(live.row.id)
        try:
            live.touch()
            self.writer.save(live.row)
        except BaseException:
            self.drop_run(live)
            raise
        self.tell(live)

    def drop_run(self, live: LiveAgent) -> None:
        """The message that a run was to begin with was refused."""
        if not live.is_running and live.fold is not None and not live.fold.turns:
            live.drop_run()
            self.room.is_idle(live.row.id)
            self.changed(live)

    def _on_status(self, payload: Mapping[str, Any]) -> None:
        live = self.live.get(payload["session"])
        if live is None:
            return
        live.is_running = payload["status"] == "running"
        if not live.is_running:
            # In a moment: an agent with more to do sets to work again at once.
            when_waiting(lambda: self._at_rest(live))
        elif live.fold is None:
            live.begin_run()
            self.room.is_busy(live.row.id)
            self.changed(live)

    def _at_rest(self, live: LiveAgent) -> None:
        if live.is_running or live.fold is None or live.going:
            return
        if self.harness.work.of(SessionId(live.row.id)):
            wait = partial(live.handle.when_done, None)
            start_task(lambda _token: wait(), lambda _end: self._at_rest(live), name="daemon/when-done")
            return
        self._run_over(live)

    def _run_over(self, live: LiveAgent) -> None:
        end = live.end_run()
        if end is None:
            return
        live.row.state = "idle"
        self.changed(live)
        self.room.is_idle(live.row.id)
        self.waits.settle(live.row.id, end)

    # --- going -------------------------------------------------------------------------------

    def sleep_if_idle(self, agent_id: str) -> bool:
        """Put an agent to sleep unless somebody needs it; whether it sleeps. Waits for no door."""
        with self.doors.if_free(agent_id) as is_ours:
            live = self.live.get(agent_id)
            if not is_ours or live is None or not self._may_sleep(live):
                return False
            return self._sleep(live)

    def _may_sleep(self, live: LiveAgent) -> bool:
        row = live.row
        if live.pins or live.going or live.is_running or live.fold is not None:
            return False
        if row.next_turn or row.next_step or self.approvals.get(row.id):
            return False
        return not self.harness.work.of(SessionId(row.id))

    def _sleep(self, live: LiveAgent) -> bool:
        agent_id = live.row.id
        live.going = True
        try:
            self.harness.flush(agent_id) if live.next_seq else None
            live.handle.dispose(DISPOSE_S, keep_inbox=True)
        except HarnessError as error:
            LOGGER.warning("agent %s could not be put to sleep: %s", agent_id, error_chain(error))
            live.going = False
            self.room.is_busy(agent_id)  # until it has been at work again
            return False
        live.row.state = "asleep"
        self._leave(live)
        if live.row.next_turn or live.row.next_step:
            # Somebody else than the daemon told it something at the last moment; it is in the log.
            _in_background(partial(self._rouse, agent_id), f"daemon/rouse {agent_id}")
        return True

    def cut(self, live: LiveAgent, timeout_s: float) -> None:
        """End a live agent as the host closes. A run that is not over stays owed in its row."""
        live.going = True
        is_owed = live.fold is not None
        try:
            live.handle.dispose(timeout_s, keep_inbox=True)
        finally:
            live.row.state = "running" if is_owed else "asleep"
            self._leave(live)

    def _rouse(self, agent_id: str) -> None:
        with self.doors.through(agent_id):
            self.awake(agent_id).handle.wake()

    def _leave(self, live: LiveAgent) -> None:
        """It is not live any more: its row says what it is now."""
        row = live.row
        self.live.pop(row.id, None)
        live.touch()
        live.stop_timers()
        self.room.is_busy(row.id)
        self.room.give_back()
        try:
            self.writer.save(row)
        except HarnessError:
            self.writer.note(row)
        self.tell(live)

    def dispose(self, agent_id: str, timeout_s: float) -> None:
        """End an agent and forget it; its session stays. Raises `AgentNotFound`."""
        live = self.live.get(agent_id)
        row = live.row if live is not None else self.read(agent_id)
        if live is not None:
            live.going = True
            live.handle.dispose(timeout_s)
            end = live.end_run()
            self.live.pop(agent_id, None)
            self.room.is_busy(agent_id)
            self.room.give_back()
        else:
            end = end_from_json(row.last_end) if row.last_end else None
        self.writer.remove(agent_id)
        self.waits.settle(agent_id, end)
        row.state = "disposed"
        self.tell_of(info_of(row))

    def fail(self, row: AgentRow, message: str) -> None:
        """An agent that cannot go on. Quick."""
        row.state, row.error, row.updated = "failed", message, self.now_ms()
        if row.run_from is not None:
            fold = OutcomeFold(self.price_of)
            live = LiveAgent(self, row, _NO_LIMITS)
            live.take_up_run(fold)
            self.waits.settle(row.id, live.end_run("internal", message))
            row.state, row.error = "failed", message
        else:
            self.waits.settle(row.id, end_from_json(row.last_end) if row.last_end else None)
        self.writer.note(row)
        self.tell_of(info_of(row))

    def _on_disposed(self, payload: Mapping[str, Any]) -> None:
        live = self.live.get(payload["session"])
        if live is None or live.going:
            return
        live.going = True
        message = payload["error"] or "it was ended by another part of the program"
        end = live.end_run("internal", message)
        row = live.row
        row.state, row.error, row.updated = "failed", message, self.now_ms()
        when_waiting(lambda: self._forget_failed(live))
        self.waits.settle(row.id, end)

    def _forget_failed(self, live: LiveAgent) -> None:
        row = live.row
        self.live.pop(row.id, None)
        self.room.is_busy(row.id)
        self.room.give_back()
        self.writer.note(row)
        self.tell_of(info_of(row))

    def close(self) -> None:
        for undo in self._undos:
            undo()

    def _require_open(self) -> None:
        if self.closing:
            raise ActorGone("the daemon is closing", hint="try again when it is up")


_NO_LIMITS = AgentOptions("", "").limits


def _blank_row() -> AgentRow:
    no_base = "[0, 0, 0]"
    return AgentRow("", "idle", None, "", "", None, 0, 0, 0, 0, 0.0, None, 0, 0, None, None, no_base, None, 0)


def _in_background(work: Callable[[], object], name: str) -> None:
    start_task(lambda _token: work(), partial(_report, name), name=name)


def _report(name: str, end: TaskEnd[object]) -> None:
    if end.error is not None:
        LOGGER.warning("%s failed: %s", name, error_chain(end.error))
