"""What to do with each task: which session it has or gets, and what that session tells of earlier work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from dsh_actors.cli.batch_tasks import Task
from dsh_actors.cli.stored import exists
from dsh_actors.core.batch import (
    CONTINUATION,
    TASK_EVENT,
    Finished,
    StoredTask,
    decide,
    task_session_id,
)
from dsh_actors.core.ids import SessionId
from dsh_actors.core.outcome import Circumstances, OutcomeFold, RunEnd
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import SessionCorrupt, SessionUnsupported
from dsh_actors.runs import RunPlan
from dsh_actors.runtime.files import run_native
from dsh_actors.task_spec import TaskSpec

if TYPE_CHECKING:
    from dsh_actors.harness import Harness

__all__ = ["Attempt", "Attempts"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at a task. ``fold`` has what its session holds of it so far, ``record`` is what the session
    is to be marked with, ``end`` is there where nothing is left to run."""

    number: int
    plan: RunPlan
    session_id: str | None
    fold: OutcomeFold = field(hash=False)
    goes_on: bool = False
    record: JsonObject | None = field(default=None, hash=False)
    end: RunEnd | None = field(default=None, hash=False)


@dataclass(slots=True)
class _Look:
    """What the newest session of a task says. Times are ms since the epoch."""

    stored: StoredTask
    fold: OutcomeFold
    began: int | None = None
    ended: int = 0

    def end(self, plan: RunPlan, session_id: str) -> RunEnd:
        """How it ended, by what the session says."""
        facts = Circumstances(
            session_id=session_id,
            duration_ms=0 if self.began is None else max(0, self.ended - self.began),
            fail_on_denied=plan.fail_on_denied,
            simple_exit=plan.simple_exit,
            abandoned=self.stored.owed.names,
        )
        return self.fold.end(facts)


class Attempts:
    """Decides for the batch ``name``. Sessions are looked at only if ``looks``: a new batch has none."""

    def __init__(
        self, harness: Harness, name: str, make_plan: Callable[[TaskSpec], RunPlan], *, looks: bool
    ) -> None:
        self._harness = harness
        self._name = name
        self._make_plan = make_plan
        self._looks = looks

    def next(self, task: Task, finished: Finished | None, *, retry_failed: bool) -> Attempt:
        """Raises `UsageError` for what cannot be run, and what reading its session raises."""
        spec = task.spec
        assert spec is not None and task.id is not None  # a task without a fault has both
        plan = self._make_plan(spec)
        newest = self._newest(task, spec) if self._looks and not spec.ephemeral else 0
        if newest == 0:
            return self._begun(task, spec, plan, 1)
        try:
            look = self._look(task, spec, plan, newest)
        except (SessionCorrupt, SessionUnsupported):
            if retry_failed and finished is not None:
                return self._begun(task, spec, plan, newest + 1)
            raise
        end = look.end(plan, self._session_of(task, spec, newest))
        decision = decide(
            task.digest, finished, look.stored, retry_failed=retry_failed, completed=end.completed
        )
        match decision.action:
            case "report":
                return Attempt(newest, plan, end.session_id, look.fold, goes_on=True, end=end)
            case "resume":
                return self._continued(task, spec, plan, look)
        return self._begun(task, spec, plan, decision.attempt)

    def _begun(self, task: Task, spec: TaskSpec, plan: RunPlan, number: int) -> Attempt:
        session = self._session_of(task, spec, number)
        record = {"batch": self._name, "task": task.id, "digest": task.digest}
        return Attempt(
            1 if spec.resume or spec.session_id else number,
            replace(plan, options=replace(plan.options, session_id=session)),
            session,
            OutcomeFold(plan.price_of),
            record=None if spec.ephemeral else record,
        )

    def _continued(self, task: Task, spec: TaskSpec, plan: RunPlan, look: _Look) -> Attempt:
        """A session that was left before its prompt was in it still needs the prompt."""
        number, was_prompted = look.stored.attempt, look.stored.was_prompted
        session = self._session_of(task, spec, number)
        prompt = CONTINUATION if was_prompted else plan.prompt
        plan = replace(plan, prompt=prompt, resume=session, fork=None)
        return Attempt(number, plan, session, look.fold, goes_on=was_prompted)

    def _session_of(self, task: Task, spec: TaskSpec, attempt: int) -> str:
        """A session that the task names itself is the one of every attempt."""
        return spec.resume or spec.session_id or task_session_id(self._name, task.id or "", attempt)

    def _look(self, task: Task, spec: TaskSpec, plan: RunPlan, attempt: int) -> _Look:
        """Read what a session of the task tells."""
        stored = StoredTask(self._name, task.id or "", attempt, waits=not plan.no_wait)
        look = _Look(stored, OutcomeFold(plan.price_of))
        for event in self._harness.read_from(self._session_of(task, spec, attempt)):
            if event.type == TASK_EVENT:
                look.fold, look.began = OutcomeFold(plan.price_of), None
            if look.stored.apply(event):
                look.fold.apply(event)
                look.began = event.time if look.began is None else look.began
                look.ended = event.time
        return look

    def _newest(self, task: Task, spec: TaskSpec) -> int:
        """The number of the newest attempt that has a session, 0 for none."""
        found = partial(exists, self._harness.storage)
        number = 0
        while run_native(found, SessionId(self._session_of(task, spec, number + 1))):
            number += 1
            if spec.resume or spec.session_id:
                break
        return number
