"""The tools for background jobs: what the model reads of them. The jobs are played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dsh_actors.adapters.tools.bash import BashTool
from dsh_actors.adapters.tools.job_tools import (
    MAX_WAIT_S,
    JobListTool,
    JobOutputTool,
    JobStopTool,
    JobWaitTool,
)
from dsh_actors.adapters.tools.registry import builtin_tools
from dsh_actors.core.ids import CallId, SessionId
from dsh_actors.core.jobs import JobReading, JobView
from dsh_actors.core.loop_guard import STOP_AT, LoopGuard
from dsh_actors.errors import ToolError
from dsh_actors.ports import ToolContext
from dsh_actors.runtime.cancel import CancelSource

RUNNING = JobView("bash-1", "make all", "running", "", 1.0)
ENDED = JobView("bash-2", "make test", "completed", "exit code 0", 12.34)


class PlayedJobs:
    """A `ports.Jobs` that keeps what it was asked. Every job has ``output`` to read."""

    def __init__(self, *views: JobView, output: bytes = b"") -> None:
        self.views = {view.id: view for view in views}
        self.output = output
        self.asked: list[tuple[Any, ...]] = []

    def start(self, label: str, argv: Sequence[str], **more: Any) -> JobView:
        self.asked.append(("start", label, argv[-2:], more["timeout_s"], more["env"]["PAGER"]))
        return RUNNING

    def all(self) -> tuple[JobView, ...]:
        return tuple(self.views.values())

    def read(self, job_id: str) -> JobReading:
        self.asked.append(("read", job_id))
        return JobReading(self.views[job_id], self.output, 0)

    def stop(self, job_id: str) -> JobView:
        self.asked.append(("stop", job_id))
        self.views[job_id] = JobView(job_id, "make all", "killed", "stopped", 2.0)
        return self.views[job_id]

    def wait(
        self, ids: Sequence[str], *, first: bool = False, timeout_s: float, cancel: Any
    ) -> tuple[JobView, ...]:
        self.asked.append(("wait", tuple(ids), first, timeout_s))
        return tuple(self.views[job_id] for job_id in ids)


def context(jobs: PlayedJobs | None, limit: int = 4_000) -> ToolContext:
    return ToolContext(
        session_id=SessionId("s"),
        call_id=CallId("c"),
        cwd="/",
        roots=("/",),
        env={"PATH": "/usr/bin:/bin", "PAGER": "less"},
        cancel=CancelSource().token,
        timeout_s=20.0,
        output_limit_bytes=limit,
        processes=None,  # type: ignore[arg-type]  # nothing here runs one
        wrap=lambda argv, cwd: argv,
        jobs=jobs,
    )


def use(tool: Any, jobs: PlayedJobs, limit: int = 4_000, **arguments: Any) -> str:
    return str(tool.execute(arguments, context(jobs, limit)).text)


@pytest.mark.parametrize(("asked", "used"), [(None, None), (5, 5), (-1, None), (float("nan"), None)])
def test_a_command_in_the_background_is_a_job_without_a_limit_of_its_own(asked: Any, used: Any) -> None:
    jobs, arguments = PlayedJobs(), {"command": "make all", "background": True}
    if asked is not None:
        arguments["timeout_s"] = asked
    output = BashTool().execute(arguments, context(jobs))
    assert "bash-1" in output.text and output.meta == {"job": "bash-1"} and not output.is_error
    assert jobs.asked == [("start", "make all", ["-c", "make all"], used, "cat")]


@pytest.mark.parametrize("tool", [JobListTool(), JobWaitTool()])
def test_without_a_place_for_jobs_every_use_is_refused(tool: Any) -> None:
    with pytest.raises(ToolError):
        tool.execute({}, context(None))
    with pytest.raises(ToolError):
        BashTool().execute({"command": "make", "background": True}, context(None))


def test_jobs_are_listed_with_their_commands() -> None:
    listed = use(JobListTool(), PlayedJobs(RUNNING, ENDED))
    assert listed.split("\n") == [
        "bash-1 is still running (make all)",
        "bash-2 has ended: exit code 0, after 12.3 s (make test)",
    ]
    assert use(JobListTool(), PlayedJobs()) == "There are no background jobs."


def test_output_ends_with_the_state_of_the_job() -> None:
    text = use(JobOutputTool(), PlayedJobs(RUNNING, output=b"x"), id="bash-1")
    assert text == "x\n[bash-1 is still running]"
    jobs = PlayedJobs(ENDED)
    text = use(JobOutputTool(), jobs, id="bash-2")
    assert text == "(no new output)\n[bash-2 has ended: exit code 0, after 12.3 s]"
    assert jobs.asked == [("read", "bash-2")]  # no wait unless one is asked for


def test_output_is_cut_in_the_middle_and_the_state_stays() -> None:
    text = use(JobOutputTool(), PlayedJobs(RUNNING, output=b"a" * 3_000 + b"z" * 3_000), 1_000, id="bash-1")
    assert text.startswith("aaa") and text.endswith("zzz\n[bash-1 is still running]")
    assert "[5000 bytes omitted here]" in text and len(text) < 1_100


def test_asking_the_same_job_again_and_again_is_a_loop_and_waiting_is_none() -> None:
    guard = LoopGuard()
    for _ in range(STOP_AT):
        text = use(JobOutputTool(), PlayedJobs(RUNNING), id="bash-1")
        guard.begin_step()
        guard.observe("job_output", '{"id": "bash-1"}', {"content": text}, 10)
    assert guard.count == STOP_AT
    guard.observe("job_wait", "{}", {"content": "the same"}, 10)
    assert guard.count == 0


def test_waiting_reads_what_has_ended_and_says_what_goes_on() -> None:
    jobs = PlayedJobs(RUNNING, ENDED, output=b"done")
    text = use(JobWaitTool(), jobs, ids=["bash-1", "bash-2", "bash-1"], timeout_s=30)
    assert text.split("\n") == [
        "done",
        "[bash-2 has ended: exit code 0, after 12.3 s]",
        "[bash-1 is still running]",
        "[waited 30 s]",
    ]
    assert jobs.asked == [("wait", ("bash-1", "bash-2"), False, 30), ("read", "bash-2")]


def test_waiting_is_for_all_that_run_unless_some_are_named() -> None:
    jobs = PlayedJobs(ENDED, RUNNING)
    use(JobWaitTool(), jobs, any=True)
    assert jobs.asked[0] == ("wait", ("bash-1",), True, MAX_WAIT_S)
    assert use(JobWaitTool(), PlayedJobs(ENDED)) == "No background job is running."


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_wait_is_positive_and_finite(seconds: float) -> None:
    jobs = PlayedJobs(RUNNING)
    for tool, arguments in ((JobWaitTool(), {}), (JobOutputTool(), {"id": "bash-1"})):
        with pytest.raises(ToolError) as refused:
            use(tool, jobs, timeout_s=seconds, **arguments)
        assert refused.value.code == "INVALID_ARGS"
    assert jobs.asked == []
    use(JobOutputTool(), jobs, id="bash-1", timeout_s=10 * MAX_WAIT_S)
    assert jobs.asked[0] == ("wait", ("bash-1",), False, MAX_WAIT_S)


def test_stopping_answers_with_the_end() -> None:
    jobs = PlayedJobs(RUNNING, output=b"last words\n")
    assert use(JobStopTool(), jobs, id="bash-1") == "last words\n[bash-1 has ended: stopped, after 2.0 s]"
    assert [asked[0] for asked in jobs.asked] == ["stop", "wait", "read"]


def test_no_tool_for_jobs_takes_a_slot_from_those_that_work() -> None:
    specs = [tool.spec for tool in builtin_tools() if tool.spec.name.startswith("job_")]
    assert len(specs) == 4
    assert all(not spec.holds_slot and not spec.changes for spec in specs)
    assert all(spec.timeout_s is not None and spec.timeout_s > MAX_WAIT_S for spec in specs)
