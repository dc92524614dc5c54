"""One run, from a ready harness to its outcome: create, resume or fork, send the prompt, wait, dispose.

Whatever asks for an early end (a signal, a time limit, a reader that went away) cancels the turn and
then waits a bounded time for the agent to be idle.
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

from dsh_actors.cli.failures import describe_error
from dsh_actors.cli.options import RunArguments
from dsh_actors.cli.progress import Heartbeat, Progress
from dsh_actors.cli.prompt_input import ImageFile
from dsh_actors.cli.render import RunOutput
from dsh_actors.cli.stopping import GRACE_S, SignalWatch
from dsh_actors.core.events import Event
from dsh_actors.core.exit_codes import reason_of_error
from dsh_actors.core.messages import Message, user_message
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.outcome import Circumstances, OutcomeFold, RunEnd
from dsh_actors.core.pricing import PriceOf
from dsh_actors.core.text import JsonObject, clean_text
from dsh_actors.errors import ActorGone, HarnessError, StorageError, UsageError
from dsh_actors.runtime.tasks import DeadlinePassed, TaskEnd, deadline, start_task
from dsh_actors.runtime.timers import Timer, after

if TYPE_CHECKING:
    from dsh_actors.harness import AgentHandle, Harness

__all__ = ["RunDriver", "RunPlan"]

_DISPOSE_S = 5.0
_DEADLINE_MARGIN_S = 2.0
"""At most this much of ``--deadline`` is kept for the last words, so that the process ends before it."""

_WARNING_S = 300.0
"""How long before its end a run is told of the deadline, or a quarter of it where that is less."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What to run. ``resume`` is the id of the session to go on with; ``price_of`` knows the prices.

    ``fork`` is a session to begin with a copy of, and the last event to copy (None: all). ``images``
    go with the prompt; the model is named in ``options`` then.
    """

    prompt: str
    options: AgentOptions
    resume: str | None
    price_of: PriceOf
    warnings: tuple[str, ...] = ()
    fail_on_denied: bool = True
    fork: tuple[str, int | None] | None = None
    images: tuple[ImageFile, ...] = ()


class RunDriver:
    """Drives one run; used once. ``started`` is the monotonic time that limits count from."""

    def __init__(
        self,
        harness: Harness,
        plan: RunPlan,
        arguments: RunArguments,
        output: RunOutput,
        signals: SignalWatch,
        started: float,
    ) -> None:
        self._harness = harness
        self._plan = plan
        self._arguments = arguments
        self._output = output
        self._signals = signals
        self._started = started
        self._fold = OutcomeFold(plan.price_of)
        self._handle: AgentHandle | None = None
        self._wake = threading.Event()
        self._is_idle = False
        self._give_up_at: float | None = None
        self._stopped_by: str | None = None
        self._error: BaseException | None = None
        self._timers: list[Timer] = []

    def execute(self) -> RunEnd:
        """Run to the end. Raises what kept the agent from being created; later errors are in the result."""
        self._require_images()
        handle = self._open()
        self._handle = handle
        heartbeat = Heartbeat(self._output, self._fold, self._arguments, self._started)
        progress = Progress(self._output, self._fold, self._arguments, self._started)
        self._signals.on_first = lambda: self.stop("signal")
        self._signals.on_second = lambda: self._output.last_words(self._forced_end(handle))
        try:
            self._output.on_broken(lambda: self.stop("pipe"))
            self._arm_limits()
            if self._signals.name is None and self._stopped_by is None:
                handle.followup(self._prompt())
                self._wait(handle)
        except Exception as error:
            # Whatever fails once the session exists (the agent gone, a fault of ours) still gets its
            # terminal event.
            self._error = error
        finally:
            for timer in self._timers:
                timer.cancel()
            heartbeat.close()
            progress.close()
        self._dispose(handle)
        return self._fold.end(self._circumstances(handle))

    def _open(self) -> AgentHandle:
        plan = self._plan
        if plan.resume is not None:
            handle = self._harness.resume(plan.resume, plan.options, setup=self._observe)
        elif plan.fork is not None:
            handle = self._harness.fork(plan.fork[0], plan.options, plan.fork[1], setup=self._observe)
        else:
            handle = self._harness.create(plan.options, setup=self._observe)
        self._output.start(
            handle.id,
            model=plan.options.model or None,
            cwd=plan.options.cwd,
            resumed=plan.resume is not None,
        )
        return handle

    def _require_images(self) -> None:
        """Raises `UsageError` before anything exists where the model would not see what is attached."""
        plan = self._plan
        if plan.images and not self._harness.takes_images(plan.options.model):
            raise UsageError(
                f"--file: {plan.images[0].name} is an image, and {plan.options.model} reads text only",
                hint='name a model that takes images, or give it capabilities = ["image"] in '
                "[[providers.NAME.models]]",
            )

    def _prompt(self) -> str | Message:
        plan = self._plan
        if not plan.images:
            return plan.prompt
        kept = partial(self._harness.image, ephemeral=plan.options.ephemeral)
        blocks = tuple(kept(image.data, os.path.basename(image.name)) for image in plan.images)
        return user_message(f"msg-{secrets.token_hex(12)}", clean_text(plan.prompt), images=blocks)

    def _observe(self, scope: Any) -> None:
        scope.observe("session/event", self._on_event)

    def _on_event(self, event: Event) -> None:
        self._fold.apply(event)
        if self._arguments.json_lines:
            self._output.line(event.to_json())

    # --- limits of time ----------------------------------------------------------------------

    def _arm_limits(self) -> None:
        limits = self._plan.options.limits
        if limits.timeout_s is not None:
            self._at(limits.timeout_s, lambda: self.stop("timeout"))
        if limits.deadline_s is not None:
            end = limits.deadline_s - min(_DEADLINE_MARGIN_S, limits.deadline_s * 0.1)
            warn = max(limits.deadline_s * 0.75, limits.deadline_s - _WARNING_S)
            self._at(warn, lambda: self._warn_of_deadline(round(end - warn)))
            self._at(end, lambda: self.stop("deadline"))

    def _at(self, seconds: float, callback: Callable[[], None]) -> None:
        left = self._started + seconds - time.monotonic()
        # A timer's callback runs in the hub and must not wait; asking an agent does.
        self._timers.append(after(left, lambda: _in_background(callback)))

    def _warn_of_deadline(self, seconds: int) -> None:
        if self._handle is not None and not self._is_idle:
            self._handle.inject(
                f"The time for this run ends in about {seconds} seconds. Finish now: start nothing new and "
                "give your final answer with what you have."
            )

    # --- waiting and stopping ----------------------------------------------------------------

    def stop(self, why: str) -> None:
        """Cancel what runs; ``why`` is signal, pipe, timeout or deadline. The first reason stays."""
        if self._stopped_by is not None:
            return
        self._stopped_by = why
        self._give_up_at = time.monotonic() + GRACE_S
        self._wake.set()
        cause: JsonObject = {"kind": "user"}
        if why in ("timeout", "deadline"):
            cause = {"kind": "hook", "reason": why}
        if self._handle is not None:
            self._handle.cancel(cause)

    def _wait(self, handle: AgentHandle) -> None:
        """Until the agent is idle, or the grace after a stop is over."""
        start_task(lambda _token: handle.when_idle(None), self._on_idle, name="run/when-idle")
        while not self._is_idle:
            left = None if self._give_up_at is None else self._give_up_at - time.monotonic()
            if left is not None and left <= 0:
                return
            self._wake.wait(left)
            self._wake.clear()

    def _on_idle(self, end: TaskEnd[Any]) -> None:
        self._is_idle = True
        self._error = end.error
        self._wake.set()

    def _dispose(self, handle: AgentHandle) -> None:
        left = _DISPOSE_S if self._give_up_at is None else max(0.5, self._give_up_at - time.monotonic())
        try:
            with deadline(left + 0.5):
                handle.dispose(left)
        except (ActorGone, DeadlinePassed):
            # Its turn is over or given up; what is left of it is the harness's to end.
            return
        except HarnessError as error:
            self._error = self._error or error

    def _circumstances(self, handle: AgentHandle) -> Circumstances:
        reason, message = self._outside_reason()
        warnings = list(self._plan.warnings)
        if self._harness.sandbox == "none" and self._plan.options.sandbox == "auto":
            warnings.append("no sandbox works here: commands ran with the rights of the user")
        return Circumstances(
            session_id=handle.id,
            signal=self._signals.name,
            reason=reason,
            message=message,
            duration_ms=round((time.monotonic() - self._started) * 1000),
            sandbox=self._harness.sandbox,
            warnings=tuple(warnings),
            fail_on_denied=self._plan.fail_on_denied,
            simple_exit=self._arguments.simple_exit,
        )

    def _forced_end(self, handle: AgentHandle) -> RunEnd:
        name = self._signals.name
        facts = replace(
            self._circumstances(handle), reason="interrupted", message=f"{name} came twice: left at once"
        )
        return self._fold.end(facts)

    def _outside_reason(self) -> tuple[str | None, str | None]:
        """A reason that the log does not hold."""
        if self._stopped_by == "pipe":
            return "pipe", "the reader of standard output went away"
        if isinstance(self._error, StorageError):
            return reason_of_error(self._error), describe_error(self._error)
        if self._fold.has_ended:
            return None, None
        if self._stopped_by in ("timeout", "deadline"):
            return self._stopped_by, f"--{self._stopped_by} passed, and the agent did not stop in time"
        if self._error is not None and self._signals.name is None:
            return reason_of_error(self._error), describe_error(self._error)
        return None, None


def _in_background(callback: Callable[[], None]) -> None:
    start_task(lambda _token: callback(), _ignore_end, name="run/time-limit")


def _ignore_end(end: TaskEnd[None]) -> None:
    """The run's own wait decides what happens; a failed cancel shows there as a run that goes on."""
