"""The soak: agents are created, told, cancelled, killed, disposed of, resumed and forked at random, with a
model that fails, a disk that refuses and workers that die; afterwards every session is read and checked.

`Soak.hands` are what happens: whoever adds a way to use a harness adds a hand.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import gevent
import pytest
from gevent.event import Event as Signal

from dsh_actors.errors import ActorGone, HarnessError, SessionBusy, SessionNotFound
from dsh_actors.handle import AgentHandle
from tests.crash.storm import WORKERS, Storm, storm

Hand = Callable[["Soak", "Player"], None]

REFUSALS = "ACTOR_GONE OPEN_TURN SESSION_BUSY SESSION_NOT_FOUND SESSION_NOT_LIVE STORAGE_FAILED STORAGE_FULL"
"""What a call may be refused with in such weather."""


class Player:
    """One who works with an agent of its own, which may be another one later."""

    def __init__(self, soak: Soak, rand: random.Random) -> None:
        self.rand = rand
        self.agent: AgentHandle = soak.world.create()


class Soak:
    def __init__(self, world: Storm, seed: int, *, players: int, rounds: int) -> None:
        self.world = world
        self.rounds = rounds
        self.refused: list[str] = []
        self.hands: list[tuple[int, Hand]] = [
            (10, lambda soak, player: soak.world.say(player.agent)),
            (3, lambda soak, player: soak.world.say(player.agent, "steer")),
            (2, lambda soak, player: soak.world.say(player.agent, "inject")),
            (6, lambda _soak, player: player.agent.when_idle(0.01) and None),
            (2, lambda _soak, player: player.agent.cancel()),
            (1, lambda _soak, player: player.agent.cancel({"kind": "parent"}, keep_inbox=True)),
            (1, lambda _soak, player: player.agent.record("run/note", {"text": "x"}, ignorable=True)),
            (1, lambda _soak, player: player.agent.rename("a title")),
            (3, lambda soak, player: soak.world.kill_agent(player.agent)),
            (2, lambda soak, player: soak.world.kill_worker(player.rand.choice(WORKERS))),
            (1, lambda soak, _player: soak.look()),
            (2, resume),
            (1, fork),
        ]
        self.players = [Player(self, random.Random(seed * 1000 + number)) for number in range(players)]

    def look(self) -> None:
        assert "supervisor" in self.world.harness.actor_tree()
        assert self.world.harness.metrics()["dsh_agents_live"]

    def play(self, player: Player) -> None:
        weights, hands = zip(*self.hands, strict=True)
        for hand in player.rand.choices(hands, weights, k=self.rounds):
            try:
                hand(self, player)
            except ZeroDivisionError:
                continue  # the clock broke in the middle of an ask
            except HarnessError as error:
                if error.code not in REFUSALS.split():
                    raise
                self.refused.append(error.code)
                self.pick_up(player)
            gevent.sleep(0)

    def pick_up(self, player: Player) -> None:
        """An agent that the disk has ended is resumed, or left for another."""
        if not player.agent._scope.closed:
            return
        never = Signal()
        bring_up = partial(self.world.resume, player.agent.id)
        for _ in range(100):
            try:
                player.agent = bring_up()
                return
            except SessionNotFound:
                bring_up = self.world.create
            except (ActorGone, SessionBusy, ZeroDivisionError):
                never.wait(0.001)  # the store died meanwhile; what it was opening is free in a moment
        raise AssertionError("no agent can be brought up")

    def run(self) -> None:
        players = [gevent.spawn(self.play, player) for player in self.players]
        for player in players:
            player.get(timeout=600)


def resume(soak: Soak, player: Player) -> None:
    """Dispose of the agent and go on with its session."""
    soak.world.dispose(player.agent)
    player.agent = soak.world.resume(player.agent.id)


def fork(soak: Soak, player: Player) -> None:
    """Go on with a copy; the original is disposed of."""
    child = soak.world.fork(player.agent.id)
    soak.world.dispose(player.agent)
    player.agent = child


def check_soak(folder: Path, seed: int, *, players: int, rounds: int, disk_trouble: float) -> None:
    with storm(folder, seed, model_trouble=0.15, disk_trouble=disk_trouble) as world:
        soak = Soak(world, seed, players=players, rounds=rounds)
        soak.run()
        world.settle()
        assert world.crashes
        assert world.faults() == []


@pytest.mark.parametrize("disk_trouble", [0.0, 0.02], ids=["a good disk", "a disk that refuses"])
def test_a_soak_leaves_every_session_whole(tmp_path: Path, disk_trouble: float) -> None:
    check_soak(tmp_path, 1, players=12, rounds=30, disk_trouble=disk_trouble)


def test_a_long_soak_leaves_every_session_whole(tmp_path: Path, long_form: bool) -> None:
    for seed in range(2, 12 if long_form else 2):
        check_soak(tmp_path / str(seed), seed, players=300, rounds=40, disk_trouble=seed % 2 * 0.02)

