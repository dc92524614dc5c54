"""The jobs of an agent, with commands that the test plays: who hears of an end, how, and how often."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from dsh_actors.actors.jobs import KEPT_ENDED, MAX_JOBS, AgentJobs, JobGround
from dsh_actors.actors.owned_work import OwnedWork
from dsh_actors.core import turn_io as io
from dsh_actors.core.ids import SessionId
from dsh_actors.core.jobs import MAX_WAKES, JobLog, notice_source
from dsh_actors.core.messages import text_of, user_message
from dsh_actors.core.redaction import Redactor
from dsh_actors.core.scope import Scope
from dsh_actors.errors import ActorGone, ToolError
from dsh_actors.ports import ProcessResult
from dsh_actors.runtime.cancel import Cancelled, CancelSource
from dsh_actors.runtime.tasks import live_tasks, start_task
from tests.actors.kit import until

OWNER = SessionId("owner")
SECRET = "sk-canary-5f0c9b1e7a"


class Command:
    """A command that ends when the test, or whoever stops it, says so."""

    def __init__(self, on_output: Callable[[bytes], None]) -> None:
        self.write = on_output
        self._over = threading.Event()
        self._result: ProcessResult | BaseException | None = None

    def end(self, exit_code: int = 0, ended_by: str | None = None) -> None:
        self._end(ProcessResult(None if ended_by else exit_code, b"", 0, ended_by, False, 1.5))

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def _end(self, result: ProcessResult | BaseException) -> None:
        self._result = self._result or result
        self._over.set()

    def wait(self, *, timeout_s: float, cancel: Any) -> ProcessResult:
        undo = cancel.on_cancel(lambda: self.end(ended_by="cancelled"))
        if not self._over.wait(min(timeout_s, 60)):
            self.end(ended_by="timeout")
        undo()
        if isinstance(self._result, BaseException):
            raise self._result
        assert self._result is not None
        return self._result


@dataclass
class Owner:
    """Stands for the owner's address: keeps what it is told."""

    status: str = "idle"
    told: list[Any] = field(default_factory=list)
    is_gone: bool = False

    def ask(self, _message: Any, *, timeout: float) -> Any:
        if self.is_gone:
            raise ActorGone("it is being rebuilt")
        return SimpleNamespace(status=self.status)

    def tell(self, message: Any) -> None:
        self.told.append(message)

    @property
    def notices(self) -> list[tuple[str, bool, str]]:
        """(list, wakes, text) of each message."""
        return [(m.target, m.wake, text_of(m.message)) for m in self.told if isinstance(m, io.Deliver)]

    @property
    def facts(self) -> list[tuple[str, str, str | None]]:
        return [(m.type, m.data["id"], m.data.get("status")) for m in self.told if isinstance(m, io.Record)]


class Play:
    def __init__(self, log: JobLog | None = None) -> None:
        self.owner = Owner()
        self.work = OwnedWork()
        self.scope = Scope("agent")
        self.commands: list[Command] = []
        agents: Any = {OWNER: SimpleNamespace(address=self.owner)}
        self.ground = JobGround(self.work, self, Redactor({"KEY": SECRET}), agents)  # type: ignore[arg-type]
        self.jobs: AgentJobs = self.ground.jobs_of(OWNER, self.scope, log or JobLog())

    def start(self, _argv: Any, *, cwd: str, env: Any, on_output: Any) -> Command:
        """As `ports.ProcessRunner` has it."""
        if cwd == "/nowhere":
            raise ToolError("cannot run a command there", code="START_FAILED")
        self.commands.append(Command(on_output))
        return self.commands[-1]

    def begin(self, *, cwd: str = "/", timeout_s: float | None = None, limit: int = 1_000) -> str:
        view = self.jobs.start(
            "make", ["make"], cwd=cwd, env={}, timeout_s=timeout_s, output_limit_bytes=limit
        )
        return view.id

    def claim(self, message: Any) -> None:
        for observer in self.scope.handlers_of("agent/inbox/claimed"):
            observer({"message": message})

    def finish(self, number: int, text: str = "") -> None:
        """Let a command (from 1) end, and wait until its owner was told and it is released."""
        self.commands[number - 1].write(text.encode())
        self.commands[number - 1].end()
        until(lambda: all(item.id != f"bash-{number}" for item in self.work.of(OWNER)))


@pytest.fixture
def play():
    play = Play()
    yield play
    play.work.end_all(OWNER, 5)
    until(lambda: not live_tasks())


def waiting(play: Play, *ids: str, source: CancelSource | None = None, **more: Any) -> list[Any]:
    """Wait in a task of its own; the list gets the views, or the error."""
    end: list[Any] = []
    token = (source or CancelSource()).token
    start_task(
        lambda _token: play.jobs.wait(ids, timeout_s=more.pop("timeout_s", 60), cancel=token, **more),
        lambda done: end.append(done.error or [(view.id, view.status) for view in done.value or ()]),
        name="wait",
    )
    until(lambda: bool(play.jobs._waiters) or bool(end))
    return end


# --- notices ----------------------------------------------------------------------------------


def test_an_idle_owner_is_woken_with_what_the_job_wrote_before_the_job_is_released(play):
    play.begin()
    (item,) = play.work.of(OWNER)
    told_at_release: list[int] = []
    start_task(
        lambda _token: play.work.wait_for_release((item,), 10),
        lambda end: told_at_release.append(len(play.owner.notices)),
        name="watch",
    )
    play.finish(1, "built\n")
    until(lambda: bool(told_at_release))
    assert told_at_release == [1]
    ((target, wakes, text),) = play.owner.notices
    assert (target, wakes) == ("next-turn", True)
    assert "bash-1 has ended: exit code 0, after 1.5 s" in text and text.endswith("built\n")
    assert play.owner.facts == [("job/started", "bash-1", None), ("job/ended", "bash-1", "completed")]


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_busy_owner_hears_in_its_next_step_and_nothing_is_counted(play, is_gone):
    play.owner.status, play.owner.is_gone = "running", is_gone
    for number in range(1, MAX_WAKES + 2):
        play.begin()
        play.finish(number)
    assert [(target, wakes) for target, wakes, _ in play.owner.notices] == [("next-step", True)] * 4


def test_three_ends_in_a_row_wake_and_the_fourth_waits_until_a_person_has_spoken(play):
    for number in range(1, MAX_WAKES + 2):
        play.begin()
        play.finish(number)
        play.claim(user_message("n", "a notice", notice_source(["bash-1"])))
    wakes = [wakes for _, wakes, _ in play.owner.notices]
    assert wakes == [True, True, True, False]
    assert play.owner.notices[-1][0] == "next-step"
    play.claim(user_message("m", "go on"))
    play.begin()
    play.finish(MAX_WAKES + 2)
    assert play.owner.notices[-1][:2] == ("next-turn", True)


def test_the_last_wake_is_kept_for_the_last_of_several(play):
    for _ in range(5):
        play.begin()
    for number in range(1, 6):
        play.finish(number)
    assert [wakes for _, wakes, _ in play.owner.notices] == [True, True, False, False, True]


def test_an_end_that_was_asked_for_is_not_told(play):
    play.begin()
    assert play.jobs.stop("bash-1").status == "stopping"
    until(lambda: not play.work.of(OWNER))
    assert play.jobs.all()[0].status == "killed" and play.owner.notices == []
    assert play.owner.facts[-1] == ("job/ended", "bash-1", "killed")
    assert play.jobs.stop("bash-1").status == "killed"  # which changes nothing


def test_a_job_that_completes_while_it_is_being_stopped_is_not_announced_either(play):
    play.begin()
    play.commands[0].end()
    play.jobs.stop("bash-1")
    until(lambda: not play.work.of(OWNER))
    assert play.jobs.all()[0].status == "completed" and play.owner.notices == []


def test_a_notice_keeps_its_first_lines_and_cuts_the_output_in_the_middle(play):
    play.begin(limit=200)
    play.finish(1, "first" + "x" * 5_000 + "last")
    ((_, _, text),) = play.owner.notices
    assert text.startswith("The background job bash-1 has ended") and text.endswith("last")
    assert "first" in text and "bytes omitted here" in text and len(text) < 500


def test_a_fault_of_the_harness_is_told_as_a_failed_job(play):
    play.begin()
    play.commands[0].fail(OSError("no more descriptors"))
    until(lambda: not play.work.of(OWNER))
    assert play.jobs.all()[0].status == "failed" and "no more descriptors" in play.owner.notices[0][2]


def test_a_job_out_of_time_has_failed(play):
    play.begin(timeout_s=0.01)
    until(lambda: not play.work.of(OWNER))
    assert "timed out after 0.01 s" in play.owner.notices[0][2]


# --- waiting ----------------------------------------------------------------------------------


def test_an_end_that_somebody_waited_for_is_not_told(play):
    play.begin()
    end = waiting(play, "bash-1")
    play.commands[0].end(3)
    until(lambda: bool(end))
    assert end == [[("bash-1", "failed")]]
    until(lambda: not play.work.of(OWNER))
    assert play.owner.notices == []


def test_all_are_waited_for_or_the_first_of_them(play):
    play.begin(), play.begin()
    both, first = waiting(play, "bash-1", "bash-2"), []
    first = waiting(play, "bash-1", "bash-2", first=True)
    play.commands[1].end()
    until(lambda: bool(first))
    assert first == [[("bash-1", "running"), ("bash-2", "completed")]] and both == []
    play.commands[0].end()
    until(lambda: bool(both))
    assert both == [[("bash-1", "completed"), ("bash-2", "completed")]]


def test_a_wait_that_is_given_up_leaves_the_job_alone_and_its_end_is_told(play):
    play.begin(), play.begin()
    source = CancelSource()
    end = waiting(play, "bash-1", "bash-2", source=source)
    play.commands[0].end()
    until(lambda: play.jobs.all()[0].is_over)
    assert play.owner.notices == []  # the wait would answer with it
    source.cancel({"kind": "user"})
    until(lambda: len(play.owner.notices) == 1)
    assert isinstance(end[0], Cancelled)
    assert play.jobs.all()[1].status == "running"


def test_a_wait_that_is_given_up_in_the_moment_of_the_end_loses_nothing(play):
    play.begin()
    source = CancelSource()
    end = waiting(play, "bash-1", source=source)
    play.commands[0].end()
    source.cancel({"kind": "user"})
    until(lambda: not play.work.of(OWNER) and bool(end))
    # Either the wait answers with the end, or the owner is told of it; never both, never neither.
    assert (end == [[("bash-1", "completed")]]) != (len(play.owner.notices) == 1)


def test_a_wait_out_of_time_leaves_the_job_alone(play):
    play.begin()
    end = waiting(play, "bash-1", timeout_s=0.01)
    until(lambda: bool(end))
    assert end == [[("bash-1", "running")]]


# --- reading ----------------------------------------------------------------------------------


def test_each_read_gives_what_is_new(play):
    play.begin()
    play.commands[0].write(b"one\n")
    assert play.jobs.read("bash-1").output == b"one\n"
    assert play.jobs.read("bash-1").output == b""
    play.commands[0].write(b"two\n")
    play.commands[0].write(b"three\n")
    assert play.jobs.read("bash-1").output == b"two\nthree\n"
    play.finish(1, "four")
    assert play.owner.notices[0][2].endswith("four")
    assert play.jobs.read("bash-1").output == b"four"


def test_a_read_gives_no_part_of_a_character_or_a_secret_that_goes_on(play):
    play.begin()
    command = play.commands[0]
    command.write("grün".encode()[:3])
    assert play.jobs.read("bash-1").output == b"gr"
    command.write("grün".encode()[3:] + b" " + SECRET[:9].encode())
    assert play.jobs.read("bash-1").output == "ün ".encode()
    command.write(SECRET[9:].encode() + b" end\n")
    assert play.jobs.read("bash-1").output == SECRET.encode() + b" end\n"  # whole, as redaction needs it
    play.finish(1, SECRET)
    assert "[redacted:KEY]" in play.owner.notices[0][2] and SECRET not in play.owner.notices[0][2]


def test_what_nobody_reads_takes_no_more_room_than_the_limit(play):
    play.begin(limit=100)
    for _ in range(1_000):
        play.commands[0].write(b"0123456789" * 10)
    reading = play.jobs.read("bash-1")
    assert (len(reading.output), reading.omitted) == (100, 99_900)


# --- limits and ends --------------------------------------------------------------------------


def test_more_than_ten_at_once_are_refused_before_anything_starts_and_stopping_ones_count(play):
    for _ in range(MAX_JOBS):
        play.begin()
    play.jobs.stop("bash-1")
    with pytest.raises(ToolError) as refused:
        play.begin()
    assert refused.value.code == "TOO_MANY_JOBS" and len(play.commands) == MAX_JOBS
    until(lambda: len(play.work.of(OWNER)) == MAX_JOBS - 1)
    assert play.begin() == "bash-11"


def test_a_command_that_cannot_start_leaves_nothing_behind(play):
    with pytest.raises(ToolError):
        play.begin(cwd="/nowhere")
    assert play.work.of(OWNER) == () and play.jobs.all() == () and play.owner.told == []


def test_an_owner_that_goes_takes_its_jobs_with_it_and_hears_of_that_when_it_comes_back(play):
    play.begin(), play.begin()
    play.jobs.stop("bash-2")
    assert play.work.end_all(OWNER, 10) == ()
    assert [view.status for view in play.jobs.all()] == ["killed", "killed"]
    ((target, wakes, text),) = play.owner.notices
    assert (target, wakes) == ("next-step", False) and "bash-1 has ended: stopped" in text
    with pytest.raises(ActorGone):
        play.begin()
    assert len(play.commands) == 2


def test_jobs_that_ended_long_ago_are_forgotten(play):
    for number in range(1, KEPT_ENDED + 4):
        play.begin()
        play.finish(number)
    known = [view.id for view in play.jobs.all()]
    assert len(known) == KEPT_ENDED and known[-1] == f"bash-{KEPT_ENDED + 3}"
    with pytest.raises(ToolError) as unknown:
        play.jobs.read("bash-1")
    assert unknown.value.code == "NO_SUCH_JOB" and known[-1] in unknown.value.message


def test_an_agent_that_comes_back_hears_of_what_a_crash_cut_off_and_counts_on():
    play = Play(JobLog(3, {"bash-2": "make", "bash-3": "sleep 9"}))
    for listener in play.scope.handlers_of("agent/session-start"):
        listener({"session": OWNER, "source": "resume"})
    ((target, wakes, text),) = play.owner.notices
    assert (target, wakes) == ("next-step", False) and "- bash-2: make\n- bash-3: sleep 9" in text
    assert play.owner.facts == [("job/ended", "bash-2", "unknown"), ("job/ended", "bash-3", "unknown")]
    assert play.begin() == "bash-4"
    play.work.end_all(OWNER, 5)


def test_an_end_that_is_read_as_its_owner_is_about_to_be_told_is_told_by_nobody_else(play, monkeypatch):
    job, ask = play.begin(), play.owner.ask

    def read_and_answer(message, *, timeout):
        play.jobs.read(job)
        return ask(message, timeout=timeout)

    monkeypatch.setattr(play.owner, "ask", read_and_answer)
    play.finish(1)
    assert play.owner.notices == []
