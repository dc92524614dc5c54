"""A harness in bad weather: a model that fails in every way, tools of every kind, a disk that refuses, and
actors that are killed. What it does follows from a seed, as far as threads and timers allow.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import dsh_actors.harness as harness_module
from dsh_actors.actors import restarts
from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.config import load_config
from dsh_actors.core.chunks import Chunk, Failure, Finish, TextDelta
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.retry import RetryPolicy
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import ActorGone, StorageError, StorageFull
from dsh_actors.harness import AgentHandle, Harness
from dsh_actors.ports import PreparedCall, StreamControl, ToolContext, ToolOutput, ToolSpec
from dsh_actors.runtime.timers import SystemClock
from dsh_actors.runtime.waiting import pause
from dsh_actors.testing.scripted import ScriptedProvider
from tests.crash.invariants import session_faults

__all__ = ["WORKERS", "Storm", "storm"]

WORKERS = ("store", "gateway", "pool", "approvals", "projector", "telemetry")
PATIENCE_S = 60.0
TOOLS = ("mark", "look", "linger", "burst", "no such tool")


class WildModel(ScriptedProvider):
    """Answers, asks for tools, and fails: refusals, cut streams, silence, exceptions."""

    def __init__(self, rand: random.Random, trouble: float) -> None:
        super().__init__(
            [], name="wild", retry_policy=RetryPolicy(max_retries=4, initial_delay_ms=1, max_delay_ms=3)
        )
        self._rand = rand
        self.trouble = trouble
        self.diligence = 0.65
        self._keeps_requests = False

    def stream(self, call: PreparedCall, body: bytes, control: StreamControl) -> Iterator[Sequence[Chunk]]:
        trouble = self._rand.random() if self._rand.random() < self.trouble else 1.0
        if trouble < 0.2:
            raise ConnectionResetError("the connection was reset")
        if trouble < 0.4:
            yield [Finish("error", Failure("slow down", "RATE_LIMIT", 429, 1))]
            return
        if trouble < 0.5:
            control.expect_within(0.02)
            woken = threading.Event()
            control.on_abort(woken.set)
            woken.wait()
            return
        pieces = super().stream(call, body, control)
        for number, piece in enumerate(pieces):
            if trouble < 0.7 and number == 2:
                return  # cut short
            if trouble < 0.8 and number == 1:
                yield [TextDelta(0, "half"), Finish("error", Failure("broken", "SERVER_ERROR", 500))]
                return
            yield piece
            time.sleep(0)

    def _next(self, model: str, body: bytes) -> tuple[int, JsonObject]:
        rand = self._rand
        if rand.random() >= self.diligence:
            return 0, {"text": "done"}
        tools = rand.choices(TOOLS, (6, 4, 2, 1, 1), k=rand.randint(1, 3))
        calls = [
            {"tool": name, "arguments": {"n": rand.randrange(10**9)}, "id": f"c{rand.getrandbits(60):x}"}
            for name in tools
        ]
        return 0, {"text": "I go on", "calls": calls}


class Act:
    """A tool. What it did is noted by the id of its call."""

    def __init__(self, storm: Storm, name: str, *, changes: bool) -> None:
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
        self.spec = ToolSpec(name, f"{name} something", parameters, changes=changes)
        self._storm = storm

    def is_parallel(self, arguments: JsonObject) -> bool:
        return not self.spec.changes

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        if self.spec.changes:
            self._storm.acted(context)
        if self.spec.name == "linger":
            pause(0.001 * (arguments["n"] % 20), context.cancel)
        if self.spec.name == "burst":
            raise RuntimeError("the tool burst")
        return ToolOutput(f"{self.spec.name} {arguments['n']}")


class BadDisk(SegmentStorage):
    """Refuses a write now and then, while ``trouble`` is above 0."""

    rand = random.Random(0)
    trouble = 0.0

    def create(self, header: SessionHeader) -> Any:
        return _BadWriter(super().create(header), self)

    def open(self, session_id: SessionId) -> Any:
        return _BadWriter(super().open(session_id), self)


class _BadWriter:
    def __init__(self, inner: Any, disk: BadDisk) -> None:
        self._inner = inner
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def append(self, events: Sequence[Event]) -> None:
        chance = self._disk.rand.random()
        if chance < self._disk.trouble / 2:
            raise StorageFull("no room on the disk")
        if chance < self._disk.trouble:
            raise StorageError("the disk does not answer")
        self._inner.append(events)


class FailingClock(SystemClock):
    """The clock of the agents, which raises when it is asked next after `fail_next`."""

    def __init__(self) -> None:
        self._is_failing = False

    def fail_next(self) -> None:
        self._is_failing = True

    def now_ms(self) -> int:
        if self._is_failing:
            self._is_failing = False
            raise ZeroDivisionError("the clock broke")
        return super().now_ms()


class Storm:
    """The harness, what its agents told, and the hands that break things."""

    def __init__(
        self, folder: Path, seed: int, *, model_trouble: float = 0.0, disk_trouble: float = 0.0
    ) -> None:
        self.rand = random.Random(seed)
        self.cwd = folder / "work"
        self.cwd.mkdir(parents=True)
        self.clock = FailingClock()
        self.model = WildModel(random.Random(seed + 1), model_trouble)
        BadDisk.rand, BadDisk.trouble = random.Random(seed + 2), disk_trouble
        config = load_config(env={"DSH_HOME": str(folder / "home")}, cwd=str(self.cwd))
        self.harness = Harness.open(config, providers={"wild": self.model}, clock=self.clock)
        for name, changes in (("mark", True), ("look", False), ("linger", True), ("burst", True)):
            self.harness.scope.tool(Act(self, name, changes=changes))
        self.harness.scope.guard(lambda call: "nobody may look now" if self.rand.random() < 0.05 else None)
        self.lives: dict[str, list[list[Event]]] = {}
        self.accepted: dict[str, list[str]] = {}
        self.acts: Counter[str] = Counter()
        self.given_up: dict[str, str] = {}
        self.crashes = 0
        self.on_event: Callable[[str, Event], None] = lambda _session_id, _event: None
        self.harness.scope.observe("agent/error", self._on_error)
        self.harness.scope.observe("agent/disposed", self._on_disposed)

    # --- agents --------------------------------------------------------------------------------

    def options(self) -> AgentOptions:
        return AgentOptions(model="wild/m", cwd=str(self.cwd))

    def create(self) -> AgentHandle:
        return self._watched(lambda options, setup: self.harness.create(options, setup))

    def resume(self, session_id: str) -> AgentHandle:
        return self._watched(lambda options, setup: self.harness.resume(session_id, options, setup))

    def fork(self, session_id: str) -> AgentHandle:
        return self._watched(lambda options, setup: self.harness.fork(session_id, options, setup=setup))

    def _watched(self, bring_up: Callable[[AgentOptions, Any], AgentHandle]) -> AgentHandle:
        life: list[Event] = []
        name = ""

        def note(event: Event) -> None:
            life.append(event)
            self.on_event(name, event)

        def setup(scope: Any) -> None:
            scope.observe("session/event", note)

        agent = bring_up(self.options(), setup)
        name = agent.id
        self.lives.setdefault(name, []).append(life)
        self.accepted.setdefault(name, [])
        self.given_up.pop(name, None)
        return agent

    def say(self, agent: AgentHandle, how: str = "followup") -> None:
        """Deliver a message; it counts as accepted when that returns."""
        # A clock that breaks in the middle of an ask is told to the asker: nothing was taken in then.
        with contextlib.suppress(ZeroDivisionError):
            self.accepted[agent.id].append(getattr(agent, how)(f"go on, {self.rand.random()}"))

    def dispose(self, agent: AgentHandle) -> None:
        """Where the disk keeps the log from becoming durable, what it had not taken is gone."""
        try:
            agent.dispose()
        except StorageError:
            self.lose(agent.id)

    def lose(self, session_id: str) -> None:
        """The disk has not taken everything: what this session was told so far proves nothing."""
        self.lives[session_id] = []
        self.accepted[session_id] = []

    def acted(self, context: ToolContext) -> None:
        self.acts[context.call_id] += 1

    def _on_error(self, payload: dict[str, Any]) -> None:
        self.crashes += payload["code"] == "ACTOR_CRASHED"

    def _on_disposed(self, payload: dict[str, Any]) -> None:
        if payload["error"] is not None:
            self.given_up[payload["session"]] = payload["error"]
            if BadDisk.trouble:
                self.lose(payload["session"])

    # --- breaking things -----------------------------------------------------------------------

    def kill_agent(self, agent: AgentHandle) -> None:
        """By a message that it cannot understand, or by an exception in a transition, of whoever is next."""
        ref = agent._address.ref
        if ref is not None and self.rand.random() < 0.7:
            ref.tell(object())
        else:
            self.clock.fail_next()

    def kill_worker(self, name: str) -> None:
        ref = getattr(self.harness._at, name).ref
        if ref is not None:
            ref.tell(object())

    def clear_up(self) -> None:
        """The weather clears."""
        BadDisk.trouble = self.model.trouble = 0.0

    # --- the end -------------------------------------------------------------------------------

    def settle(self) -> None:
        """Every agent comes to rest and is disposed of."""
        self.clear_up()
        for agent in self.harness.agents():
            with contextlib.suppress(ActorGone):
                assert agent.when_idle(PATIENCE_S), f"{agent.id} hangs: {agent.status()}"
        self.harness.close()

    def faults(self) -> list[str]:
        """What is wrong with any of the sessions, after `settle`."""
        storage = self.harness.storage
        found = [
            fault
            for name, lives in self.lives.items()
            for fault in session_faults(storage, name, accepted=self.accepted[name], lives=lives)
        ]
        return found + [f"call {call} acted {count} times" for call, count in self.acts.items() if count > 1]


@contextlib.contextmanager
def storm(folder: Path, seed: int, *, max_restarts: int = 10**9, **trouble: float) -> Iterator[Storm]:
    """A `Storm` whose actors may be killed as often as it likes, or ``max_restarts`` times a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restarts, "MAX_RESTARTS", max_restarts)
        patch.setattr(harness_module, "open_storage", bad_storage)
        world = Storm(folder, seed, **trouble)
        try:
            yield world
        finally:
            world.clear_up()
            world.harness.close()


def bad_storage(config: Any, clock_ms: Callable[[], int]) -> BadDisk:
    # A clock of its own: the other one breaks.
    return BadDisk(str(Path(config.require_home()) / "sessions"), "the storm", SystemClock().now_ms)
