"""Options of `dsh agent`: each one of a run is part of the task, the command's own, or refused. No daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsh_actors.cli.agent_create import COMMAND, LOCAL, REFUSED, SENT, task_of
from dsh_actors.cli.main import main
from dsh_actors.cli.options import RUN_PARAMETERS, RunArguments
from dsh_actors.errors import HarnessError
from dsh_actors.task_spec import TaskSpec
from tests.cli.dsh_process import ONE_LINE
from tests.image_samples import png

EVERY_OPTION = {
    "--model": "openai/test",
    "--reasoning": "high",
    "--max-output": "100",
    "--add-dir": ".",
    "--system-prompt": "Be brief.",
    "--append-system-prompt-file": "more.txt",
    "--tools": "read, glob",
    "--deny-tools": "bash",
    "--approve": "rules.toml",
    "--sandbox": "off",
    "--session-id": "pears",
    "--max-steps": "3",
    "--max-tool-calls": "4",
    "--max-tokens": "5",
    "--max-cost": "0.5",
    "--timeout": "5m",
    "--deadline": "1h",
    "--tool-timeout": "7",
    "--max-retries": "2",
    "--max-agents": "8",
    "--max-concurrent-agents": "3",
    "--max-depth": "1",
    "--schema": "schema.json",
    "--schema-retries": "4",
}


def arguments(*words: str) -> RunArguments:
    options = dict(COMMAND.make_context("create", list(words)).params)
    del options["socket"], options["idle"]
    return RunArguments(**options)


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "home"))
    (tmp_path / "more.txt").write_text("Be kind.")
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    (tmp_path / "rules.toml").write_text('default = "deny"')
    return tmp_path


def test_no_option_of_a_run_is_forgotten() -> None:
    assert {each.name for each in RUN_PARAMETERS} == SENT | LOCAL | REFUSED.keys()
    assert len(SENT) + len(LOCAL) + len(REFUSED) == len(RUN_PARAMETERS)
    names = {each.name for each in COMMAND.params}
    assert names == {each.name for each in RUN_PARAMETERS} | {"idle", "socket"}


def test_a_task_has_everything_that_was_given_and_nothing_else(cwd: Path) -> None:
    words = [word for pair in EVERY_OPTION.items() for word in pair]
    task = task_of(arguments(*words, "--file", "more.txt", "do it"))
    assert "Be kind." in task["prompt"] and task["prompt"].endswith("do it")
    assert task == {
        "prompt": task["prompt"],
        "model": "openai/test",
        "reasoning": "high",
        "max_output": 100,
        "cwd": str(cwd),
        "add_dirs": [str(cwd)],
        "system_prompt": "Be brief.",
        "append_system_prompt": "Be kind.",
        "tools": ["read", "glob"],
        "deny_tools": ["bash"],
        "approve": str(cwd / "rules.toml"),
        "sandbox": "off",
        "session_id": "pears",
        "limits": {
            "max_steps": 3,
            "max_tool_calls": 4,
            "max_tokens": 5,
            "max_cost": 0.5,
            "timeout": 300.0,
            "deadline": 3600.0,
            "tool_timeout": 7.0,
            "max_retries": 2,
            "max_agents": 8,
            "max_concurrent_agents": 3,
            "max_depth": 1,
        },
        "schema": {"type": "object"},
        "schema_retries": 4,
    }
    assert TaskSpec.from_json(task, "the task").prompt == task["prompt"]
    assert task_of(arguments("do it")) == {"prompt": "do it", "cwd": str(cwd)}
    assert task_of(arguments("--resume", "pears", "go on")) == {"prompt": "go on", "resume": "pears"}
    assert task_of(arguments("--fork", "pears@3", "-C", ".", "x"))["cwd"] == str(cwd)


@pytest.mark.parametrize(
    "words",
    [
        ["--continue"],
        ["--ephemeral"],
        ["--progress"],
        ["--heartbeat", "5"],
        ["-o", "answer.txt"],
        ["--result-file", "end.json"],
        ["--print-session-id"],
        ["--partial-ok"],
        ["--fail-on-denied"],
        ["--no-fail-on-denied"],
        ["--no-wait"],
        ["--simple-exit"],
    ],
    ids=lambda words: str(words[0]),
)
def test_an_option_without_meaning_there_is_refused_with_advice(cwd: Path, words: list[str]) -> None:
    with pytest.raises(HarnessError, match="has no meaning for an agent of the daemon") as caught:
        task_of(arguments(*words, "do it"))
    assert caught.value.hint
    assert not (cwd / "answer.txt").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["create", "-C", "nowhere", "do it"],
        ["create", "--prompt-file", "nowhere", "do it"],
        ["create", "--prompt-file", "nowhere"],
        ["create", "   "],
        ["create", "--session-id", "\n", "do it"],
        ["create", "--idle", "do it"],
        ["create", "--max-steps", "many", "do it"],
        ["creat", "do it"],
        ["send", "pears", ""],
        ["send", "--timeout", "3", "pears", "hello"],
        ["wait"],
        ["wait", "pears", ""],
        ["dispose", ""],
        ["status", " "],
        ["wait", "--timeout", "soon", "pears"],
        ["fork", "pears", " "],
        ["events", "--after", "x", "pears"],
        ["ls", "--state", "busy"],
        ["ls", "--watch", "--state", "idle"],
        ["ls", "--socket", "http://192.0.2.1:80"],
        ["create", "do it"],
        ["wait", "pears"],
        ["approvals"],
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line_before_anything_happens(
    cwd: Path, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["agent", *words]) == 2
    out, err = capfd.readouterr()
    assert out == "" and ONE_LINE.match(err), err
    assert not (cwd / "home").exists()


def test_without_a_daemon_the_line_says_how_to_start_one(
    cwd: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["agent", "ls"]) == 2
    place = cwd / "home" / "daemon" / "socket"
    assert capfd.readouterr().err == f"dsh: usage: no daemon answers at {place}; start one with: dsh serve\n"


def test_an_image_is_refused_before_anything_is_sent(cwd: Path) -> None:
    (cwd / "pear.png").write_bytes(png(2, 2))
    with pytest.raises(HarnessError, match=r"pear\.png is an image"):
        task_of(arguments("--file", "pear.png", "look"))
