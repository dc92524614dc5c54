"""One run driven against a harness that plays a script: early ends, time limits, and what is written."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from dsh_actors.actors.owned_work import OwnedWork
from dsh_actors.cli.driver import RunDriver
from dsh_actors.cli.event_schema import line_schema
from dsh_actors.cli.lines import write_atomically
from dsh_actors.cli.options import RUN_PARAMETERS, RunArguments
from dsh_actors.cli.render import RunOutput
from dsh_actors.cli.run import not_started, run
from dsh_actors.cli.stopping import SignalWatch
from dsh_actors.core.events import Event
from dsh_actors.core.options import AgentOptions, Limits
from dsh_actors.core.outcome import RunEnd
from dsh_actors.errors import ActorGone, HarnessError, StorageFull, UsageError
from dsh_actors.runs import Run, RunPlan


def arguments_of(*given: str) -> RunArguments:
    seen: dict[str, Any] = {}
    command = click.Command("run", params=RUN_PARAMETERS, callback=lambda **options: seen.update(options))
    with command.make_context("run", [*given, "prompt"]) as context:
        command.invoke(context)
    return RunArguments(**seen)


class ScriptedHandle:
    """An agent that answers at once, or works until it is cancelled."""

    id = "s1"

    def __init__(self, *, answers: bool = True, dies: HarnessError | None = None) -> None:
        self.answers = answers
        self.dies = dies
        self.obeys = True
        self.disposal: HarnessError | None = None
        self.injected: list[str] = []
        self.observers: list[Callable[[Event], None]] = []
        self.idle = threading.Event()
        self.seq = 0

    def observe(self, point: str, callback: Callable[[Event], None]) -> None:
        assert point == "session/event"
        self.observers.append(callback)

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        for observer in self.observers:
            observer(Event(kind, self.seq, 1, data))
        self.seq += 1

    def followup(self, text: str) -> str:
        self.emit("turn/start", {"turn": 1})
        self.emit("step/start", {"turn": 1, "step": 1})
        if self.answers:
            message = {"content": [{"type": "text", "text": f"re: {text} 漢"}]}
            self.emit("assistant/message", {"turn": 1, "step": 1, "message": message})
            self.end({"kind": "completed"})
        elif self.dies is not None:
            self.idle.set()
        return "m"

    def end(self, reason: dict[str, Any]) -> None:
        self.emit("turn/end", {"turn": 1, "reason": reason})
        self.idle.set()

    def when_idle(self, timeout: float | None) -> bool:
        self.idle.wait(timeout)
        if self.dies is not None:
            raise self.dies
        return True

    when_done = when_idle

    def cancel(self, cause: dict[str, Any]) -> None:
        if self.obeys and not self.idle.is_set():
            self.end({"kind": "aborted", "reason": cause})

    def inject(self, text: str) -> None:
        self.injected.append(text)

    def dispose(self, _timeout_s: float) -> None:
        if self.disposal is not None:
            raise self.disposal


class ScriptedHarness:
    sandbox = "none"

    def __init__(self, handle: ScriptedHandle) -> None:
        self.handle = handle
        self.work = OwnedWork()

    def create(self, options: AgentOptions, setup: Any = None) -> ScriptedHandle:
        setup(SimpleNamespace(observe=self.handle.observe))
        # What happens while the agent is brought up must not come before the first line.
        self.handle.emit("run/note", {})
        return self.handle


@pytest.fixture
def signals() -> Iterator[SignalWatch]:
    watch = SignalWatch()
    yield watch
    watch.close()


def drive(
    handle: ScriptedHandle,
    signals: SignalWatch,
    *given: str,
    limits: Limits | None = None,
    is_broken: bool = False,
) -> tuple[RunEnd, RunOutput]:
    arguments = arguments_of(*given)
    output = RunOutput(arguments)
    output._stdout.broken = is_broken
    options = AgentOptions("p/m", "/w", limits=limits or Limits())
    plan = RunPlan("hi", options, None, lambda _model: None)
    harness: Any = ScriptedHarness(handle)
    end = RunDriver(harness, plan, arguments, output, signals, time.monotonic()).execute()
    return end, output


def test_an_answer_is_the_whole_of_standard_output(
    signals: SignalWatch, capfd: pytest.CaptureFixture[str]
) -> None:
    end, output = drive(ScriptedHandle(), signals)
    assert output.finish(end) == 0
    assert capfd.readouterr() == ("re: hi 漢\n", "")


def test_json_lines_begin_with_the_start_and_end_with_the_end(
    signals: SignalWatch, capfd: pytest.CaptureFixture[str]
) -> None:
    end, output = drive(ScriptedHandle(), signals, "--json", "--print-session-id")
    assert output.finish(end) == 0
    out, err = capfd.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["type"] for line in lines] == [
        "run.start",
        "run/note",
        "turn/start",
        "step/start",
        "assistant/message",
        "turn/end",
        "run.end",
    ]
    assert lines[0]["session_id"] == "s1" and err == "s1\n"
    assert lines[-1]["warnings"] == ["no sandbox works here: commands ran with the rights of the user"]


@pytest.mark.parametrize("limit", ["timeout", "deadline"])
def test_a_time_limit_cancels_and_is_a_timeout(signals: SignalWatch, limit: str) -> None:
    handle = ScriptedHandle(answers=False)
    end, _ = drive(handle, signals, limits=Limits(**{f"{limit}_s": 0.2}))
    assert (end.reason, end.exit_code) == (limit, 124)


def test_the_model_is_warned_before_the_deadline(signals: SignalWatch) -> None:
    handle = ScriptedHandle(answers=False)
    drive(handle, signals, limits=Limits(deadline_s=0.3))
    assert len(handle.injected) == 1 and "Finish now" in handle.injected[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_gracefully(signals: SignalWatch, number: signal.Signals) -> None:
    handle = ScriptedHandle(answers=False)
    threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
    end, _ = drive(handle, signals)
    assert (end.reason, end.exit_code, end.signal) == ("interrupted", 128 + number, number.name)


def test_a_signal_before_the_prompt_starts_nothing(signals: SignalWatch) -> None:
    signals.name, signals.deadline = "SIGTERM", time.monotonic() + 1
    end, _ = drive(ScriptedHandle(), signals)
    assert (end.exit_code, end.turns) == (143, 0)


def test_a_stop_while_the_prompt_is_made_ready_starts_nothing(
    signals: SignalWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(run: Run) -> str:
        run.stop("signal", "SIGTERM")
        return "hi"

    monkeypatch.setattr(Run, "_prompt", slow)
    end, _ = drive(ScriptedHandle(), signals)
    assert (end.exit_code, end.turns) == (143, 0)


def test_a_reader_that_left_before_the_run_could_notice_starts_nothing(signals: SignalWatch) -> None:
    handle = ScriptedHandle()
    handle.idle.set()
    end, _ = drive(handle, signals, "--json", is_broken=True)
    assert (end.reason, end.exit_code, end.turns) == ("pipe", 141, 0)


def test_an_agent_that_does_not_stop_is_left_after_the_grace(
    signals: SignalWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsh_actors.runs.GRACE_S", 0.1)
    handle = ScriptedHandle(answers=False)
    handle.obeys = False
    end, _ = drive(handle, signals, limits=Limits(timeout_s=0.1))
    handle.idle.set()
    assert (end.reason, end.exit_code) == ("timeout", 124)


def test_a_dead_agent_is_a_failure_and_never_success(signals: SignalWatch) -> None:
    end, _ = drive(ScriptedHandle(answers=False, dies=ActorGone("the agent is gone")), signals)
    assert (end.reason, end.exit_code) == ("internal", 1)
    assert "the agent is gone" in end.message


def test_an_answer_that_could_not_be_kept_is_no_success(signals: SignalWatch) -> None:
    handle = ScriptedHandle()
    handle.disposal = StorageFull("no space left on the disk")
    end, _ = drive(handle, signals)
    assert (end.reason, end.exit_code) == ("storage_full", 1)


def test_heartbeats_tell_that_a_silent_step_lives(
    signals: SignalWatch, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, said = ScriptedHandle(answers=False), RunOutput.passing_line
    left = iter(range(2, -1, -1))

    def beat(output: RunOutput, line: dict[str, Any]) -> None:
        said(output, line)
        if next(left) == 0:
            handle.end({"kind": "completed"})

    monkeypatch.setattr(RunOutput, "passing_line", beat)
    end, output = drive(handle, signals, "--json", "--heartbeat", "0.05")
    output.finish(end)
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    beats = [line for line in lines if line["type"] == "heartbeat"]
    assert len(beats) == 3 and all(set(b) == {"type", "elapsed_s", "step", "tool"} for b in beats)


def test_a_reader_that_goes_away_stops_the_run(signals: SignalWatch) -> None:
    saved = os.dup(1)
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    for descriptor in (reading, writing):
        os.fdopen(descriptor, "wb").close()
    try:
        end, output = drive(ScriptedHandle(answers=False), signals, "--json")
        code = output.finish(end)
    finally:
        os.dup2(saved, 1)
        os.close(saved)
    assert (end.reason, code) == ("pipe", 141)


# --- files and schema ---------------------------------------------------------------------------


def test_the_result_file_holds_the_end_and_the_answer_file_the_answer(
    tmp_path: Path, signals: SignalWatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answer, result = tmp_path / "answer", tmp_path / "result"
    end, output = drive(ScriptedHandle(), signals, "-o", str(answer), "--result-file", str(result))
    assert output.finish(end) == 0
    assert answer.read_text("utf-8") == "re: hi 漢\n"
    assert json.loads(result.read_text("utf-8"))["exit_code"] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answer", "result"]
    assert capfd.readouterr().err == ""


def test_a_file_that_cannot_be_written_is_refused_early(tmp_path: Path) -> None:
    for option in ("-o", "--result-file"):
        for path in (tmp_path / "absent" / "file", tmp_path):
            with pytest.raises(UsageError, match="cannot write"):
                RunOutput(arguments_of(option, str(path))).check_files()


def test_an_atomic_write_keeps_the_old_file_when_it_fails(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old", "utf-8")
    with pytest.raises(TypeError):
        write_atomically(str(target), None)  # type: ignore[arg-type]
    assert target.read_text("utf-8") == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_link_stays_a_link_when_its_file_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "file", tmp_path / "link"
    target.write_text("old", "utf-8")
    link.symlink_to(target)
    write_atomically(str(link), b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"


def test_a_usage_error_is_a_whole_stream_under_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "home"))
    given = arguments_of("--json", "-C", "/absent")
    assert run(**{name: getattr(given, name) for name in RunArguments.__slots__}) == 2
    out, err = capfd.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["type"] for line in lines] == ["run.start", "run.end"]
    assert (lines[1]["status"], lines[1]["exit_code"]) == ("usage", 2)
    assert err == "dsh: usage: /absent is not a directory\n"
    assert not (tmp_path / "home").exists()


def schema_of(kind: str) -> dict[str, Any]:
    for variant in line_schema()["oneOf"]:
        if variant["properties"]["type"].get("const") == kind:
            return dict(variant)
    raise AssertionError(kind)


def test_the_published_schema_names_exactly_the_members_of_the_end(signals: SignalWatch) -> None:
    schema = schema_of("run.end")
    plain = not_started(UsageError("x"), arguments_of()).to_json()
    assert set(plain) == set(schema["required"])
    assert plain["reason"] in schema["properties"]["reason"]["enum"]
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    end, _ = drive(ScriptedHandle(answers=False), signals)
    assert set(end.to_json()) - set(schema["required"]) <= {"limit", "signal", "error"}
    assert end.to_json()["exit_code"] in schema["properties"]["exit_code"]["enum"]
