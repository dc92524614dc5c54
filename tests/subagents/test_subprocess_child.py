"""One child process from its start to its outcome, whatever it does: real processes, played by the shell."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsh_actors.core.text import JsonObject
from dsh_actors.errors import ToolError
from dsh_actors.runtime.cancel import CancelSource
from dsh_actors.runtime.process import Processes
from dsh_actors.runtime.tasks import TaskEnd, start_task
from dsh_actors.subagents import outside
from dsh_actors.subagents.outside import ChildResult, OutsideRequest, run_child
from dsh_actors.testing.memory import peak_kib, reset_peak
from tests.actors.kit import until

START = json.dumps({"type": "run.start", "schema_version": 1, "session_id": "x"})
END = json.dumps({"type": "run.end", "status": "completed", "reason": "completed", "answer": "fine"})
STAY = """echo '{"type": "up"}'; while :; do sleep 0.05; done"""


class Stage:
    def __init__(self, folder: Path) -> None:
        self.processes = Processes(f"child-{os.getpid()}-{time.monotonic_ns()}", grace_s=0.3)
        self.folder = folder
        self.events: list[JsonObject] = []
        self.source = CancelSource()

    def request(self, *argv: str, **changes: Any) -> OutsideRequest:
        request = OutsideRequest(
            name="other",
            session_id="child",
            argv=argv,
            cwd=str(self.folder),
            env={"PATH": os.environ["PATH"], "START": START, "END": END},
            prompt="do it",
            idle_s=60.0,
            on_event=self.events.append,
        )
        return replace(request, **changes)

    def run(self, script: str, **changes: Any) -> ChildResult:
        return run_child(self.processes, self.request("sh", "-c", script, **changes), self.source.token)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.processes.close()


def test_a_child_reads_its_task_and_tells_its_outcome(stage: Stage) -> None:
    script = """echo "$START"; printf '{"type": "note", "said": "%s"}\\n' "$(cat)"; echo "$END" """
    result = stage.run(script, prompt="do it: grün")
    assert result.end is not None and result.end.completed
    assert (result.end.answer, result.end.session_id) == ("fine", "child")
    assert stage.events == [{"type": "note", "said": "do it: grün"}]


def test_a_task_of_megabytes_arrives_and_none_of_it_is_an_argument(stage: Stage) -> None:
    script = """echo "$START"; printf '{"type": "note", "bytes": %s}\\n' "$(wc -c)"; echo "$END" """
    assert stage.run(script, prompt="x" * 5_000_000).end is not None
    assert stage.events == [{"type": "note", "bytes": 5_000_000}]


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 0", "other ended without an outcome: exit code 0"),
        ('echo "$START"; echo no such model >&2; exit 3', "exit code 3; no such model"),
        ('echo "$START"; kill -SEGV $$', "other ended without an outcome: ended by signal SIGSEGV"),
        ("echo WARN; sleep 99", "other: line 1 of its output is no JSON: WARN"),
        ("""echo "$START"; echo '{"type": "run.end"}'""", "other: its run.end has no reason that is known"),
    ],
)
def test_what_goes_wrong_is_said_in_one_clear_line(stage: Stage, script: str, problem: str) -> None:
    result = stage.run(script)
    assert (result.end, result.reason) == (None, "internal")
    assert problem in result.problem and "\n" not in result.problem


def test_silence_ends_a_child(stage: Stage) -> None:
    result = stage.run('echo "$START"; exec sleep 99', idle_s=0.2)
    assert (result.reason, result.problem) == ("timeout", "other wrote nothing for 0.2 s and was ended")


def test_only_silence_counts_not_the_time_that_a_child_takes(stage: Stage) -> None:
    child = outside._Child(stage.request(idle_s=60.0))
    child._heard_at -= 59
    child._look()
    assert child._stopper.token.reason is None and child._timer is not None
    child._timer.cancel()
    child._on_output(b"{")
    assert time.monotonic() - child._heard_at < 30
    child._heard_at -= 61
    child._look()
    assert child._stopper.token.reason == "silent"


def test_signs_of_life_are_no_events(stage: Stage) -> None:
    assert stage.run("""echo "$START"; echo '{"type": "heartbeat"}'; echo "$END" """).end is not None
    assert stage.events == []


def test_a_hundred_megabytes_of_events_take_no_room(stage: Stage) -> None:
    seen = [0]

    def count(_event: JsonObject) -> None:
        seen[0] += 1

    program = (
        "import os; piece = b'{\"type\": \"note\", \"text\": \"' + b'x' * 9_970 + b'\"}\\n'; "
        "out = os.fdopen(1, 'wb'); out.write(os.environb[b'START'] + b'\\n'); "
        "[out.write(piece) for _ in range(10_000)]; out.write(os.environb[b'END']); out.flush()"
    )
    request = stage.request(sys.executable, "-c", program, on_event=count)
    before = reset_peak()
    result = run_child(stage.processes, request, stage.source.token)
    assert result.end is not None and seen == [10_000]
    assert peak_kib() - before < 30_000


def test_a_line_without_end_is_cut_off(stage: Stage) -> None:
    result = stage.run('echo "$START"; exec tr "\\0" x < /dev/zero')
    assert result.problem == "other: line 2 of its output is longer than 32 MiB"


def test_errors_without_end_are_kept_as_far_as_they_fit(stage: Stage) -> None:
    result = stage.run('echo "$START"; echo first >&2; head -c 5000000 /dev/zero | tr "\\0" x >&2; exit 9')
    assert "exit code 9; first" in result.problem and len(result.problem) < 3_000


def test_a_stopped_child_may_still_tell_its_outcome(stage: Stage) -> None:
    script = f"""trap 'echo "$END"; exit' TERM; echo "$START"; {STAY}"""
    request = stage.request("sh", "-c", script, on_event=lambda _event: stage.source.cancel("parent"))
    result = run_child(stage.processes, request, stage.source.token)
    assert result.end is not None and result.end.answer == "fine"


def test_a_child_that_ignores_being_stopped_is_killed_with_what_it_started(stage: Stage) -> None:
    script = f"""trap '' TERM; setsid sleep 98 & echo "$START"; {STAY}"""
    request = stage.request("sh", "-c", script, on_event=lambda _event: stage.source.cancel("parent"))
    result = run_child(stage.processes, request, stage.source.token)
    assert (result.reason, result.problem) == ("interrupted", "other was stopped and told no outcome")
    assert stage.processes._find_all({}) == []


def test_a_child_that_stays_after_its_outcome_is_ended(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "LINGER_S", 0.1)
    result = stage.run('echo "$START"; echo "$END"; exec sleep 99')
    assert result.end is not None and result.end.completed


def test_a_program_that_is_not_there_cannot_be_started(stage: Stage) -> None:
    with pytest.raises(ToolError, match="no-such-program"):
        run_child(stage.processes, stage.request("no-such-program"), stage.source.token)


def test_one_that_fails_costs_its_siblings_nothing(stage: Stage) -> None:
    ends: dict[str, ChildResult | None] = {}
    good = 'echo "$START"; sleep 0.2; echo "$END"'
    scripts = {"good": good, "bad": "echo WARN; exit 1", "dies": "kill -9 $$"}

    def run(name: str) -> None:
        def ended(end: TaskEnd[ChildResult]) -> None:
            ends[name] = end.value

        start_task(lambda _token: stage.run(scripts[name]), ended, name=name)

    for name in scripts:
        run(name)
    until(lambda: len(ends) == 3)
    assert {name: bool(end and end.end) for name, end in ends.items()} == {
        "good": True,
        "bad": False,
        "dies": False,
    }
