"""Background jobs of agents: commands that go on while their owner works, and after its turn.

A job is owned work: its owner hears of its end before it is released, and it is ended with its owner.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.actors.lifecycle import AgentEntry
from dsh_actors.actors.owned_work import OwnedWork, WorkItem
from dsh_actors.core import turn_io as io
from dsh_actors.core.bounded_output import BoundedOutput, exit_words, without_cut_end
from dsh_actors.core.ids import SessionId
from dsh_actors.core.jobs import (
    JobLog,
    JobReading,
    JobStatus,
    JobView,
    NoticeBudget,
    ended_fact,
    notice_source,
    notice_text,
    started_fact,
    unknown_end_text,
)
from dsh_actors.core.messages import UserSource, user_message
from dsh_actors.core.redaction import Redactor
from dsh_actors.core.scope import Scope
from dsh_actors.core.text import JsonObject, clean_text, shorten
from dsh_actors.errors import ActorGone, ToolError, error_chain
from dsh_actors.ports import CancelToken, ProcessResult, ProcessRunner, RunningProcess
from dsh_actors.runtime.cancel import Cancelled
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.tasks import Task, TaskEnd, start_task

__all__ = ["MAX_JOBS", "AgentJobs", "JobGround"]

MAX_JOBS = 10
"""Jobs of one agent that go on at once."""
KEPT_ENDED = 20
"""So many ended jobs of an agent can still be read."""
STATUS_TIMEOUT_S = 30.0
_KEPT_BACK_BYTES = 4_096
"""How far from its end new output is looked at for the beginning of a secret."""
_KIND = "bash"
_LABEL_IN_LOG = 2_000


@dataclass(frozen=True, slots=True)
class JobGround:
    """What the jobs of a harness share; ``agents`` are its live ones."""

    work: OwnedWork
    processes: ProcessRunner
    redactor: Redactor
    agents: Mapping[SessionId, AgentEntry]

    def jobs_of(self, owner: SessionId, scope: Scope, log: JobLog) -> AgentJobs:
        """The jobs of an agent that is being built, whose log says ``log`` of earlier ones."""
        jobs = AgentJobs(self, owner, scope, log)
        if log.open:
            scope.listen("agent/session-start", jobs.report_lost)
        return jobs


class _Job:
    """One job: its state and what it wrote since it was read last."""

    def __init__(self, job_id: str, label: str, limit: int) -> None:
        self.id = job_id
        self.label = label
        self.limit = limit
        self.status: JobStatus = "running"
        self.detail = ""
        self.is_reported = False
        """Whether its owner knows of its end, or asked for it."""
        self.is_cut = False
        """Whether somebody else ended it."""
        self.task: Task | None = None
        self._output = BoundedOutput(limit)
        self._began = time.monotonic()
        self._duration_s: float | None = None

    @property
    def is_over(self) -> bool:
        return self.status not in ("running", "stopping")

    def view(self) -> JobView:
        duration = time.monotonic() - self._began if self._duration_s is None else self._duration_s
        return JobView(self.id, self.label, self.status, self.detail, duration)

    def write(self, piece: bytes) -> None:
        self._output.add(piece)

    def peek(self) -> JobReading:
        output, omitted = self._output.parts()
        return JobReading(self.view(), output, omitted)

    def take(self, redactor: Redactor) -> JobReading:
        """Everything new, but for the end of what may go on as a character or as a secret."""
        output, omitted = self._output.parts()
        whole, self._output = output, BoundedOutput(self.limit)
        if not self.is_over:
            output = without_cut_end(output)
            tail = output[-_KEPT_BACK_BYTES:]
            output = output[: len(output) - len(tail) + redactor.open_end(tail.decode("latin-1"))]
            self._output.add(whole[len(output) :])
        return JobReading(self.view(), output, omitted)

    def end(self) -> None:
        """Begin to end it. Its owner needs no word of what it asked for."""
        if not self.is_over:
            self.is_reported = True
            self._begin_to_end()

    def cut(self) -> None:
        """Begin to end it, because the run of its owner ends, who hears of it when it goes on."""
        if self.status == "running":
            self.is_cut = True
            self._begin_to_end()

    def _begin_to_end(self) -> None:
        self.status = "stopping"
        if self.task is not None:
            self.task.cancel("stopped")

    def settle(self, status: JobStatus, detail: str, duration_s: float | None) -> None:
        self._duration_s = time.monotonic() - self._began if duration_s is None else duration_s
        self.status, self.detail = status, detail


class _Waiter:
    """A call that waits. ``done`` is set when it has answered, or was given up."""

    def __init__(self, jobs: tuple[_Job, ...], first: bool) -> None:
        self.jobs = jobs
        self.first = first
        self.woken = threading.Event()
        self.done = threading.Event()

    @property
    def is_satisfied(self) -> bool:
        return (any if self.first else all)(job.is_over for job in self.jobs)


class AgentJobs:
    """The jobs of one agent, across restarts of its actor. Implements `ports.Jobs`."""

    def __init__(self, ground: JobGround, owner: SessionId, scope: Scope, log: JobLog) -> None:
        self._ground = ground
        self._owner = owner
        self._scope = scope
        self._log = log
        self._budget = NoticeBudget()
        self._jobs: dict[str, _Job] = {}
        self._waiters: list[_Waiter] = []
        self._telling = threading.Lock()
        self._is_watching = False

    # --- `ports.Jobs` ------------------------------------------------------------------------

    def start(
        self,
        label: str,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout_s: float | None,
        output_limit_bytes: int,
    ) -> JobView:
        if sum(not job.is_over for job in self._jobs.values()) >= MAX_JOBS:
            raise ToolError(
                f"{MAX_JOBS} background jobs are running, which is the most",
                code="TOO_MANY_JOBS",
                hint="wait for one with job_wait, or stop one with job_stop",
            )
        self._watch_claims()
        self._log.started += 1
        job = _Job(f"{_KIND}-{self._log.started}", label, output_limit_bytes)
        item = self._ground.work.add(self._owner, job.id, _KIND, label, job.cut)
        try:
            process = self._ground.processes.start(argv, cwd=cwd, env=env, on_output=job.write)
        except BaseException:
            self._ground.work.release(item)
            raise
        self._forget_old()
        self._jobs[job.id] = job
        self._record("job/started", started_fact(job.id, _KIND, shorten(label, _LABEL_IN_LOG)))
        job.task = start_task(
            lambda token: self._follow(job, process, timeout_s, token),
            lambda end: self._ended(item, end),
            name=f"job {job.id} {self._owner}",
        )
        return job.view()

    def all(self) -> tuple[JobView, ...]:
        return tuple(job.view() for job in self._jobs.values())

    def read(self, job_id: str) -> JobReading:
        job = self._find(job_id)
        job.is_reported |= job.is_over
        return job.take(self._ground.redactor)

    def stop(self, job_id: str) -> JobView:
        job = self._find(job_id)
        job.end()
        return job.view()

    def wait(
        self, ids: Sequence[str], *, first: bool = False, timeout_s: float, cancel: CancelToken
    ) -> tuple[JobView, ...]:
        jobs = tuple(self._find(job_id) for job_id in ids)
        waiter = _Waiter(jobs, first)
        self._waiters.append(waiter)
        undo = cancel.on_cancel(waiter.woken.set)
        try:
            if not waiter.is_satisfied:
                waiter.woken.wait(timeout_s)
            if cancel.reason is not None and not waiter.is_satisfied:
                raise Cancelled(cancel.reason)
            for job in jobs:
                job.is_reported |= job.is_over
        finally:
            undo()
            self._waiters.remove(waiter)
            waiter.done.set()
        return tuple(job.view() for job in jobs)

    # --- one job from its start to its end ---------------------------------------------------

    def _follow(
        self,
        job: _Job,
        process: RunningProcess,
        timeout_s: float | None,
        token: CancelToken,
    ) -> None:
        """Wait for its end and tell of it, whoever waits for it first. In a task of its own."""
        left = float("inf") if timeout_s is None else timeout_s
        try:
            result = process.wait(timeout_s=left, cancel=token)
            job.settle(*_outcome(result, timeout_s), result.duration_s)
        except Exception as error:
            # A fault of ours: the command may go on, and is ended with the harness.
            LOGGER.exception("job %s of %s was lost", job.id, self._owner)
            job.settle("failed", f"lost: {error_chain(error)}", None)
        self._record("job/ended", ended_fact(job.view()))
        self._wake_waiters(job)
        while waiting := [waiter for waiter in self._waiters if job in waiter.jobs]:
            waiting[0].done.wait()
        if not job.is_reported:
            with self._telling:
                self._tell_owner(job)

    def _ended(self, item: WorkItem, end: TaskEnd[None]) -> None:
        if end.error is not None:
            LOGGER.error("job %s of %s: %s", item.id, self._owner, error_chain(end.error))
        self._ground.work.release(item)

    def _wake_waiters(self, job: _Job) -> None:
        for waiter in self._waiters:
            if job in waiter.jobs and waiter.is_satisfied:
                waiter.woken.set()

    def _tell_owner(self, job: _Job) -> None:
        """Deliver the notice: an idle owner is woken by it, as often as its budget allows."""
        is_idle = self._is_owner_idle()
        if job.is_reported:
            return  # somebody read it meanwhile
        job.is_reported = True
        text = notice_text(job.peek(), job.limit)
        if job.is_cut or self._ground.work.is_quiet(self._owner):
            self._deliver([job.id], text, "next-step", wake=False)
        elif not is_idle:
            # Should its turn be just over, the notice begins another.
            self._deliver([job.id], text, "next-step", wake=True)
        elif self._budget.may_wake(len(self._ground.work.of(self._owner)) > 1):
            self._deliver([job.id], text, "next-turn", wake=True)
        else:
            self._deliver([job.id], text, "next-step", wake=False)

    def _is_owner_idle(self) -> bool:
        address = self._address()
        try:
            status = None if address is None else address.ask(p.GetStatus(), timeout=STATUS_TIMEOUT_S)
        except ActorGone:
            return False  # it is just being rebuilt, or gone
        return status is not None and status.status == "idle"

    # --- messages to the owner ---------------------------------------------------------------

    def report_lost(self, _payload: Any = None) -> None:
        """An agent is resumed: tell it of the jobs that a crash ended, before anybody speaks to it."""
        lost, self._log.open = self._log.open, {}
        for job_id in lost:
            self._record("job/ended", {"id": job_id, "status": "unknown", "detail": "", "durationMs": 0})
        if lost:
            self._deliver(list(lost), unknown_end_text(lost), "next-step", wake=False)

    def _deliver(self, jobs: list[str], text: str, target: Any, *, wake: bool) -> None:
        source = notice_source(jobs)
        message = user_message(f"msg-{secrets.token_hex(12)}", clean_text(text), source)
        self._send(io.Deliver(self._ground.redactor.message(message), target, wake))

    def _record(self, kind: str, data: JsonObject) -> None:
        self._send(io.Record(kind, self._ground.redactor.json(data), ignorable=True))

    def _send(self, message: io.Deliver | io.Record) -> None:
        address = self._address()
        if address is not None:
            address.tell(message)

    def _address(self) -> Address | None:
        entry = self._ground.agents.get(self._owner)
        return None if entry is None else entry.address

    # --- the table ---------------------------------------------------------------------------

    def _find(self, job_id: str) -> _Job:
        job = self._jobs.get(job_id)
        if job is None:
            known = ", ".join(self._jobs) or "none"
            raise ToolError(
                f"there is no background job {shorten(job_id, 80)!r}; there are: {known}", code="NO_SUCH_JOB"
            )
        return job

    def _forget_old(self) -> None:
        ended = [job_id for job_id, job in self._jobs.items() if job.is_over]
        for job_id in ended[: max(0, len(ended) - KEPT_ENDED + 1)]:
            del self._jobs[job_id]

    def _watch_claims(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._scope.observe("agent/inbox/claimed", self._on_claimed)

    def _on_claimed(self, payload: Mapping[str, Any]) -> None:
        if isinstance(payload["message"].source, UserSource):
            self._budget.restore()


def _outcome(result: ProcessResult, timeout_s: float | None) -> tuple[JobStatus, str]:
    status: JobStatus
    match result.ended_by:
        case None:
            status = "completed" if result.exit_code == 0 else "failed"
            detail = exit_words(result.exit_code or 0)
        case "timeout":
            status, detail = "failed", f"timed out after {timeout_s:g} s and was stopped"
        case _:
            status, detail = "killed", "stopped"
    if result.left_running:
        detail += "; a process it started is still running and is ended with the run"
    return status, detail
