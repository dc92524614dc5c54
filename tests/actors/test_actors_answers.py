"""Answers that must fit a schema, in a live harness: what counts as one, and when it is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh_actors.config import load_config
from dsh_actors.core.options import AgentOptions, Limits
from dsh_actors.errors import UsageError
from dsh_actors.harness import Harness
from dsh_actors.runtime.tasks import start_task
from dsh_actors.testing.scripted import ScriptedProvider

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Play:
    """A harness whose model plays ``entries``."""

    def __init__(self, folder: Path, *entries: dict) -> None:
        self.model = ScriptedProvider(entries, name="played")
        config = load_config(env={"DSH_HOME": str(folder / "home")}, cwd=str(folder))
        self.harness = Harness.open(config, providers={"played": self.model}, ephemeral=True)
        self.cwd = str(folder)

    def options(self, **more: object) -> AgentOptions:
        return AgentOptions("played/m", self.cwd, schema=NUMBER, **more)  # type: ignore[arg-type]

    def said(self) -> list[str]:
        """The last message of each request."""
        return [request.messages[-1].content[0].text for request in self.model.requests]  # type: ignore[union-attr]


@pytest.fixture
def plays(tmp_path: Path) -> Iterator[object]:
    made: list[Play] = []

    def play(*entries: dict) -> Play:
        made.append(Play(tmp_path, *entries))
        return made[-1]

    yield play
    for each in made:
        each.harness.close()


def test_each_turn_has_its_own_answer_and_its_own_patience(plays) -> None:
    texts = ["no", "nor this", '{"n": 1}', "no", "no", "no", "never asked for"]
    play = plays(*({"text": text} for text in texts))
    agent = play.harness.create(play.options())
    first, second = agent.run("one"), agent.run("two")
    assert (first.exit_code, first.structured, first.steps) == (0, {"n": 1}, 3)
    assert (second.exit_code, second.structured, second.steps) == (5, None, 3)
    assert second.message.startswith("the answer does not fit the schema: $: it is not JSON")


def test_an_answer_is_looked_at_only_when_nothing_goes_on_that_wakes_the_agent_again(plays) -> None:
    play = plays({"text": "I wait for it."}, {"text": '{"n": 2}'})
    agent = play.harness.create(play.options())
    ended: list[object] = []
    item = play.harness.work.add(agent.id, "j1", "job", "make", lambda: None)

    def settle(payload: dict) -> None:
        if payload["status"] == "idle" and play.harness.work.of(agent.id):
            start_task(lambda _token: notice_and_release(), ended.append, name="settle")

    def notice_and_release() -> None:
        agent.followup("j1 is over")
        play.harness.work.release(item)

    agent._scope.observe("agent/status", settle)
    end = agent.run("go")
    assert (end.exit_code, end.turns, end.structured) == (0, 2, {"n": 2})
    assert "j1 is over" in play.said()[1]


def test_what_others_give_it_to_do_after_the_answer_makes_for_another_answer(plays) -> None:
    play = plays({"text": '{"n": 1}'}, {"text": "words"}, {"text": '{"n": 2}'})
    told: list[int] = []

    def more(scope) -> None:
        scope.listen("agent/turn-stopping", lambda payload: told.append(1) or steer())

    def steer() -> None:
        if len(told) == 1:
            agent.steer("and once more")

    agent = play.harness.create(play.options(), more)
    end = agent.run("go")
    assert (end.exit_code, end.turns, end.steps, end.structured) == (0, 1, 3, {"n": 2})


def test_limits_of_tokens_end_the_asking(plays) -> None:
    play = plays({"text": "no", "usage": {"input": 90, "output": 10}}, {"text": '{"n": 1}'})
    agent = play.harness.create(play.options(limits=Limits(max_tokens=100)))
    end = agent.run("go")
    assert (end.reason, end.exit_code) == ("max_tokens", 4)
    assert end.schema is not None and "fit the schema" in end.message


def test_an_agent_made_in_python_is_refused_with_a_wrong_schema_and_leaves_nothing(plays) -> None:
    play = plays()
    options = AgentOptions("played/m", play.cwd, schema={"type": "colour"})
    with pytest.raises(UsageError, match="not a valid JSON Schema"):
        play.harness.create(options)
    with pytest.raises(UsageError, match="schema_retries"):
        play.harness.create(play.options(schema_retries=-1))
    assert play.harness.agents() == []
