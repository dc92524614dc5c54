"""Titles beside live agents: the model of titles is played by hand while turns go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsh_actors.actors import lifecycle, titling
from dsh_actors.config import load_config
from dsh_actors.core.chunks import Chunk, Failure, Finish, TextDelta, ToolCallDelta, Usage, UsageChunk
from dsh_actors.core.ids import CallId
from dsh_actors.errors import CredentialError, EventRefused, UsageError
from dsh_actors.handle import AgentHandle
from dsh_actors.harness import Harness
from dsh_actors.testing.machine import text_chunks
from dsh_actors.testing.manual import ManualProvider, ManualStream
from tests.actors.kit import until


@pytest.fixture
def titled(stage) -> Callable[..., None]:
    """Opens the stage's harness again, with a model that writes titles."""

    def open_again(mode="first-prompt", model="manual/titles", providers=None) -> None:
        stage.harness.close()
        env = {"DSH_HOME": str(stage.home), "DSH_SESSION_TITLE": mode, "DSH_SESSION_TITLE_MODEL": model}
        config = load_config(env=env, cwd=str(stage.cwd))
        stage.harness = Harness.open(config, providers=providers or {"manual": stage.model})

    return open_again


def both(stage) -> tuple[ManualStream, ManualStream]:
    """The stream of the turn and the stream of the title, in whatever order they arrive."""
    streams = {stream.request.config.model: stream for stream in (stage.model.next_stream() for _ in "12")}
    return streams["m"], streams["titles"]


def asked(stage, prompt: str) -> tuple[AgentHandle, ManualStream, ManualStream]:
    """A new agent with this prompt, its turn and its title."""
    agent = stage.agent()
    agent.followup(prompt)
    return agent, *both(stage)


def title_of(stage, agent) -> str | None:
    return stage.harness.inspect(agent.id).state.title


def results(stage) -> list[dict]:
    return [event.data for event in stage.events if event.type == "session/title-llm-result"]


def test_a_turn_ends_while_its_title_is_still_written_and_the_agent_answers(stage, titled):
    titled()
    agent, turn, title = asked(stage, "Count the pears.")
    turn.send(*text_chunks("three"))
    assert agent.when_idle(10)
    assert agent.status().status == "idle" and title_of(stage, agent) == "Count the pears."
    title.send(TextDelta(0, "Pears "), TextDelta(0, "counted"), UsageChunk(Usage(9, 2)), Finish("stop"))
    until(lambda: title_of(stage, agent) == "Pears counted")
    assert stage.harness.inspect(agent.id).state.counters.tokens == 11
    agent.followup("And now?")
    stage.model.next_stream().send(*text_chunks("still three"))
    assert agent.when_idle(10)
    assert title_of(stage, agent) == "Pears counted"


@pytest.mark.parametrize(
    ("chunks", "code"),
    [
        ((Finish("error", Failure("slow down", "RATE_LIMIT", 429)),), "RATE_LIMIT"),
        ((ToolCallDelta(0, CallId("c"), "bash", "{}"), Finish("tool-calls")), "SESSION_TITLE_REJECTED"),
        ((TextDelta(0, "cut"), Finish("max-tokens")), "SESSION_TITLE_REJECTED"),
        ((TextDelta(0, " \n"), Finish("stop")), "SESSION_TITLE_REJECTED"),
        ((TextDelta(0, "a"), ToolCallDelta(0, CallId("c"), "b", ""), Finish("stop")), "MALFORMED_RESPONSE"),
    ],
)
def test_a_title_that_fails_is_recorded_once_and_not_asked_for_again(
    stage, titled, chunks: tuple[Chunk, ...], code: str
):
    titled()
    agent, turn, title = asked(stage, "Count the pears.")
    title.send(*chunks)
    until(lambda: bool(results(stage)))
    turn.send(*text_chunks("three"))
    assert agent.when_idle(10)
    assert [data["failure"]["code"] for data in results(stage)] == [code]
    assert title_of(stage, agent) == "Count the pears."
    assert stage.model.sent.empty()


def test_a_title_that_never_comes_is_given_up_after_its_time(stage, titled, monkeypatch):
    monkeypatch.setattr(titling, "TIMEOUT_S", 0.02)
    titled()
    agent, turn, title = asked(stage, "Count the pears.")
    until(lambda: bool(results(stage)))
    assert results(stage)[0]["failure"]["code"] == "SESSION_TITLE_TIMEOUT"
    until(lambda: title.aborted is not None)
    title.send(*text_chunks("Too late"))
    turn.send(*text_chunks("three"))
    assert agent.when_idle(10)
    assert title_of(stage, agent) == "Count the pears."


@pytest.mark.parametrize("comes", [True, False])
def test_a_dispose_waits_a_moment_for_a_title_and_no_longer(stage, titled, monkeypatch, comes: bool):
    monkeypatch.setattr(lifecycle, "TITLE_GRACE_S", 30.0 if comes else 0.05)
    titled()
    agent, turn, title = asked(stage, "Count the pears.")
    turn.send(*text_chunks("three"))
    assert agent.when_idle(10)
    if comes:
        title.send(*text_chunks("Just in time"))
    agent.dispose()
    assert title_of(stage, agent) == ("Just in time" if comes else "Count the pears.")
    stored = [event.data for event in stage.stored(agent.id) if event.type == "session/title-llm-result"]
    assert [data.get("failure", {}).get("code") for data in stored] == [None if comes else "ABORTED"]


def test_a_prompt_that_comes_later_is_named_with_the_others(stage, titled):
    titled("all-prompts")
    agent, turn, title = asked(stage, "one")
    turn.send(*text_chunks("done"))
    assert agent.when_idle(10)
    agent.followup("two")
    turn, newer = both(stage)
    until(lambda: title.aborted is not None or bool(results(stage)))
    newer.send(*text_chunks("One and two"))
    turn.send(*text_chunks("done"))
    assert agent.when_idle(10)
    until(lambda: title_of(stage, agent) == "One and two")
    assert [data.get("failure", {}).get("code") for data in results(stage)] == ["ABORTED", None]


def test_a_name_that_a_person_gives_stays_and_must_be_one(stage, titled):
    titled("all-prompts")
    agent, turn, title = asked(stage, "one")
    agent.rename(" My\tsession\x1b[0m ")
    title.send(*text_chunks("The model's"))
    turn.send(*text_chunks("done"))
    assert agent.when_idle(10)
    until(lambda: bool(results(stage)))
    with pytest.raises(UsageError):
        agent.rename("\u200b\n")
    for kind in ("session/title-llm-request", "session/title-llm-result"):
        with pytest.raises(EventRefused):
            agent.record(kind, {"usage": "much"})
    agent.followup("two")
    stage.model.next_stream().send(*text_chunks("done"))
    assert agent.when_idle(10)
    agent.dispose()
    assert title_of(stage, agent) == "My session"
    assert [listing.title for listing in stage.harness.storage.list()] == ["My session"]


class Moody(ManualProvider):
    """Knows no way to switch thinking off, and refuses one model."""

    def prepare(self, config):
        if config.model == "closed":
            raise CredentialError("no key", hint="set one")
        if config.reasoning_effort == "off":
            raise UsageError("no such effort", code="UNSUPPORTED_REASONING_EFFORT")
        return super().prepare(config)


def test_a_model_without_a_word_for_no_thinking_is_asked_in_its_own_way(stage, titled):
    stage.model = Moody()
    titled()
    agent, turn, title = asked(stage, "one")
    assert title.request.config.reasoning_effort is None
    title.send(*text_chunks("Named"))
    turn.send(*text_chunks("done"))
    assert agent.when_idle(10)
    until(lambda: title_of(stage, agent) == "Named")


def test_a_model_of_titles_that_cannot_be_asked_is_refused_with_the_agent(stage, titled):
    stage.model = Moody()
    titled(model="manual/closed")
    with pytest.raises(CredentialError):
        stage.agent()
    assert stage.harness.agents() == []
