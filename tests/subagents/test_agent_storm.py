"""Trees of agents under random cancels and crashes: nothing hangs, nothing is left, every count fits."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dsh_actors.core.budget import Budget
from dsh_actors.core.chunks import Chunk
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.core.options import AgentOptions, Limits
from dsh_actors.errors import HarnessError
from dsh_actors.handle import AgentRef
from dsh_actors.ports import PreparedCall, StreamControl
from dsh_actors.runtime.tasks import TaskEnd, start_task
from dsh_actors.testing.scripted import ScriptedProvider
from tests.actors.kit import until
from tests.subagents.kit import Troupe, call

ROOTS = 8


class Dice(ScriptedProvider):
    """Answers with whatever comes up: words, agents before and behind, waits, reports."""

    def __init__(self, seed: int) -> None:
        super().__init__([], name="dice")
        self._rand = random.Random(seed)

    def stream(self, call: PreparedCall, body: bytes, control: StreamControl) -> Iterator[Sequence[Chunk]]:
        self.play([self._entry()])
        yield from super().stream(call, body, control)

    def _entry(self) -> dict[str, Any]:
        rand = self._rand
        agents = [
            call("agent", prompt=f"task {rand.random()}", background=rand.random() < 0.4, timeout_s=20)
            for _ in range(rand.randint(1, 3))
        ]
        other = rand.choice([call("agent_wait", any=True), call("agent_list"), call("report", message="hi")])
        found = rand.choices([{"text": "words"}, {"calls": agents}, {"calls": [other]}], [6, 3, 2])
        return {**found[0], "usage": {"input": 10, "output": 1}}


class Storm:
    """One harness whose agents are hit now and then, on an event of any of them."""

    def __init__(self, troupe: Troupe, seed: int, crashes: bool) -> None:
        self.rand = random.Random(seed)
        self.crashes = crashes
        self.harness = troupe.harness
        self.options = AgentOptions("dice/m", str(troupe.cwd))
        self.pools: dict[SessionId, Budget] = {}
        self.over = 0
        troupe.harness.scope.observe("session/event", self._on_event)

    def root(self) -> None:
        limits = Limits(
            max_agents=self.rand.randint(1, 12),
            max_concurrent_agents=self.rand.randint(1, 3),
            max_depth=self.rand.randint(1, 3),
        )
        agent = self.harness.create(AgentOptions("dice/m", self.options.cwd, limits=limits))
        self.pools[agent.id] = self.harness._agents[agent.id].parts.env.watch.budget
        try:
            for _ in range(2):
                agent.run("go")
                for info in self.harness.subagents.list(agent.id)[:2]:
                    self.harness.subagents.followup(agent.id, info.id, "more")
        except HarnessError:
            assert self.crashes  # given up after too many of them
        finally:
            agent.dispose(20)

    def finished(self, end: TaskEnd[None]) -> None:
        if end.error is not None:
            raise end.error
        self.over += 1

    def _on_event(self, event: Event) -> None:
        if self.rand.random() < 0.02:
            start_task(lambda _token: self._hit(), lambda _end: None, name="hit")

    def _hit(self) -> None:
        entry = self.rand.choice(list(self.harness._agents.values()) or [None])
        if entry is None:
            return
        if self.crashes and self.rand.random() < 0.5:
            entry.address.tell(object())
        else:
            AgentRef(entry, self.harness._links).cancel()

    def tree(self, session: SessionId) -> Iterator[Any]:
        """The states of a root's session and of all below it."""
        yield self.harness.inspect(session).state
        for listing in self.harness.storage.list():
            if listing.parent == session:
                yield from self.tree(listing.id)


@pytest.mark.parametrize("crashes", [False, True], ids=["cancels", "crashes"])
def test_trees_of_agents_end_whole_whatever_hits_them(troupe: Troupe, crashes: bool) -> None:
    troupe.harness.close()
    troupe.model = Dice(7)
    troupe.harness = troupe.open()
    storm = Storm(troupe, 7, crashes)
    for number in range(ROOTS):
        start_task(lambda _token: storm.root(), storm.finished, name=f"root {number}")
    until(lambda: storm.over == ROOTS, 60.0)
    harness, roster = troupe.harness, troupe.harness.subagents._roster
    assert harness.agents() == [] and roster.runs == {} == roster._slots
    assert harness.work._items == {} and harness._assembly.pools == {}
    below = 0
    for session, pool in storm.pools.items():
        states = list(storm.tree(session))
        below += len(states) - 1
        assert pool.agents >= len(states) - 1
        assert all(state.open_turn is None for state in states)
        if not crashes:
            assert pool.steps == sum(state.counters.steps for state in states)
            assert pool.tokens == sum(state.counters.tokens for state in states)
            assert not any(fact["open"] for state in states for fact in state.children.values())
    assert below > 0
