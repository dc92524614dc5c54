"""Actors that are killed under load come back: no event is lost, and every session stays whole."""

from __future__ import annotations

import queue
import time
from collections import Counter
from pathlib import Path

import pytest

from dsh_actors.core.events import Event
from dsh_actors.core.scope import Scope
from dsh_actors.errors import ActorGone
from dsh_actors.runtime.actor import live_actors
from dsh_actors.runtime.files import DEFAULT_POOL_SIZE
from dsh_actors.runtime.tasks import live_tasks, start_task
from tests.crash.storm import WORKERS, storm

PHASES = {
    "prompt": "turn/start",
    "flush": "request/digest",
    "streaming": "assistant/chunk",
    "backoff": "llm/retry",
    "reply": "assistant/message",
    "tools": "tool/call",
    "results": "tool/result",
    "between steps": "step/end",
}
LAST = ("results", "between steps")
"""Where the turn may be over before the message that kills is received."""


@pytest.mark.parametrize("phase", PHASES)
def test_an_agent_that_is_killed_in_any_phase_goes_on_from_its_log(tmp_path: Path, phase: str) -> None:
    with storm(tmp_path, 7, model_trouble=0.5 if phase == "backoff" else 0.0) as world:
        agents = {agent.id: agent for agent in (world.create() for _ in range(4))}
        kills: Counter[str] = Counter()

        def kill(session_id: str, event: Event) -> None:
            if event.type == PHASES[phase] and kills[session_id] < 3:
                kills[session_id] += 1
                agents[session_id]._address.ref.tell(object())

        world.on_event = kill
        for agent in agents.values():
            for _ in range(4):
                world.say(agent)
        for agent in agents.values():
            assert agent.when_idle(60)
        world.settle()
        logs = [event for [life] in world.lives.values() for event in life if event.type == "turn/end"]
        ends = Counter(event.data["reason"]["kind"] for event in logs)
        assert ends["interrupted"] or phase in LAST
        # A turn that fails leaves what is queued to the next wake.
        assert ends.total() == 16 or ends["error"]
        # What closes an interrupted turn is told of as well: then nobody is there to be killed.
        assert ends["interrupted"] <= world.crashes <= kills.total()
        assert world.given_up == {} and world.faults() == []


def check_random_kills(folder: Path, seed: int, agents: int, kills: int) -> None:
    with storm(folder, seed, model_trouble=0.1) as world:
        live = [world.create() for _ in range(agents)]
        for agent in live:
            for _ in range(3):
                world.say(agent)
        for number in range(kills):
            world.rand.choice(live).when_idle(0.002)
            if world.rand.random() < 0.5:
                world.kill_agent(world.rand.choice(live))
            else:
                world.kill_worker(world.rand.choice(WORKERS))
            if number % 5 == 0:
                world.say(world.rand.choice(live))
        world.settle()
        assert world.crashes and world.given_up == {} and world.faults() == []


@pytest.mark.parametrize("seed", range(3))
def test_actors_that_are_killed_at_random_lose_no_event(tmp_path: Path, seed: int) -> None:
    check_random_kills(tmp_path, seed, agents=10, kills=60)


def test_many_more_actors_that_are_killed_at_random_lose_no_event(tmp_path: Path, long_form: bool) -> None:
    for seed in range(3, 40 if long_form else 3):
        check_random_kills(tmp_path / str(seed), seed, agents=40, kills=200)


# --- H5 ---------------------------------------------------------------------------------------


def test_the_death_of_an_agent_is_heard_of_within_a_second_and_fails_what_waits_for_it(
    tmp_path: Path,
) -> None:
    heard: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
    with storm(tmp_path, 1, max_restarts=0) as world:

        def setup(scope: Scope) -> None:
            scope.observe("agent/error", heard.put)
            scope.observe("session/event", die_in_the_turn)

        def die_in_the_turn(event: Event) -> None:
            if event.type == "step/start":
                world.clock.fail_next()

        agent = world.harness.create(world.options(), setup)
        other = world.create()
        ends: queue.SimpleQueue = queue.SimpleQueue()
        start_task(lambda _token: agent.run("go on"), ends.put, name="run")
        began = time.monotonic()
        report = heard.get(timeout=10)
        assert time.monotonic() - began < 5
        assert (report["session"], report["code"]) == (agent.id, "ACTOR_CRASHED")
        assert "the clock broke" in report["message"]
        assert isinstance(ends.get(timeout=10).error, ActorGone)
        world.say(other)
        world.settle()
    assert live_actors() == [] and live_tasks() == []


def native_threads() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Threads:")[2].split()[0])


def test_agents_that_come_and_go_leave_no_threads_and_no_actors(tmp_path: Path, long_form: bool) -> None:
    with storm(tmp_path, 1) as world:
        world.model.diligence = 0.0
        threads, actors = [], set()
        for number in range(5_000 if long_form else 100):
            agent = world.create()
            world.say(agent)
            assert agent.when_idle(30)
            agent.dispose()
            if number >= 40:
                threads.append(native_threads())
                actors.add(len(live_actors()))
        # Each thread of the pool is started when it is first needed, and stays.
        assert len(actors) == 1 and max(threads) - min(threads) < DEFAULT_POOL_SIZE
        assert world.harness.metrics()["dsh_agents_disposed_total"][0]["value"] == number + 1
