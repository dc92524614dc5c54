"""The soak of a daemon: clients create, tell, cancel, fork and dispose of agents at random, and leave their
events without a word, while actors die and the disk refuses. Afterwards every session is read, and what each
client put together of the events is what the log says.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import gevent
import pytest

from dsh_actors import harness as harness_module
from dsh_actors.actors import restarts
from dsh_actors.config import load_config
from dsh_actors.core.ids import SessionId
from dsh_actors.daemon.server import Daemon
from dsh_actors.errors import SessionNotFound
from tests.crash.invariants import session_faults
from tests.crash.storm import WORKERS, BadDisk, WildModel, bad_storage
from tests.daemon.http_kit import Client, EventReader

PATIENCE_S = 60.0
FINE = frozenset({200, 201, 202})
WEATHER = frozenset({404, 409, 500, 503, 507})
"""What a request may be answered with in such weather; everything else is a fault."""


class Soak:
    def __init__(self, folder: Path, seed: int) -> None:
        self.rand = random.Random(seed)
        (folder / "work").mkdir(parents=True)
        config = load_config(env={"DSH_HOME": str(folder / "home")}, cwd=str(folder / "work"))
        self.model = WildModel(self.rand, 0.15)
        self.daemon = Daemon(config, providers={"wild": self.model})
        self.daemon.start()
        self.client = Client(self.daemon.socket_path)
        self.client.description = self.client.get("/v1/openapi.json").json
        self.agents: set[str] = set()
        self.accepted: defaultdict[str, list[str]] = defaultdict(list)
        self.odd: list[str] = []

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.client.ask(method, path, body)
        if answer.status not in FINE | WEATHER and b"OPEN_TURN" not in answer.raw:
            self.odd.append(f"{method} {path}: {answer.status} {answer.raw!r}")
        return answer

    def kill_something(self, agent: str) -> None:
        harness: Any = self.daemon._harness
        entry = harness._agents.get(agent)
        address = entry.address if entry and self.rand.random() < 0.5 else None
        address = address or getattr(harness._at, self.rand.choice(WORKERS))
        if address.ref is not None:
            address.ref.tell(object())


class Player:
    """Works with an agent over HTTP, and follows its events now and then."""

    def __init__(self, soak: Soak, seed: int) -> None:
        self.soak, self.rand = soak, random.Random(seed)
        self.agent = ""
        self.seen: dict[str, list[Any]] = {}

    def begin(self) -> None:
        given = {"model": "wild/m", "approve": "all", "sandbox": "off", "prompt": "begin"}
        for _ in range(200):
            answer = self.soak.ask("POST", "/v1/agents", given)
            if answer.status == 201:
                break
            gevent.sleep(0)
        self.agent = answer.json["id"]
        self.soak.agents.add(self.agent)
        self.seen[self.agent] = []

    def play(self, rounds: int) -> None:
        self.begin()
        acts = (self.tell, self.follow, self.cancel, self.kill, self.fork, self.dispose, self.look)
        for act in self.rand.choices(acts, (10, 8, 2, 3, 1, 1, 2), k=rounds):
            act()
            gevent.sleep(0)

    def tell(self) -> None:
        how = self.rand.choice(("send", "send", "steer", "inject"))
        path = f"/v1/agents/{self.agent}/messages"
        answer = self.soak.ask("POST", path, {"text": "go on", "how": how})
        if answer.status == 202:
            self.soak.accepted[self.agent].append(answer.json["message_id"])

    def follow(self, *, to_the_end: bool = False) -> None:
        """Read some of the events after those that were seen, and leave in the middle."""
        seen = self.seen[self.agent]
        path = f"/v1/agents/{self.agent}/events" + ("?follow=0" if to_the_end else "")
        try:
            reader = EventReader(self.soak.client, path, str(seen[-1]["seq"]) if seen else None)
        except AssertionError:
            return  # refused, as the weather is bad
        left = 10**9 if to_the_end else self.rand.randrange(1, 30)
        with gevent.Timeout(PATIENCE_S if to_the_end else 0.05, False):
            for event in reader:
                if event.id is not None:
                    seen.append(event.data)
                    left -= 1
                if left <= 0:
                    break
        reader.leave()

    def cancel(self) -> None:
        self.soak.ask("POST", f"/v1/agents/{self.agent}/cancel", {"keep_inbox": self.rand.random() < 0.3})

    def kill(self) -> None:
        self.soak.kill_something(self.agent)

    def fork(self) -> None:
        answer = self.soak.ask("POST", f"/v1/agents/{self.agent}/fork", {})
        if answer.status == 201:
            self.agent = answer.json["id"]
            self.soak.agents.add(self.agent)
            self.seen[self.agent] = []

    def dispose(self) -> None:
        self.soak.ask("DELETE", f"/v1/agents/{self.agent}")
        self.begin()

    def look(self) -> None:
        for path in ("/v1/agents?limit=5", "/v1/health", "/metrics", f"/v1/agents/{self.agent}"):
            self.soak.ask("GET", path)


def check(folder: Path, seed: int, *, players: int, rounds: int, disk_trouble: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restarts, "MAX_RESTARTS", 10**9)
        patch.setattr(harness_module, "open_storage", bad_storage)
        soak = Soak(folder, seed)
        BadDisk.trouble = disk_trouble
        try:
            crew = [Player(soak, seed * 1000 + number) for number in range(players)]
            work = [gevent.spawn(player.play, rounds) for player in crew]
            for each in work:
                each.get(timeout=600)
            BadDisk.trouble = soak.model.trouble = 0.0
            settle(soak)
            for player in crew:
                player.follow(to_the_end=True)
            storage = soak.daemon._harness.storage
        finally:
            BadDisk.trouble = 0.0
            soak.daemon.close(PATIENCE_S)
    assert soak.odd == []
    assert [fault for player in crew for fault in seen_faults(storage, player.seen)] == []
    assert [fault for agent in soak.agents for fault in session_faults(storage, agent)] == []


def settle(soak: Soak) -> None:
    """Until every agent that is left is idle, asleep or failed."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        states = {each["state"] for each in soak.ask("GET", "/v1/agents?limit=1000").json["agents"]}
        if "running" not in states:
            return
        gevent.sleep(0)
    raise AssertionError("an agent hangs")


def seen_faults(storage: Any, seen: dict[str, list[Any]]) -> list[str]:
    """What clients were told is what was logged, each once and in order, but for what a crash left out."""
    faults = []
    for agent, events in seen.items():
        try:
            log = [event.to_json() for event in storage.read(SessionId(agent))]
        except SessionNotFound:
            log = []
        numbers = [event["seq"] for event in events]
        if numbers != sorted(set(numbers)):
            faults.append(f"{agent}: events came twice or out of order: {numbers}")
        faults += [
            f"{agent}: event {event['seq']} is not the log's"
            for event in events
            if event["seq"] < len(log) and log[event["seq"]]["type"] != event["type"]
        ]
    return faults


@pytest.mark.parametrize("disk_trouble", [0.0, 0.02], ids=["a good disk", "a disk that refuses"])
def test_a_soak_of_the_daemon_leaves_every_session_whole(tmp_path: Path, disk_trouble: float) -> None:
    check(tmp_path, 1, players=6, rounds=20, disk_trouble=disk_trouble)


def test_a_long_soak_of_the_daemon_leaves_every_session_whole(tmp_path: Path, long_form: bool) -> None:
    for seed in range(2, 8 if long_form else 2):
        check(tmp_path / str(seed), seed, players=60, rounds=60, disk_trouble=seed % 2 * 0.02)
