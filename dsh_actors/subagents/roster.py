"""Who is whose sub-agent in a harness, which of them work, and who waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsh_actors.actors.lifecycle import AgentEntry
from dsh_actors.config import Config
from dsh_actors.core.budget import Budget
from dsh_actors.core.ids import SessionId
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.scope import Scope
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import HarnessError, SubagentError
from dsh_actors.handle import AgentHandle, AgentLinks
from dsh_actors.ports import CancelToken, Clock
from dsh_actors.runtime.tasks import Slots
from dsh_actors.subagents.child import ChildRun

__all__ = ["ChildInfo", "Ground", "Roster"]


@dataclass(frozen=True, slots=True)
class Ground:
    """What of a harness its sub-agents stand on. ``pools`` is where an agent to come finds its budget,
    ``check`` refuses options, ``bring_up`` asks the supervisor for an agent, ``inspect`` gives a stored
    session's `SessionView`.
    """

    config: Config
    clock: Clock
    agents: Mapping[SessionId, AgentEntry] = field(hash=False)
    links: AgentLinks
    pools: dict[SessionId, Budget] = field(hash=False)
    scope: Scope
    check: Callable[[AgentOptions], None] = field(hash=False)
    bring_up: Callable[[Any], AgentHandle] = field(hash=False)
    inspect: Callable[[str], Any] = field(hash=False)


@dataclass(frozen=True, slots=True)
class ChildInfo:
    """A sub-agent that can be spoken to. ``state`` is queued, running, waiting or, at rest, ready;
    done for one that cannot go on."""

    id: SessionId
    parent: SessionId
    label: str
    state: str
    depth: int = 1


class Roster:
    """One of a harness. ``runs`` are the sub-agents at work."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self.runs: dict[SessionId, ChildRun] = {}
        self._known: dict[SessionId, dict[str, JsonObject]] = {}
        self._slots: dict[SessionId, Slots] = {}
        self._waiting: dict[SessionId, list[threading.Event]] = {}
        ground.scope.observe("agent/disposed", self._on_disposed)

    def entry(self, agent: SessionId) -> AgentEntry:
        """Raises `SubagentError` for an agent that is not there, or is just going."""
        entry = self._ground.agents.get(agent)
        if entry is None or entry.disposing is not None:
            raise SubagentError(f"there is no agent {agent} that could have sub-agents")
        return entry

    def learn(self, parent: SessionId, child: str, fact: JsonObject) -> None:
        """Remember a sub-agent that can be spoken to."""
        self._known.setdefault(parent, {})[child] = fact

    def fact(self, parent: SessionId, child: str) -> JsonObject:
        """What is known of a sub-agent. Raises `SubagentError`: UNAUTHORIZED or NOT_RESUMABLE."""
        fact = self._known.get(parent, {}).get(child)
        if fact is not None:
            return fact
        if child in self._ground.agents or any(child in each for each in self._known.values()):
            raise SubagentError(f"{child} is not an agent of yours to speak to", code="UNAUTHORIZED")
        raise SubagentError(
            f"there is no agent {child}",
            code="NOT_RESUMABLE",
            hint="agent_list names those that can be spoken to",
        )

    def is_below(self, agent: SessionId, above: SessionId) -> bool:
        """Whether one works somewhere below the other."""
        run = self.runs.get(agent)
        while run is not None and run.plan.parent != above:
            run = self.runs.get(run.plan.parent)
        return run is not None

    def is_stopping(self, agent: SessionId) -> bool:
        run = self.runs.get(agent)
        return run is not None and run.stopped.reason is not None

    def slots(self, parent: AgentEntry) -> Slots:
        """The places of all that works below the root that this agent belongs to."""
        root = parent.id
        while (run := self.runs.get(root)) is not None:
            root = run.plan.parent
        if root not in self._slots:
            # All below a root have its limit, or a lower one.
            self._slots[root] = Slots(parent.options.limits.max_concurrent_agents)
        return self._slots[root]

    def joined(self, run: ChildRun) -> None:
        self.runs[run.id] = run

    def left(self, run: ChildRun) -> None:
        self.runs.pop(run.id, None)
        for woken in self._waiting.get(run.id, ()):
            woken.set()

    def behind(self, parent: SessionId) -> list[ChildRun]:
        """What works behind an agent that goes on."""
        runs = (run for run in self.runs.values() if run.plan.parent == parent)
        return [run for run in runs if run.plan.mode == "continuable"]

    def wait(
        self, runs: Iterable[ChildRun], any_of: bool, timeout_s: float | None, cancel: CancelToken | None
    ) -> None:
        """Wait until all (or one) of them have come to rest, time is up or ``cancel`` is thrown."""
        runs, clock, woken = list(runs), self._ground.clock, threading.Event()
        ends_at = None if timeout_s is None else clock.monotonic() + timeout_s
        undo = cancel.on_cancel(woken.set) if cancel is not None else _nothing
        for run in runs:
            self._waiting.setdefault(run.id, []).append(woken)
        try:
            while not _enough(runs, any_of) and (cancel is None or cancel.reason is None):
                left = None if ends_at is None else ends_at - clock.monotonic()
                if left is not None and left <= 0:
                    return
                woken.wait(left)
                woken.clear()
        finally:
            for run in runs:
                waiting = self._waiting[run.id]
                waiting.remove(woken)
                if not waiting:
                    del self._waiting[run.id]
            undo()

    def listed(
        self, parent: SessionId, descendants: bool, depth: int = 1, seen: frozenset[SessionId] = frozenset()
    ) -> Iterator[ChildInfo]:
        """What can be spoken to, oldest first; ``descendants``: each followed by those below it."""
        known = self._known.get(parent)
        for name, fact in tuple((self._stored(parent) if known is None else known).items()):
            child = SessionId(name)
            if child in seen:
                continue  # a log may say anything
            run = self.runs.get(child)
            rest = "ready" if fact.get("via") is None else "done"
            state = rest if run is None or run.state == "over" else run.state
            yield ChildInfo(child, parent, fact["label"], state, depth)
            if descendants:
                yield from self.listed(child, True, depth + 1, seen | {parent, child})

    def _stored(self, agent: SessionId) -> Mapping[str, JsonObject]:
        """The sub-agents of one at rest, by its log."""
        if agent in self._ground.agents:
            return {}
        try:
            state = self._ground.inspect(agent).state
        except HarnessError:
            return {}  # whatever is wrong with it is told when it is spoken to
        return {name: fact for name, fact in state.children.items() if fact["mode"] == "continuable"}

    def _on_disposed(self, payload: Mapping[str, Any]) -> None:
        agent = SessionId(payload["session"])
        self._known.pop(agent, None)
        if agent not in self.runs:
            self._slots.pop(agent, None)


def _enough(runs: list[ChildRun], any_of: bool) -> bool:
    ended = [run.end is not None for run in runs]
    return not ended or (any(ended) if any_of else all(ended))


def _nothing() -> None:
    """There is nothing to undo."""
