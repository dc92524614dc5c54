"""Actors that are killed at random under load lose no event, and every session stays whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.storm import WORKERS, storm


@pytest.mark.parametrize("seed", range(3))
def test_kill(tmp_path: Path, seed: int) -> None:
    with storm(tmp_path, seed, model_trouble=0.1) as world:
        agents = [world.create() for _ in range(10)]
        for agent in agents:
            for _ in range(3):
                world.say(agent)
        for step in range(60):
            world.rand.choice(agents).when_idle(0.002)
            if world.rand.random() < 0.5:
                world.kill_agent(world.rand.choice(agents))
            else:
                world.kill_worker(world.rand.choice(WORKERS))
            if step % 5 == 0:
                world.say(world.rand.choice(agents))
        print("GIVEN", world.given_up)
        world.settle()
        print("GIVEN", world.given_up)
        print(world.crashes, sum(map(len, world.seen.values())), len(world.acts))
        for f in world.faults(): print("FAULT",f)
        assert world.faults() == []
