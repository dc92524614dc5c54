"""One task on one agent, from a ready harness to its outcome: open, send the prompt, wait, dispose.

What asks for an early end (a signal, a time limit, a reader that went away) cancels the turn and then
waits a bounded time for the agent to be idle. Programs of one task and of many are made of it.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dsh_actors.core.end_texts import deadline_text, warning_before
from dsh_actors.core.events import Event
from dsh_actors.core.exit_codes import describe_error, reason_of_error
from dsh_actors.core.messages import Message, user_message
from dsh_actors.core.options import GRACE_S, AgentOptions
from dsh_actors.core.outcome import Circumstances, OutcomeFold, RunEnd
from dsh_actors.core.owed_work import OwedWork
from dsh_actors.core.pricing import PriceOf
from dsh_actors.core.quoted_files import ImageFile
from dsh_actors.core.text import clean_text
from dsh_actors.errors import ActorGone, HarnessError, StorageError, UsageError
from dsh_actors.runtime.tasks import DeadlinePassed, TaskEnd, deadline, start_task
from dsh_actors.runtime.timers import Timer, after

if TYPE_CHECKING:
    from dsh_actors.harness import AgentHandle, Harness

__all__ = ["Run", "RunPlan"]

_DISPOSE_S = 5.0
_DEADLINE_MARGIN_S = 2.0
"""At most this much of ``--deadline`` is kept for the last words, so that the process ends before it."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What to run. ``resume`` is the id of the session to go on with; ``price_of`` knows the prices.

    ``fork`` is a session to begin with a copy of, and the last event to copy (None: all). ``images``
    go with the prompt; the model is named in ``options`` then. ``no_wait``: what the agent started and
    left going is given up when its last turn is over.
    """

    prompt: str
    options: AgentOptions
    resume: str | None
    price_of: PriceOf
    warnings: tuple[str, ...] = ()
    fail_on_denied: bool = True
    fork: tuple[str, int | None] | None = None
    images: tuple[ImageFile, ...] = ()
    no_wait: bool = False
    simple_exit: bool = False


class Run:
    """One run; used once. ``started`` is the monotonic time that limits count from, now by default.

    ``on_event`` hears every event of the session as it happens, after `fold` has.
    """

    def __init__(
        self,
        harness: Harness,
        plan: RunPlan,
        *,
        started: float | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self.plan = plan
        self.started = time.monotonic() if started is None else started
        self.fold = OutcomeFold(plan.price_of)
        self._owed = OwedWork()
        self.handle: AgentHandle | None = None
        self.signal: str | None = None
        """The signal that stopped the run, if one did."""
        self._harness = harness
        self._on_event = on_event
        self._wake = threading.Event()
        self._is_idle = False
        self._give_up_at: float | None = None
        self._stopped_by: str | None = None
        self._error: BaseException | None = None
        self._abandoned: tuple[str, ...] = ()
        self._timers: list[Timer] = []

    def execute(self) -> RunEnd:
        """All of it. Raises what kept the agent from being created; later errors are in the result."""
        self.open()
        self.drive()
        return self.end()

    def open(self) -> AgentHandle:
        """Create, resume or fork the agent. Raises what keeps it from being there; nothing stays then."""
        plan = self.plan
        self._require_images()
        if plan.resume is not None:
            handle = self._harness.resume(plan.resume, plan.options, setup=self._observe)
        elif plan.fork is not None:
            handle = self._harness.fork(plan.fork[0], plan.options, plan.fork[1], setup=self._observe)
        else:
            handle = self._harness.create(plan.options, setup=self._observe)
        self.handle = handle
        return handle

    def drive(self) -> None:
        """Send the prompt, wait until nothing is owed or the run is stopped, and dispose of the agent.

        Raises nothing: what fails once the session exists is in the outcome.
        """
        handle = self.handle
        assert handle is not None  # a run is opened before it is driven
        try:
            self._arm_limits()
            prompt = self._prompt()
            if self._stopped_by is None:
                handle.followup(prompt)
                self._wait(handle)
        except Exception as error:
            # The agent gone, or a fault of ours: it still gets its terminal event.
            self._error = error
        finally:
            for timer in self._timers:
                timer.cancel()
        self._dispose(handle)

    def stop(self, why: str, signal: str | None = None) -> None:
        """Cancel what runs; ``why`` is signal, pipe, timeout or deadline. The first reason stays.

        Waits for the agent's answer only; `drive` ends soon after.
        """
        if self._stopped_by is not None:
            return
        self._stopped_by, self.signal = why, signal
        self._give_up_at = time.monotonic() + GRACE_S
        self._wake.set()
        handle = self.handle
        if handle is None:
            return
        self._harness.work.quieten(handle.id)
        handle.cancel({"kind": "hook", "reason": why} if why in ("timeout", "deadline") else {"kind": "user"})
        # What it started does not hold a stopped run open: it has the same time to end.
        self._abandoned = self._going_on(handle)
        self._harness.work.cancel_all(handle.id)
        start_task(lambda _token: handle.when_idle(None), self._on_idle, name="run/when-idle")

    def end(self) -> RunEnd:
        """The outcome, also in the middle of a run."""
        return self.fold.end(self.circumstances())

    def circumstances(self) -> Circumstances:
        """What the log does not say of the end."""
        plan = self.plan
        reason, message = self._outside_reason()
        warnings = list(plan.warnings)
        if self._harness.sandbox == "none" and plan.options.sandbox == "auto":
            warnings.append("no sandbox works here: commands ran with the rights of the user")
        return Circumstances(
            session_id=None if self.handle is None else self.handle.id,
            signal=self.signal,
            reason=reason,
            message=message,
            duration_ms=round((time.monotonic() - self.started) * 1000),
            sandbox=self._harness.sandbox,
            warnings=tuple(warnings),
            fail_on_denied=plan.fail_on_denied,
            simple_exit=plan.simple_exit,
            abandoned=self._abandoned,
        )

    # --- the prompt and the events -----------------------------------------------------------

    def _require_images(self) -> None:
        """Raises `UsageError` before anything exists where the model would not see what is attached."""
        plan = self.plan
        if plan.images and not self._harness.takes_images(plan.options.model):
            raise UsageError(
                f"--file: {plan.images[0].name} is an image, and {plan.options.model} reads text only",
                hint='name a model that takes images, or give it capabilities = ["image"] in '
                "[[providers.NAME.models]]",
            )

    def _prompt(self) -> str | Message:
        plan = self.plan
        if not plan.images:
            return plan.prompt
        kept = partial(self._harness.image, ephemeral=plan.options.ephemeral)
        blocks = tuple(kept(image.data, os.path.basename(image.name)) for image in plan.images)
        return user_message(f"msg-{secrets.token_hex(12)}", clean_text(plan.prompt), images=blocks)

    def _observe(self, scope: Any) -> None:
        scope.observe("session/event", self._apply)

    def _apply(self, event: Event) -> None:
        self.fold.apply(event)
        if event.type != "assistant/chunk":
            self._owed.apply(event)
        if self._on_event is not None:
            self._on_event(event)

    # --- limits of time ----------------------------------------------------------------------

    def _arm_limits(self) -> None:
        limits = self.plan.options.limits
        if limits.timeout_s is not None:
            self._at(limits.timeout_s, lambda: self.stop("timeout"))
        if limits.deadline_s is not None:
            end = limits.deadline_s - min(_DEADLINE_MARGIN_S, limits.deadline_s * 0.1)
            warn = warning_before(limits.deadline_s)
            self._at(warn, lambda: self._warn_of_deadline(end - warn))
            self._at(end, lambda: self.stop("deadline"))

    def _at(self, seconds: float, callback: Callable[[], None]) -> None:
        left = self.started + seconds - time.monotonic()
        # A timer's callback runs in the hub and must not wait; asking an agent does.
        self._timers.append(after(left, lambda: _in_background(callback)))

    def _warn_of_deadline(self, left_s: float) -> None:
        if self.handle is not None and not self._is_idle:
            self.handle.inject(deadline_text(left_s))

    # --- waiting and ending ------------------------------------------------------------------

    def _wait(self, handle: AgentHandle) -> None:
        """Until nothing is owed, or the grace after a stop is over."""
        done = handle.when_idle if self.plan.no_wait else handle.when_done
        start_task(lambda _token: done(None), self._on_idle, name="run/when-done")
        while not self._is_idle:
            left = None if self._give_up_at is None else self._give_up_at - time.monotonic()
            if left is not None and left <= 0:
                return
            self._wake.wait(left)
            self._wake.clear()

    def _on_idle(self, end: TaskEnd[Any]) -> None:
        if not self._is_idle:
            self._is_idle = True
            self._error = end.error
            self._wake.set()

    def _dispose(self, handle: AgentHandle) -> None:
        self._abandoned = self._abandoned or self._going_on(handle)
        # What ends from here on begins no other turn.
        self._harness.work.quieten(handle.id)
        self._harness.work.cancel_all(handle.id)
        left = _DISPOSE_S if self._give_up_at is None else max(0.5, self._give_up_at - time.monotonic())
        try:
            with deadline(left + 0.5):
                handle.dispose(left)
        except (ActorGone, DeadlinePassed):
            # Its turn is over or given up; what is left of it is the harness's to end.
            return
        except HarnessError as error:
            self._error = self._error or error

    def _going_on(self, handle: AgentHandle) -> tuple[str, ...]:
        return tuple(item.id for item in self._harness.work.of(handle.id))

    def _outside_reason(self) -> tuple[str | None, str | None]:
        """A reason that the log does not hold."""
        why = self._stopped_by
        if why == "pipe":
            return "pipe", "the reader of standard output went away"
        if isinstance(self._error, StorageError):
            return reason_of_error(self._error), describe_error(self._error)
        if why in ("timeout", "deadline") and (self._abandoned or self._owed.names):
            return why, f"--{why} passed while background work went on"
        if why == "signal" and (self._abandoned or self._owed.names):
            return "interrupted", f"stopped by {self.signal}"
        if self.fold.has_ended:
            return None, None
        if why in ("timeout", "deadline"):
            return why, f"--{why} passed, and the agent did not stop in time"
        if self._error is not None and self.signal is None:
            return reason_of_error(self._error), describe_error(self._error)
        return None, None

    def forced_end(self) -> RunEnd:
        """The outcome of a run that a second signal ends at once."""
        message = f"{self.signal} came twice: left at once"
        return self.fold.end(replace(self.circumstances(), reason="interrupted", message=message))


def _in_background(callback: Callable[[], None]) -> None:
    start_task(lambda _token: callback(), _ignore_end, name="run/time-limit")


def _ignore_end(end: TaskEnd[None]) -> None:
    """The run's own wait decides what happens; a failed cancel shows there as a run that goes on."""
