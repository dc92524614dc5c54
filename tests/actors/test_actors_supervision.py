"""Actors that crash come back from the log, the others do not notice, and nothing committed is lost."""

from __future__ import annotations

import queue

import pytest

from dsh_actors.core.chunks import TextDelta
from dsh_actors.core.messages import text_of
from dsh_actors.errors import ActorGone
from dsh_actors.testing.machine import text_chunks


def crash(address) -> None:
    """A message that no actor understands; being told, it ends the receiver."""
    address.tell(object())


class Watch:
    """Collects notifications of one kind, so that a test can wait for one."""

    def __init__(self) -> None:
        self.seen: queue.SimpleQueue[dict] = queue.SimpleQueue()

    def __call__(self, payload: dict) -> None:
        self.seen.put(payload)


def test_an_agent_that_crashes_in_a_turn_is_rebuilt_and_the_turn_is_interrupted(stage):
    watch = Watch()
    agent = stage.agent(lambda scope: scope.observe("agent/error", watch) and None)
    agent.followup("hello")
    stage.model.next_stream().send(TextDelta(0, "half"))
    crash(agent._address)
    assert "crashed" in watch.seen.get(timeout=10)
    assert agent.when_idle(10)
    agent.followup("go on")
    stream = stage.model.next_stream()
    assert next(text_of(m) for m in stream.request.messages) == "hello"
    stream.send(*text_chunks("ok"))
    assert agent.when_idle(10)
    agent.dispose()
    ends = [e.data["reason"]["kind"] for e in stage.stored(agent.id) if e.type == "turn/end"]
    assert ends == ["interrupted", "completed"]
    seqs = [e.seq for e in stage.stored(agent.id)]
    assert seqs == list(range(len(seqs)))


def test_other_agents_do_not_notice_a_crash(stage):
    one, two = stage.agent(), stage.agent()
    two.followup("hello")
    stream = stage.model.next_stream()
    crash(one._address)
    stream.send(*text_chunks("ok"))
    assert two.when_idle(10)
    assert two.status().turn == 1
    assert one.status().status == "idle"


def test_an_agent_that_keeps_crashing_is_given_up_with_its_error(stage):
    watch = Watch()
    agent = stage.agent(lambda scope: scope.observe("agent/disposed", watch) and None)
    for _ in range(4):
        agent.status()
        crash(agent._address)
    gone = watch.seen.get(timeout=10)
    assert gone["session"] == agent.id and gone["error"]
    with pytest.raises(ActorGone):
        agent.status()
    assert stage.harness.agents() == []


@pytest.mark.parametrize("worker", ["_store", "_gateway", "_pool", "_approvals"])
def test_a_shared_worker_that_crashes_comes_back_and_nothing_is_lost(stage, worker):
    agent = stage.agent()
    agent.followup("hello")
    stream = stage.model.next_stream()
    stream.send(TextDelta(0, "half "))
    crash(getattr(stage.harness, worker))
    stream.send(TextDelta(0, "whole"), *text_chunks("")[1:])
    assert agent.when_idle(10)
    agent.followup("again")
    stage.model.next_stream().send(*text_chunks("ok"))
    assert agent.when_idle(10)
    agent.dispose()
    assert stage.stored(agent.id) == stage.events
    ends = [e.data["reason"]["kind"] for e in stage.events if e.type == "turn/end"]
    assert ends == ["completed", "completed"]


def test_a_store_that_crashes_with_unwritten_events_writes_them_afterwards(stage):
    agent = stage.agent()
    agent.inject("kept")
    crash(stage.harness._store)
    agent.inject("kept too")
    agent.dispose()
    stored = stage.stored(agent.id)
    assert stored == stage.events
    assert [e.data["inserted"][0]["content"][0]["text"] for e in stored[:2]] == ["kept", "kept too"]
