"""Programs of many agents, in process: what a stage gives, and how calls side by side end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dsh_actors import scripting
from dsh_actors.config import load_config
from dsh_actors.core.budget import Budget
from dsh_actors.core.options import AgentOptions, Limits
from dsh_actors.core.outcome import RunEnd
from dsh_actors.core.policy import ApprovalPolicy
from dsh_actors.errors import SubagentError, UsageError
from dsh_actors.harness import AgentHandle, Harness
from dsh_actors.runtime.tasks import live_tasks, start_task
from dsh_actors.testing.scripted import ScriptedProvider
from tests.actors.kit import until

POOL = Limits(max_tokens=1_000, max_agents=3, max_concurrent_agents=2)
REPLY = {"text": "ok", "usage": {"input": 300, "output": 100}}


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    config = load_config(env={"DSH_HOME": str(tmp_path / "home")}, cwd=str(tmp_path))
    model = ScriptedProvider([REPLY] * 20, name="played")
    (tmp_path / "lib").mkdir()
    defaults = AgentOptions("played/m", str(tmp_path), limits=Limits(max_concurrent_agents=2))
    pool = Budget(POOL, model="played/m")
    with Harness.open(config, providers={"played": model}, ephemeral=True, pool=pool) as harness:
        with scripting.stage(harness, defaults):
            yield harness
        with pytest.raises(UsageError, match="there is no harness here"):
            scripting.current()
    assert live_tasks() == []


def test_options_begin_with_those_of_the_stage(harness: Harness, tmp_path: Path) -> None:
    made = scripting.options(cwd="lib", tools=["read"], schema_retries=0)
    assert (made.model, made.cwd, made.tools) == ("played/m", str(tmp_path / "lib"), ("read",))
    for name, hint in (("shema", "'schema'"), ("depth", "options are")):
        with pytest.raises(UsageError) as caught:
            scripting.options(**{name: 1})
        assert hint in str(caught.value.hint)


def test_no_agent_plans_beyond_the_end_of_the_stage(harness: Harness) -> None:
    with scripting.stage(harness, scripting.options(), ends=time.monotonic() + 100):
        left = scripting.options().limits.timeout_s
        assert left is not None and 0 < left <= 100
        assert scripting.options(limits=Limits(timeout_s=5)).limits.timeout_s == 5


def test_whoever_waited_for_a_place_plans_with_what_is_left(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[float | None] = []
    run = AgentHandle.run

    def noted(agent: AgentHandle, prompt: str, timeout: float | None = None) -> RunEnd:
        planned.append(timeout)
        return run(agent, prompt, timeout)

    monkeypatch.setattr(AgentHandle, "run", noted)
    ends = time.monotonic() + 100
    with scripting.stage(harness, scripting.options(), ends=ends):
        places = scripting._here().places
        assert places.acquire(timeout=1) and places.acquire(timeout=1)
        calls = [partial(scripting.spawn, "x", timeout=timeout) for timeout in (None, 1_000.0)]
        task = start_task(lambda _token: scripting.gather(*calls), lambda _end: None, name="spawn")
        until(lambda: live_tasks().count("gather") == 2)
        monkeypatch.setattr(time, "monotonic", lambda plain=time.monotonic: plain() + 60)
        places.release()
        places.release()
        assert task.join(20)
    assert len(planned) == 2
    assert all(seconds is not None and 0 < seconds <= 40 for seconds in planned)


def test_tokens_and_agents_of_all_count_in_one_pool(harness: Harness) -> None:
    ends = [scripting.spawn("x") for _ in range(3)]
    assert [end.reason for end in ends] == ["completed"] * 3  # the third began below the limit
    with pytest.raises(SubagentError) as caught:
        scripting.create()
    assert caught.value.code == "AGENT_LIMIT"
    assert harness.agents() == []


def test_a_sub_agent_spends_from_the_same_pool(harness: Harness) -> None:
    with scripting.create() as agent:
        assert agent.spawn("x").reason == "completed"
        assert agent.spawn("x").reason == "completed"
        with pytest.raises(SubagentError):
            agent.spawn("x")
        assert agent.run("x").reason == "completed"
        end = agent.run("x")
    assert (end.reason, end.limit) == ("max_tokens", {"kind": "max_tokens", "value": 1_000})


def test_a_run_that_must_complete_raises_with_its_end(harness: Harness) -> None:
    with pytest.raises(scripting.RunFailed) as caught:
        scripting.spawn("x", schema={"type": "null"}, schema_retries=0, check=True)
    assert caught.value.end.reason == "schema"
    assert harness.agents() == []


def test_all_calls_have_ended_when_the_first_error_is_raised(harness: Harness) -> None:
    waiting, ended = threading.Semaphore(0), []

    def hang(number: int) -> None:
        try:
            waiting.release()
            threading.Event().wait()
        finally:
            ended.append(number)

    def fail() -> None:
        waiting.acquire()
        waiting.acquire()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        scripting.gather(partial(hang, 1), partial(hang, 2), fail, partial(ended.append, 3), concurrency=3)
    assert sorted(ended) == [1, 2]


def test_errors_are_collected_in_their_places_if_that_is_wanted(harness: Harness) -> None:
    found = scripting.pipeline([0, 1, 2], lambda n: 2 // n, str, on_error="collect")
    assert isinstance(found[0], ZeroDivisionError) and found[1:] == ["2", "1"]
    assert scripting.gather() == []


def test_wrong_words_are_refused(harness: Harness) -> None:
    with pytest.raises(UsageError, match="concurrency"):
        scripting.gather("x", concurrency=0)
    with pytest.raises(UsageError, match="on_error"):
        scripting.gather("x", on_error="ignore")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "changes",
    [
        {"sandbox": "requir"},
        {"policy": "read-only"},
        {"policy": ApprovalPolicy("readonly")},  # type: ignore[arg-type]  # as an untyped program writes it
        {"tools": "read"},
        {"deny_tools": "write"},
        {"tools": [3]},
        {"add_dirs": "/tmp"},
        {"model": None},
        {"cwd": 5},
        {"system_prompt": 5},
        {"session_id": 5},
        {"ephemeral": "no"},
        {"max_output": "5"},
        {"schema_retries": -1},
        {"limits": {"max_steps": 1}},
        {"limits": Limits(max_steps="3")},  # type: ignore[arg-type]
        {"limits": Limits(timeout_s=float("nan"))},
        {"limits": Limits(max_depth=None)},  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_an_option_of_a_wrong_kind_is_refused_before_there_is_an_agent(
    harness: Harness, changes: dict[str, Any]
) -> None:
    (name,) = changes
    with pytest.raises(UsageError, match=name):
        scripting.spawn("x", **changes)
    with pytest.raises(UsageError, match=name):
        harness.create(replace(scripting.options(), **changes))
    assert harness.agents() == []


@pytest.mark.parametrize("prompt", ["", " \n", None, b"x", 3])
def test_what_says_nothing_reaches_no_model(harness: Harness, prompt: Any) -> None:
    with scripting.create() as agent:
        for tell in (agent.run, agent.followup, agent.steer, agent.inject):
            with pytest.raises(UsageError, match="message"):
                tell(prompt)
        assert agent.status().status == "idle"


def test_a_timeout_in_words_is_refused_before_the_agent_works(harness: Harness) -> None:
    with scripting.create() as agent:
        with pytest.raises(UsageError, match="number of seconds"):
            agent.run("x", "5m")  # type: ignore[arg-type]
        assert [event.type for event in agent.events(follow=False)] == []
