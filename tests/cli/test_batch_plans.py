"""From a line and the command line to a plan: which goes before, and what makes a task another one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from dsh_actors.adapters.storage.memory import MemoryStorage
from dsh_actors.cli.batch import BATCH_PARAMETERS, BatchArguments
from dsh_actors.cli.batch_input import Line
from dsh_actors.cli.batch_run import Batch, BatchSettings, RunningTask
from dsh_actors.cli.batch_tasks import LineReading, Task, TaskPlanner
from dsh_actors.cli.options import config_overrides
from dsh_actors.config import load_config
from dsh_actors.core.batch import Spending
from dsh_actors.core.pricing import Tokens
from dsh_actors.errors import UsageError
from dsh_actors.runs import RunPlan


def planner_of(folder: Path, *arguments: str) -> TaskPlanner:
    seen: dict[str, Any] = {}
    command = click.Command("batch", params=BATCH_PARAMETERS, callback=lambda **given: seen.update(given))
    with command.make_context("batch", [*arguments, "tasks"]) as context:
        command.invoke(context)
    run = BatchArguments.of(seen).run
    config = load_config(cwd=str(folder), options=config_overrides(run))
    return TaskPlanner(run, config, MemoryStorage("here", lambda: 0))


def task_of(planner: TaskPlanner, **members: Any) -> Task:
    return LineReading(planner).task(Line(1, json.dumps({"prompt": "x", **members}).encode(), None))


def plan_of(planner: TaskPlanner, **members: Any) -> RunPlan:
    task = task_of(planner, **members)
    assert task.spec is not None, task.fault
    return planner.plan(task.spec)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "home"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_line_of_any_depth_is_a_task_or_has_a_fault(folder: Path) -> None:
    planner, faults = planner_of(folder), []
    for depth in range(700, 1_000):
        raw = b'{"prompt":"x","schema":{"const":' + b"[" * depth + b"]" * depth + b"}}"
        fault = LineReading(planner).task(Line(1, raw, None)).fault
        faults += [] if fault is None else [fault.message]
    assert faults, "the deepest can not be read"
    assert all("nested too deeply" in message for message in faults)


def test_what_a_task_has_used_so_far_counts_once_in_the_limit_of_the_whole() -> None:
    nobody: Any = None
    batch = Batch(nobody, BatchSettings("b", 1), nobody, nobody, nobody, Spending(30, None))
    entry = RunningTask(nobody)
    entry.run = SimpleNamespace()  # type: ignore[assignment]
    for used, is_stopped in ((10, False), (25, False), (30, True)):
        fold: Any = SimpleNamespace(
            tokens=Tokens(input=used), child_tokens=Tokens(), cost=0.0, steps=1, currency=None
        )
        batch._account(entry, fold)
        assert (batch.stopped is not None) is is_stopped, used


def test_a_number_that_is_too_long_is_a_fault_in_plain_words(folder: Path) -> None:
    task = LineReading(planner_of(folder)).task(Line(3, b'{"id":' + b"9" * 5_000 + b"}", None))
    assert task.fault is not None and task.fault.message == "line 3 is not JSON: a number has too many digits"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"limits":{"max_steps":1,"max_steps":9}}', "the key 'max_steps' stands twice in one object"),
        (b'{"prompt":"a","max_cost":NaN}', "NaN is no number of JSON"),
    ],
)
def test_what_readers_of_json_disagree_on_is_a_fault(folder: Path, line: bytes, fault: str) -> None:
    task = LineReading(planner_of(folder)).task(Line(3, line, None))
    assert task.fault is not None and task.fault.message == f"line 3 is not JSON: {fault}"


def test_a_task_is_another_one_when_what_is_asked_for_changes(folder: Path) -> None:
    plain = task_of(planner_of(folder)).digest
    assert task_of(planner_of(folder), id="another name").digest == plain
    others = [
        task_of(planner_of(folder), prompt="y"),
        task_of(planner_of(folder), cwd="one"),
        task_of(planner_of(folder), limits={"max_steps": 3}),
        task_of(planner_of(folder / "one")),
        task_of(planner_of(folder, "-m", "openai/other")),
        task_of(planner_of(folder, "--system-prompt", "Be brief.")),
        task_of(planner_of(folder, "--tools", "read")),
        task_of(planner_of(folder, "--approve", "read-only")),
    ]
    digests = [task.digest for task in others]
    assert len({plain, *digests}) == len(others) + 1


def test_a_task_stays_the_same_when_only_the_bounds_of_all_change(folder: Path) -> None:
    plain = task_of(planner_of(folder)).digest
    for option in ("--max-steps=9", "--timeout=1h", "--max-retries=1", "--no-fail-on-denied", "-j2"):
        assert task_of(planner_of(folder, option)).digest == plain


def test_what_a_line_says_goes_before_the_options(folder: Path) -> None:
    planner = planner_of(
        folder, "-m", "openai/all", "--tools", "read,glob", "--system-prompt", "all", "--max-steps", "9"
    )
    plain = plan_of(planner).options
    assert (plain.model, plain.tools, plain.system_prompt) == ("openai/all", ("read", "glob"), "all")
    assert plain.limits.max_steps == 9 and plain.cwd == str(folder)
    line = {"model": "openai/own", "tools": [], "system_prompt": "own", "limits": {"max_steps": 1}}
    own = plan_of(planner, cwd="one", **line).options
    assert (own.model, own.tools, own.system_prompt) == ("openai/own", (), "own")
    assert own.limits.max_steps == 1 and own.cwd == str(folder / "one")


def test_a_rule_file_of_the_command_line_holds_wherever_a_task_works(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "rules.toml").write_text('default = "deny"\n')
    monkeypatch.chdir(folder)
    policy = plan_of(planner_of(folder, "--approve", "rules.toml"), cwd="two").options.policy
    assert policy == plan_of(planner_of(folder, "--approve", "rules.toml")).options.policy
    with pytest.raises(UsageError, match="neither a policy"):
        plan_of(planner_of(folder), approve="absent.toml")


def test_an_id_is_taken_once_and_a_line_without_one_is_called_by_its_number(folder: Path) -> None:
    reading = LineReading(planner_of(folder))
    lines = [{}, {"id": "1"}, {"id": 3}, {}]
    raw = [json.dumps({"prompt": "x", **line}).encode() for line in lines]
    tasks = [reading.task(Line(number, data, None)) for number, data in enumerate(raw, 1)]
    assert [task.id for task in tasks] == ["1", "1", "3", "4"]
    assert [task.fault is None for task in tasks] == [True, False, True, True]
