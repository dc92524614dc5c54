"""A task as JSON: what it may hold, what it comes to, and the words for what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh_actors.config import Config, load_config
from dsh_actors.errors import UsageError
from dsh_actors.task_spec import TaskSpec


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DSH_AGENT_MODEL", "scripted/demo")
    return load_config(cwd=str(tmp_path))


def test_what_a_task_leaves_out_is_what_was_configured(config: Config):
    options = TaskSpec.from_json({"prompt": "look"}, "line 1").options(config)
    assert (options.model, options.cwd, options.limits) == ("scripted/demo", config.cwd, config.limits)
    assert options.tools is None and options.policy.mode == "workspace"


def test_everything_that_a_task_says_is_in_its_options(config: Config):
    given = {
        "id": 7,
        "prompt": "look",
        "model": "scripted/other",
        "cwd": "src",
        "tools": ["read"],
        "deny_tools": ["bash"],
        "add_dirs": ["/tmp", "lib"],
        "approve": "read-only",
        "sandbox": "off",
        "max_output": 99,
        "session_id": "mine",
        "ephemeral": True,
        "schema": {"type": "object"},
        "limits": {"max_steps": 3, "timeout": "2m", "max_retries": 1, "max_cost": None},
    }
    spec = TaskSpec.from_json(given, "line 1")
    options = spec.options(config)
    assert (spec.name, spec.prompt, spec.schema) == ("7", "look", {"type": "object"})
    assert (options.model, options.cwd) == ("scripted/other", f"{config.cwd}/src")
    assert (options.tools, options.deny_tools) == (("read",), ("bash",))
    assert options.add_dirs == ("/tmp", f"{config.cwd}/lib")
    assert (options.policy.mode, options.sandbox, options.max_output) == ("read-only", "off", 99)
    assert (options.session_id, options.ephemeral) == ("mine", True)
    limits = options.limits
    assert (limits.max_steps, limits.timeout_s, limits.max_retries, limits.max_cost) == (3, 120.0, 1, None)


def test_a_session_that_goes_on_keeps_its_model_unless_another_is_named(config: Config):
    assert TaskSpec.from_json({"resume": "a"}, "x").options(config).model == ""
    assert TaskSpec.from_json({"fork": "a@3", "model": "p/m"}, "x").options(config).model == "p/m"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "a task is a JSON object, not a list"),
        ({"promt": "x"}, "unknown key 'promt'; did you mean prompt?"),
        ({"timeout": "5s"}, "unknown key 'timeout'; it stands in \"limits\": {\"timeout\": …}"),
        ({"prompt": 3}, "prompt is a text, not a number"),
        ({"prompt": "\ud800"}, "prompt is not well-formed Unicode"),
        ({"tools": "read"}, "tools is a list of texts, not a text"),
        ({"tools": [1]}, "tools is a text, not a number"),
        ({"ephemeral": 1}, "ephemeral is true or false, not a number"),
        ({"schema": True}, "schema is a JSON object, not a truth value"),
        ({"limits": {"max_step": 1}}, "unknown limit 'max_step'; did you mean max_steps?"),
        ({"limits": {"max_steps": 0}}, "limits.max_steps must be at least 1, not 0"),
        ({"limits": {"timeout": "soon"}}, "limits.timeout must be a duration"),
        ({"sandbox": "maybe"}, "approval.sandbox must be one of"),
        ({"id": "a\nb"}, "id is a line of 1 to 200 characters"),
        ({"resume": "a", "fork": "b"}, "give resume or fork, not both"),
        ({"resume": "a", "session_id": "b"}, "resume and session_id name different sessions"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(given: Any, words: str):
    with pytest.raises(UsageError) as caught:
        TaskSpec.from_json(given, "line 4")
    said = f"{caught.value.message}; {caught.value.hint}"
    assert said.startswith("line 4: ") and words in said


def test_a_policy_that_does_not_exist_is_refused(config: Config):
    with pytest.raises(UsageError, match="neither a policy"):
        TaskSpec.from_json({"approve": "nothing.toml"}, "x").options(config)
