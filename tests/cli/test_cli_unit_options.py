"""Options of a run: types, refusals, and that all of them work on new and resumed runs alike."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest

from dsh_actors.adapters.storage.memory import MemoryStorage
from dsh_actors.cli.options import RUN_PARAMETERS, RunArguments, agent_options, config_overrides
from dsh_actors.cli.run import check
from dsh_actors.config import load_config
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.policy import ApprovalPolicy
from dsh_actors.errors import ConfigError, UsageError
from dsh_actors.task_spec import fork_point


def parse(*arguments: str) -> RunArguments:
    seen: dict[str, Any] = {}
    command = click.Command("run", params=RUN_PARAMETERS, callback=lambda **options: seen.update(options))
    with command.make_context("run", list(arguments)) as context:
        command.invoke(context)
    return RunArguments(**seen)


def options_of(tmp_path: Path, *arguments: str) -> Any:
    parsed = parse(*arguments)
    config = load_config(env={"HOME": str(tmp_path)}, cwd=str(tmp_path), options=config_overrides(parsed))
    return agent_options(parsed, config, config.agent.model)


def test_options_override_the_configuration_by_key(tmp_path: Path) -> None:
    given = "-m a/b --max-steps 3 --timeout 5m --max-retries 0 --sandbox off x"
    options = options_of(tmp_path, *given.split())
    assert (options.model, options.sandbox) == ("a/b", "off")
    limits = options.limits
    assert (limits.max_steps, limits.timeout_s, limits.max_retries) == (3, 300.0, 0)


def test_every_option_is_a_field_and_every_field_an_option() -> None:
    assert {parameter.name for parameter in RUN_PARAMETERS} == set(RunArguments.__dataclass_fields__)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-steps", "0"],
        ["--max-steps", "x"],
        ["--timeout", "0"],
        ["--sandbox", "maybe"],
        ["--max-retries", "-1"],
    ],
)
def test_a_value_of_the_wrong_type_names_its_option(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match=arguments[0]):
        parse(*arguments, "x")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--continue", "--resume", "a"],
        ["--continue", "--session-id", "a"],
        ["--resume", "a", "--session-id", "b"],
        ["--ephemeral", "--resume", "a"],
        ["--fork", "a", "--resume", "a"],
        ["--fork", "a", "--continue"],
        ["--fork", ""],
        ["--fork", "a\nb"],
        ["--session-id", " "],
        ["--session-id", "a\nb"],
        ["--session-id", "a" * 300],
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        check(parse(*arguments, "x"))


def test_every_other_option_goes_with_resume() -> None:
    tried = set()
    apart = {"prompt", "resume", "continue_", "ephemeral", "session_id", "fork"}
    for parameter in RUN_PARAMETERS:
        if not isinstance(parameter, click.Option) or parameter.name in apart:
            continue
        value = [] if parameter.is_flag else ["1"]
        if parameter.name == "sandbox":
            value = ["off"]
        check(parse("--resume", "a", parameter.opts[-1], *value, "x"))
        tried.add(parameter.name)
    assert {"sandbox", "model", "max_steps"} <= tried


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ("a", ("a", None)),
        ("a@7", ("a", 7)),
        ("a@-1", ("a", -1)),
        ("a@b", ("a@b", None)),
        ("a@b@12", ("a@b", 12)),
        ("@7", ("@7", None)),
    ],
)
def test_a_fork_names_a_session_and_maybe_a_place(text: str, point: tuple[str, int | None]) -> None:
    assert fork_point(MemoryStorage("test", lambda: 0), text) == point


def test_an_id_that_ends_like_a_place_is_the_session_where_there_is_one() -> None:
    storage = MemoryStorage("test", lambda: 0)
    with closing(storage.create(SessionHeader(SessionId("a@7"), 1, "/"))) as writer:
        writer.append([Event("run/note", 0, 1, {}, ignorable=True)])
    assert fork_point(storage, "a@7") == ("a@7", None)
    assert fork_point(storage, "a@7@3") == ("a@7", 3)


def test_tools_are_named_by_comma_or_repetition(tmp_path: Path) -> None:
    options = options_of(tmp_path, "--tools", "read, grep", "--tools", "bash", "--deny-tools", "bash", "x")
    assert (options.tools, options.deny_tools) == (("read", "grep", "bash"), ("bash",))
    assert options_of(tmp_path, "x").tools is None
    assert options_of(tmp_path, "--tools", "", "x").tools == ()


def test_an_approval_is_a_policy_or_a_rule_file(tmp_path: Path) -> None:
    assert options_of(tmp_path, "--approve", "read-only", "x").policy == ApprovalPolicy("read-only")
    rules = tmp_path / "rules.toml"
    rules.write_text('default = "allow"\n[[rule]]\ntool = "bash"\ndecision = "deny"\n', "utf-8")
    policy = options_of(tmp_path, "--approve", str(rules), "x").policy
    assert (policy.mode, policy.default, policy.rules[0].decision) == ("rules", "allow", "deny")
    with pytest.raises(UsageError, match="neither a policy"):
        options_of(tmp_path, "--approve", "everything", "x")


def test_system_prompts_come_inline_or_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("from a file", "utf-8")
    options = options_of(tmp_path, "--system-prompt-file", str(path), "--append-system-prompt", "more", "x")
    assert (options.system_prompt, options.append_system_prompt) == ("from a file", "more")
    with pytest.raises(UsageError, match="not both"):
        options_of(tmp_path, "--system-prompt", "a", "--system-prompt-file", str(path), "x")
    with pytest.raises(UsageError, match="--append-system-prompt-file"):
        options_of(tmp_path, "--append-system-prompt-file", str(tmp_path / "absent"), "x")


def test_added_directories_are_real_and_exist(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    options = options_of(tmp_path, "--add-dir", str(tmp_path / "link"), "x")
    assert options.add_dirs == (os.path.realpath(tmp_path / "real"),)
    with pytest.raises(UsageError, match="not a directory"):
        options_of(tmp_path, "--add-dir", str(tmp_path / "absent"), "x")
