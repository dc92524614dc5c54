"""One sub-agent at work: from the wait for a place to the moment when its parent knows how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from dsh_actors.actors.owned_work import OwnedWork, WorkItem
from dsh_actors.core.events import Event
from dsh_actors.core.exit_codes import exit_code_of, reason_of_error
from dsh_actors.core.ids import SessionId
from dsh_actors.core.messages import Message
from dsh_actors.core.outcome import Circumstances, OutcomeFold, RunEnd
from dsh_actors.core.owed_work import OwedWork
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import ActorGone, HarnessError, error_chain
from dsh_actors.handle import AgentHandle
from dsh_actors.ports import CancelToken
from dsh_actors.runtime.cancel import CancelSource
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.tasks import Cancelled, TaskEnd, start_task
from dsh_actors.runtime.timers import Timer, after
from dsh_actors.subagents.request import Mode
from dsh_actors.subagents.seat import Seat
from dsh_actors.subagents.words import resumption

__all__ = ["ChildRun", "Plan"]

GRACE_S = 10.0
"""How long a stopped agent may take to come to rest before it is disposed of all the same."""
DISPOSE_S = 10.0
MAX_RESUMPTIONS = 3
"""So often an agent goes on after a crash; more often the supervisor does not restart one either."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``open`` brings the agent up, with an observer on its events. ``settle`` is called once, when the
    agent has come to rest and its session is free again: it tells the parent.

    ``counts_waiting``: the time of ``timeout_s`` runs while there is no place for the agent, too. ``via``:
    the configured process that it is, which ``open`` has no part in. ``bounds``: what it may less than its
    parent, to be remembered.
    """

    id: SessionId
    parent: SessionId
    label: str
    mode: Mode
    timeout_s: float | None
    counts_waiting: bool
    fold: OutcomeFold
    seat: Seat
    work: OwnedWork
    open: Callable[[Callable[[Event], None]], AgentHandle] = field(hash=False)
    settle: Callable[[ChildRun, RunEnd], None] = field(hash=False)
    is_fork: bool
    schema: JsonObject | None = field(default=None, hash=False)
    via: str | None = None
    bounds: JsonObject | None = field(default=None, hash=False)


class ChildRun:
    """A sub-agent that was told to work. ``released`` is called last, when its parent knows of the end."""

    def __init__(self, plan: Plan, message: str | Message, released: Callable[[ChildRun], None]) -> None:
        self.plan = plan
        self.id = plan.id
        self.item: WorkItem | None = None
        """What holds the parent open."""
        self.end: RunEnd | None = None
        """The outcome, once the parent has been told."""
        self._messages = [message]
        self._released = released
        self._handle: AgentHandle | None = None
        self._began = time.monotonic()
        self._stopper = CancelSource()
        self._timer: Timer | None = None
        self._is_over = False
        self._wake = threading.Event()
        self._ended = threading.Event()
        self._gone = threading.Event()
        self._turn_end: str | None = None
        self._text: str | None = None
        self._error: BaseException | None = None
        self._owed = OwedWork()
        self._lock = threading.RLock()

    @property
    def state(self) -> str:
        """``queued``, ``running``, ``waiting`` (for what it has started itself) or ``over``."""
        if self._is_over:
            return "over"
        if self._handle is None:
            return "queued"
        return "running" if self.plan.seat.is_held else "waiting"

    @property
    def stopped(self) -> CancelToken:
        """Thrown when it is to end early."""
        return self._stopper.token

    def start(self) -> None:
        self._stopper.token.on_cancel(self._wake.set)
        if self.plan.counts_waiting:
            self._arm()
        start_task(lambda _token: self._run(), self._ignore_end, name=f"sub-agent {self.id}")

    def wait(self, timeout_s: float | None = None) -> RunEnd | None:
        """The outcome; None after ``timeout_s`` seconds without."""
        self._ended.wait(timeout_s)
        return self.end

    def result(self) -> RunEnd:
        """Wait for the outcome. Whoever is stopped while waiting stops it."""
        try:
            self._ended.wait()
        except BaseException:
            self.stop()
            raise
        assert self.end is not None  # set before
        return self.end

    def wait_until_released(self) -> None:
        self._gone.wait()

    def stop(self, why: str = "parent") -> None:
        """Begin to end it; returns at once. ``why`` is ``timeout``, or ``parent`` for what stands above."""
        self._stopper.cancel(why)

    def tell(self, message: Message) -> bool:
        """Queue a message; False where it is too late for this life of the agent."""
        with self._lock:
            if self._is_over or self._stopper.token.reason is not None:
                return False
            if self._handle is None:
                self._messages.append(message)
            else:
                self._handle.followup(message)
            return True

    def interrupt(self) -> None:
        """End the turn that is open. What is queued stays for whoever sends the next message."""
        handle = self._handle
        if handle is None:
            self.stop()
        elif not self._is_over:
            handle.cancel({"kind": "parent"}, keep_inbox=True)

    # --- the work ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            # Whatever it is, foreign code or a fault of ours: somebody waits for the outcome.
            self._error = error
        with self._lock:
            self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
        end: RunEnd | None = None
        try:
            self._let_go()
            end = self._outcome()
            self.plan.settle(self, end)
        finally:
            code, message = exit_code_of("internal", None), "its outcome could not be told"
            self.end = end or RunEnd("internal", code, self.id, message)
            self._ended.set()
            self._released(self)
            self._gone.set()

    def _work(self) -> None:
        self._begin()
        handle = self.plan.open(self._on_event)
        with self._lock:
            self._handle = handle
            for message in self._messages:
                handle.followup(message)
        self._drive(handle)

    def _begin(self) -> None:
        """Wait for a place."""
        plan = self.plan
        plan.seat.take(self._stopper.token)
        if not plan.counts_waiting:
            self._began = time.monotonic()
            self._arm()

    def _arm(self) -> None:
        if self.plan.timeout_s is not None:
            self._timer = after(self.plan.timeout_s, partial(self.stop, "timeout"))

    def _drive(self, handle: AgentHandle) -> None:
        """Until nothing is owed, or it was stopped and had its time to come to rest."""
        resumptions = MAX_RESUMPTIONS
        while self._comes_to_rest(handle) and self._stopper.token.reason is None:
            with self._lock:
                if self._turn_end == "interrupted" and resumptions:
                    resumptions -= 1
                    handle.followup(resumption())
                elif handle.status().status == "idle" and not self.plan.work.of(self.id):
                    self._is_over = True
                    return

    def _comes_to_rest(self, handle: AgentHandle) -> bool:
        rest: list[TaskEnd[None]] = []

        def rested(end: TaskEnd[None]) -> None:
            rest.append(end)
            self._wake.set()

        start_task(lambda _token: self._await_rest(handle), rested, name=f"sub-agent {self.id} rest")
        give_up_at: float | None = None
        while not rest:
            if self._stopper.token.reason is not None and give_up_at is None:
                give_up_at = time.monotonic() + GRACE_S
                self._cancel(handle)
                continue
            left = None if give_up_at is None else give_up_at - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._wake.wait(left)
            self._wake.clear()
        if rest[0].error is not None:
            raise rest.pop().error  # type: ignore[misc]  # it was looked at just before
        return True

    def _await_rest(self, handle: AgentHandle) -> None:
        """Until it is idle and nothing that it has started goes on. Meanwhile others may have its place."""
        work, seat = self.plan.work, self.plan.seat
        while True:
            handle.when_idle()
            going_on = work.of(self.id)
            if going_on:
                with seat.lent(self._stopper.token):
                    work.wait_for_release(going_on, None)
            elif handle.status().status == "idle":
                return

    def _cancel(self, handle: AgentHandle) -> None:
        """From the top down: first it, then what it has started."""
        is_late = self._stopper.token.reason == "timeout"
        self.plan.work.quieten(self.id)
        handle.cancel({"kind": "hook", "reason": "timeout"} if is_late else {"kind": "parent"})
        self.plan.work.cancel_all(self.id)

    def _on_event(self, event: Event) -> None:
        self.plan.fold.apply(event)
        self._owed.apply(event)
        match event.type:
            case "turn/start":
                self._turn_end = None
            case "turn/end":
                self._turn_end = event.data["reason"]["kind"]
            case "assistant/message":
                blocks = event.data["message"]["content"]
                text = "".join(block["text"] for block in blocks if block["type"] == "text")
                self._text = text if text.strip() else self._text

    # --- the end -----------------------------------------------------------------------------

    def _let_go(self) -> None:
        """Give up the agent, and then its place."""
        try:
            if self._handle is not None:
                self._handle.dispose(DISPOSE_S)
        except ActorGone:
            LOGGER.info("sub-agent %s was gone before it was disposed of", self.id)
        except HarnessError as error:
            self._error = self._error or error
        finally:
            self.plan.seat.close()

    def _outcome(self) -> RunEnd:
        why, error = self._stopper.token.reason, self._error
        reason = message = None
        if error is not None and not isinstance(error, Cancelled) and not self._is_well_ended():
            reason, message = reason_of_error(error), error_chain(error)
        end = self.plan.fold.end(
            Circumstances(
                session_id=self.id,
                reason=reason,
                message=message,
                duration_ms=round((time.monotonic() - self._began) * 1000),
                fail_on_denied=False,
                abandoned=() if why is None else self._owed.names,
            )
        )
        if why is not None and not end.completed and end.limit is None:
            reason, message = "interrupted", "it was stopped"
            if why == "timeout":
                limit = self.plan.timeout_s
                message = "it was not done in time" if limit is None else f"it was not done after {limit:g} s"
                reason = "timeout"
            code = exit_code_of(reason, None)
            end = replace(end, reason=reason, message=message, exit_code=code, signal=None)
        if end.answer is None and self._text is not None:
            end = replace(end, answer=self._text, partial=True)
        return end

    def _is_well_ended(self) -> bool:
        """Whether its work was over before something failed that cannot matter any more."""
        return isinstance(self._error, ActorGone) and self.plan.fold.has_ended

    def _ignore_end(self, end: TaskEnd[None]) -> None:
        if end.error is not None:
            LOGGER.error("sub-agent %s: %s", self.id, error_chain(end.error))
