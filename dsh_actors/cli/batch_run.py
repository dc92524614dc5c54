"""The tasks of a batch in one harness, so many at a time; each has its result line, however it ends.

What one task meets is that task's result and nobody else's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dsh_actors.cli.batch_attempts import Attempt, Attempts
from dsh_actors.cli.batch_input import LineReader
from dsh_actors.cli.batch_output import Earlier, ResultSink
from dsh_actors.cli.batch_tasks import LineReading, Task
from dsh_actors.core.batch import TASK_EVENT, BatchStop, Spending, Tally, needs_look
from dsh_actors.core.events import Event
from dsh_actors.core.exit_codes import describe_error, exit_code_of, reason_of_error
from dsh_actors.core.options import GRACE_S
from dsh_actors.core.outcome import Circumstances, OutcomeFold, RunEnd
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import ActorGone, SessionExists, StorageError
from dsh_actors.runs import Run
from dsh_actors.runtime.ref import ACTOR_TIMEOUT
from dsh_actors.runtime.tasks import TaskEnd, start_task

if TYPE_CHECKING:
    from dsh_actors.harness import Harness

__all__ = ["Batch", "BatchSettings", "RunningTask"]

_CLOSE_S = 5.0
_LAST_LINES_S = 1.5
"""What result lines may take beyond the grace that the tasks have."""


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """What was asked of the whole batch. ``name`` is part of the sessions' ids."""

    name: str
    jobs: int
    resume: bool = False
    retry_failed: bool = False
    fail_fast: bool = False
    simple_exit: bool = False


@dataclass(eq=False, slots=True)
class RunningTask:
    """A task that has a place. ``run`` is there once it has an agent."""

    task: Task
    started: float = field(default_factory=time.monotonic)
    run: Run | None = None
    tokens: int = 0
    cost: float | None = 0.0


class Batch:
    """Runs the tasks of ``lines``; used once. `stop` may be called at any time, from anywhere."""

    def __init__(
        self,
        harness: Harness,
        settings: BatchSettings,
        attempts: Attempts,
        sink: ResultSink,
        earlier: Earlier,
        spending: Spending,
    ) -> None:
        self.running: dict[int, RunningTask] = {}
        self.tally = Tally(simple_exit=settings.simple_exit)
        self.stopped: BatchStop | None = None
        self.read_share: float | None = None
        """How much of the tasks file has been read; None where that cannot be told."""
        self.on_end: Callable[[Task, RunEnd], None] | None = None
        """Hears of each result."""
        self._harness = harness
        self._settings = settings
        self._attempts = attempts
        self._sink = sink
        self._earlier = earlier
        self._spending = spending
        self._places = threading.Semaphore(settings.jobs)
        self._wake = threading.Event()
        self._give_up_at: float | None = None
        self._reader: LineReader | None = None

    def run(self, reader: LineReader, reading: LineReading) -> None:
        """All tasks to their ends, or until it is stopped. Raises OSError for what cannot be read."""
        self._reader = reader
        try:
            for task in self._tasks(reader, reading):
                self._start(task)
        finally:
            self._wait()

    def stop(self, stop: BatchStop) -> None:
        """Start nothing more and cancel what runs; the first reason stays. Waits for nothing."""
        if self.stopped is not None:
            return
        self.stopped = stop
        self._give_up_at = time.monotonic() + GRACE_S + _LAST_LINES_S
        if self._reader is not None:
            self._reader.stop()
        self._places.release()  # for whoever waits for one
        self._wake.set()
        for entry in self.running.values():
            if entry.run is not None:
                self._stop_run(entry.run)

    # --- from lines to tasks -----------------------------------------------------------------

    def _tasks(self, reader: LineReader, reading: LineReading) -> Iterator[Task]:
        """Those that are not done. A line is read when there is a place for it."""
        lines = iter(reader)
        while self._has_place():
            task = None
            while task is None:
                line = next(lines, None)
                if line is None or self.stopped is not None:
                    return
                self.read_share = line.read_share
                task = reading.task(line)
                if self._is_done(task):
                    task = None
            yield task

    def _has_place(self) -> bool:
        self._places.acquire()
        return self.stopped is None

    def _is_done(self, task: Task) -> bool:
        """Whether an earlier result line says all there is to say."""
        if task.fault is not None:
            if (task.line, task.digest) not in self._earlier.refused:
                return False
            self.tally.skip("usage")
            return True
        known = self._earlier.finished.get(task.id or "")
        if needs_look(task.digest, known, retry_failed=self._settings.retry_failed):
            return False
        if known is not None:
            self.tally.skip(known.status)
        return True

    # --- one task ----------------------------------------------------------------------------

    def _start(self, task: Task) -> None:
        entry = self.running[task.line] = RunningTask(task)
        start_task(
            lambda _token: self._work(entry), partial(self._ended, entry), name=f"batch/{task.line}"
        )

    def _ended(self, entry: RunningTask, end: TaskEnd[None]) -> None:
        del self.running[entry.task.line]
        self._places.release()
        self._wake.set()
        if end.error is not None:
            message = f"line {entry.task.line}: {describe_error(end.error)}"
            self.stop(BatchStop(_stop_reason(end.error), message))

    def _work(self, entry: RunningTask) -> None:
        task, attempt, fold = entry.task, None, OutcomeFold()
        try:
            if task.fault is not None:
                raise task.fault
            known = self._earlier.finished.get(task.id or "")
            attempt = self._attempts.next(task, known, retry_failed=self._settings.retry_failed)
            fold = attempt.fold
            end = attempt.end or self._run(entry, attempt)
        except Exception as error:
            # Whatever it is that keeps a task from running, the others are not concerned.
            end = _not_run(error, attempt)
        if end is None:
            return  # stopped before it began: nothing is done of it
        self._account(entry, fold)
        self._report(task, attempt, end, fold.currency)

    def _run(self, entry: RunningTask, attempt: Attempt) -> RunEnd | None:
        if self.stopped is not None:
            return None
        run = Run(self._harness, attempt.plan, started=entry.started, on_event=self._watching(entry))
        run.fold = attempt.fold
        entry.tokens, entry.cost = _spent(attempt.fold)
        try:
            handle = run.open()
        except ActorGone as error:
            if error.code != ACTOR_TIMEOUT:
                # The harness has failed: it runs no other task either.
                self.stop(BatchStop("internal", describe_error(error)))
            raise
        entry.run = run
        if attempt.record is not None:
            try:
                handle.record(TASK_EVENT, attempt.record, ignorable=True)
            except BaseException:
                handle.dispose(_CLOSE_S)
                raise
        if self.stopped is not None:
            self._stop_run(run)
        run.drive()
        return self._as_stopped(run.end())

    def _stop_run(self, run: Run) -> None:
        signal = None if self.stopped is None else self.stopped.signal
        why = "batch" if signal is None else "signal"
        start_task(lambda _token: run.stop(why, signal), _ignore_end, name="batch/stop")

    def _as_stopped(self, end: RunEnd) -> RunEnd:
        """What the end of the batch did to a task is no failure of the task."""
        stop = self.stopped
        if stop is None or stop.signal is not None or end.reason not in ("interrupted", "internal"):
            return end
        code = exit_code_of("interrupted", simple=self._settings.simple_exit)
        return replace(end, reason="interrupted", exit_code=code, message=f"stopped: {stop.message}")

    def _report(self, task: Task, attempt: Attempt | None, end: RunEnd, currency: str | None) -> None:
        if end.status == "usage" and (task.line, task.digest) in self._earlier.refused:
            self.tally.skip(end.status)  # nothing has changed since it was told
            return
        self.tally.add(end, currency)
        line: JsonObject = {"type": "task.end", "id": task.id, "line": task.line, "digest": task.digest}
        line["attempt"] = 0 if attempt is None else attempt.number
        line["resumed"] = attempt is not None and attempt.goes_on
        line |= {key: value for key, value in end.to_json().items() if key != "type"}
        self._sink.put(line)
        if self.on_end is not None:
            self.on_end(task, end)
        if self._settings.fail_fast and not end.completed:
            self.stop(BatchStop("tasks_failed", f"--fail-fast: {task.id or f'line {task.line}'} failed"))

    # --- limits of the whole, waiting --------------------------------------------------------

    def _watching(self, entry: RunningTask) -> Callable[[Event], None] | None:
        if not self._spending.is_limited:
            return None

        def watch(event: Event) -> None:
            if event.type == "step/end" and entry.run is not None:
                self._account(entry, entry.run.fold)

        return watch

    def _account(self, entry: RunningTask, fold: OutcomeFold) -> None:
        if not self._spending.is_limited or entry.run is None:
            return
        tokens, cost = _spent(fold)
        more = None if cost is None or entry.cost is None else cost - entry.cost
        stop = self._spending.add(tokens - entry.tokens, more, fold.currency)
        entry.tokens, entry.cost = tokens, cost
        if stop is not None:
            self.stop(stop)

    def _wait(self) -> None:
        while self.running:
            left = None if self._give_up_at is None else self._give_up_at - time.monotonic()
            if left is not None and left <= 0:
                return  # what is left of them is in their sessions
            self._wake.wait(left)
            self._wake.clear()


def _spent(fold: OutcomeFold) -> tuple[int, float | None]:
    both = (fold.tokens, fold.child_tokens)
    total = sum(each.input + each.cache_read + each.cache_write + each.output for each in both)
    return total, fold.cost if fold.steps else 0.0  # before its first step a task has no price


def _not_run(error: BaseException, attempt: Attempt | None) -> RunEnd:
    message = describe_error(error)
    if isinstance(error, SessionExists) and not error.hint:
        message += "; --resume goes on with it, another --name begins anew"
    facts = Circumstances(
        reason=reason_of_error(error),
        message=message,
        session_id=None if attempt is None else attempt.plan.resume,
        simple_exit=attempt is not None and attempt.plan.simple_exit,
    )
    return OutcomeFold().end(facts)


def _stop_reason(error: BaseException) -> str:
    return reason_of_error(error) if isinstance(error, StorageError) else "internal"


def _ignore_end(end: TaskEnd[Any]) -> None:
    """The task's own wait decides what happens."""
