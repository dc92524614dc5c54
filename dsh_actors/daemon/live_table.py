"""The live agents of the daemon: how they come up, fall asleep, wake, fail, and end.

Whoever calls a method that may wait is in a task and holds the agent's door.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dsh_actors.core.end_texts import deadline_text
from dsh_actors.core.ids import SessionId
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.outcome import OutcomeFold
from dsh_actors.core.pricing import PriceOf
from dsh_actors.daemon.doors import Doors
from dsh_actors.daemon.info import AgentInfo, end_from_json
from dsh_actors.daemon.live import LiveAgent, Subscriber, info_of
from dsh_actors.daemon.registry import AgentRow, Registry
from dsh_actors.daemon.room import Room
from dsh_actors.daemon.row_writer import RowWriter
from dsh_actors.daemon.waits import Waits
from dsh_actors.errors import (
    ActorGone,
    AgentNotFound,
    HarnessError,
    error_chain,
)
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.tasks import TaskEnd, start_task
from dsh_actors.runtime.timers import when_waiting

if TYPE_CHECKING:
    from dsh_actors.harness import Harness

__all__ = ["DISPOSE_S", "LiveTable", "OnChange", "in_background"]

OnChange = Callable[[AgentInfo], None]

DISPOSE_S = 30.0


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
        self.on_left_over: Callable[[str], None] = _nothing
        """Called for an agent that fell asleep with something to do after all."""
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
    def sandbox(self) -> str | None:
        return self.harness.sandbox

    def now_ms(self) -> int:
        return self.harness.clock.now_ms()

    def info(self, live: LiveAgent) -> AgentInfo:
        agent_id = live.row.id
        return live.info(self.approvals.get(agent_id, 0), self.harness.work.of(SessionId(agent_id)))

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
            # It is the listener's fault; this may be the middle of an agent's step.
            LOGGER.exception("a change of agent %s could not be told", info.id)

    def stop_run(self, live: LiveAgent, why: str) -> None:
        """A limit of time has passed; what the agent has started ends with its run."""
        work, agent = self.harness.work, SessionId(live.row.id)
        if work.of(agent):
            live.cut_off = (why, f"--{why} passed while background work went on")
        work.quieten(agent)

        def stop() -> None:
            live.handle.cancel({"kind": "hook", "reason": why})
            work.cancel_all(agent)

        in_background(stop, f"daemon/{why} {live.row.id}")

    def warn_of_deadline(self, live: LiveAgent, left_s: float) -> None:
        if live.is_running:
            warn = partial(live.handle.inject, deadline_text(left_s))
            in_background(warn, f"daemon/deadline {live.row.id}")

    # --- rows -------------------------------------------------------------------------------

    def read(self, agent_id: str) -> AgentRow:
        """The row of an agent that is not live. Raises `AgentNotFound`."""
        row = self.writer.newest(agent_id) or run_native(self.registry.read, agent_id)
        if row is None:
            raise AgentNotFound(f"there is no agent {agent_id}", hint="`dsh agent ls` lists them")
        return row

    # --- work and rest -----------------------------------------------------------------------

    def begin_run(self, live: LiveAgent) -> None:
        """Make it known, durably, that something is owed. Nothing happens in a run that goes on."""
        if live.fold is not None:
            return
        self._run_begins(live)
        try:
            live.touch()
            self.writer.save(live.row)
        except BaseException:
            self.drop_run(live)
            raise
        self.tell(live)

    def _run_begins(self, live: LiveAgent) -> None:
        live.begin_run()
        self.room.is_busy(live.row.id)
        self.harness.work.rouse(SessionId(live.row.id))

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
            fold = live.fold
            # In a moment: an agent with more to do sets to work again at once.
            when_waiting(lambda: self._at_rest(live, fold))
        elif live.fold is None:
            self._run_begins(live)
            self.changed(live)

    def unpin(self, live: LiveAgent) -> None:
        """Whoever needed it awake does not any more."""
        live.pins -= 1
        self._at_rest(live, live.fold)

    def _at_rest(self, live: LiveAgent, fold: OutcomeFold | None) -> None:
        """The run of ``fold`` may be over. It is not while somebody hands a message over to it."""
        if live.is_running or fold is None or live.fold is not fold or live.going or live.pins:
            return
        if not live.handle.is_up or self.harness.work.of(SessionId(live.row.id)):
            # It is being rebuilt after a crash, or what it started goes on: there may be more to come.
            if not live.is_watched:
                live.is_watched = True
                wait = partial(live.handle.when_done, None)
                start_task(lambda _token: wait(), partial(self._done, live), name="daemon/when-done")
            return
        self.run_over(live)

    def _done(self, live: LiveAgent, end: TaskEnd[bool]) -> None:
        """Nothing goes on any more, of whichever run: another may have begun while it was waited for."""
        live.is_watched = False
        if end.error is None:  # else it is gone, which is told otherwise
            self._at_rest(live, live.fold)

    def run_over(self, live: LiveAgent, reason: str | None = None, message: str | None = None) -> None:
        """Nothing is owed any more. A ``reason`` that the log does not hold comes with its ``message``."""
        end = live.end_run(reason, message) if reason is not None else live.end_run(*live.cut_off)
        if end is None:
            return
        live.row.state = "idle"
        self.changed(live)
        self.room.is_idle(live.row.id)
        self.waits.settle(live.row.id, end)

    # --- going -------------------------------------------------------------------------------

    def sleep_if_idle(self, agent_id: str, *, is_pressed: bool = False) -> bool:
        """Put an agent to sleep unless somebody needs it; whether it sleeps. Waits for no door.

        ``is_pressed``: its place is needed, so that queued input does not keep it awake; it stays queued.
        """
        with self.doors.if_free(agent_id) as is_ours:
            live = self.live.get(agent_id)
            if not is_ours or live is None or not self._may_sleep(live):
                return False
            if not is_pressed and (live.row.next_turn or live.row.next_step):
                return False
            return self._sleep(live)

    def _may_sleep(self, live: LiveAgent) -> bool:
        if live.pins or live.going or live.is_running or live.fold is not None:
            return False
        return not self.approvals.get(live.row.id) and not self.harness.work.of(SessionId(live.row.id))

    def _sleep(self, live: LiveAgent) -> bool:
        agent_id, queued = live.row.id, live.row.next_turn + live.row.next_step
        live.going = True
        try:
            if live.next_seq:
                self.harness.flush(agent_id)
        except HarnessError as error:
            LOGGER.warning("agent %s could not be put to sleep: %s", agent_id, error_chain(error))
            live.going = False
            self.room.is_busy(agent_id)  # until it has been at work again
            return False
        try:
            live.handle.dispose(DISPOSE_S, keep_inbox=True)
        except HarnessError as error:
            # What it had logged is durable, and it is not live any more.
            LOGGER.warning("agent %s fell asleep badly: %s", agent_id, error_chain(error))
        is_cut = live.fold is not None
        live.row.state = "running" if is_cut else "asleep"
        self._leave(live)
        if is_cut or live.row.next_turn + live.row.next_step > queued:
            # Somebody else than the daemon told it something at the last moment; it is in the log.
            self.on_left_over(agent_id)
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

    def _leave(self, live: LiveAgent) -> None:
        """It is not live any more: its row says what it is now."""
        row = live.row
        live.touch()
        self._remove(live)
        try:
            self.writer.save(row)
        except HarnessError:
            self.writer.note(row)
        self.tell(live)

    def _remove(self, live: LiveAgent) -> None:
        live.stop_timers()
        self.live.pop(live.row.id, None)
        self.room.is_busy(live.row.id)
        self.room.give_back()

    def dispose(self, agent_id: str, timeout_s: float) -> None:
        """End an agent and forget it; its session stays. Raises `AgentNotFound`."""
        live = self.live.get(agent_id)
        row = live.row if live is not None else self.read(agent_id)
        if live is not None:
            live.going = True
            try:
                live.handle.dispose(timeout_s)
            except HarnessError as error:
                # It is gone all the same; its row says what was lost, until it is disposed of again.
                self._remove(live)
                live.end_run()
                self.fail(row, error.message)
                raise
            end = live.end_run()
            self._remove(live)
        else:
            end = end_from_json(row.last_end) if row.last_end else None
        try:
            self.writer.remove(agent_id)
        except HarnessError as error:
            self.fail(row, f"it has ended and could not be forgotten: {error.message}")
            raise
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
        self._remove(live)
        self.writer.note(live.row)
        self.tell_of(info_of(live.row))

    def close(self) -> None:
        for undo in self._undos:
            undo()

    def require_open(self) -> None:
        if self.closing:
            raise ActorGone("the daemon is closing", hint="try again when it is up")


_NO_LIMITS = AgentOptions("", "").limits


def _nothing(_agent_id: str) -> None:
    """Until the host says otherwise."""


def in_background(work: Callable[[], object], name: str) -> None:
    """Run it in a task; what it raises is logged."""
    start_task(lambda _token: work(), partial(_report, name), name=name)


def _report(name: str, end: TaskEnd[object]) -> None:
    if end.error is not None:
        LOGGER.warning("%s failed: %s", name, error_chain(end.error))
