"""The telemetry sink actor: keeps what a harness counts, and the feed that the agents count into.

Nobody depends on it. Agents never wait for it, and tell it at most a few times a second, all together:
what they count between is gathered in the feed, so its mailbox stays short however busy they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.actors.agent import AgentActor
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.pricing import PriceOf, Rates
from dsh_actors.core.scope import Scope
from dsh_actors.core.session_meter import Counts, SessionMeter, add_counts
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import ActorGone, ProtocolError
from dsh_actors.runtime.actor import BaseActor, live_actors
from dsh_actors.runtime.ref import Ref

__all__ = ["TelemetryFeed", "TelemetrySinkActor"]

GATHER_MS = 250
"""How long counts are gathered before the sink is told."""

MAX_UNREAD = 16
"""A sink that has not taken in so many messages is told nothing until it has; nothing is lost by it."""

FLUSH_TIMEOUT_S = 1.0

CRASHED = "ACTOR_CRASHED"


class TelemetrySinkActor(BaseActor):
    """Owns: the totals of a harness, which outlive its incarnations.
    Receives: RecordEvents, FlushTelemetry.
    Sends: nothing.
    Waits for: nothing.
    Dies when: told something else; the next incarnation goes on with the totals.
    """

    def __init__(self, *, name: str, parent: Ref[Any] | None, generation: int, feed: TelemetryFeed) -> None:
        super().__init__(name=name, parent=parent, generation=generation)
        self._feed = feed

    def receive(self, message: Any) -> Any:
        match message:
            case p.RecordEvents(counts=counts):
                self._feed.taken(counts)
            case p.FlushTelemetry():
                return None
            case _:
                raise ProtocolError(f"{self.name} cannot use a {type(message).__name__}")


class TelemetryFeed:
    """Where a harness's agents and its supervisor count; one of a harness."""

    def __init__(self, sink: Address, price_of: PriceOf) -> None:
        self._sink = sink
        self._price_of = price_of
        self._rates: dict[str, Rates | None] = {}
        self._gathered: Counts = {}
        self._totals: Counts = {}
        self._told_at = 0
        self._unread = 0

    def count(self, *series: str) -> None:
        """One more of a metric: its name and the values of its labels."""
        self._gathered[series] = self._gathered.get(series, 0) + 1

    def watch(self, scope: Scope) -> None:
        """Count the agents that come, go and crash below ``scope``, the harness's."""
        scope.observe("agent/created", lambda _payload: self.count("dsh_agents_created_total"))
        scope.observe("agent/disposed", lambda _payload: self.count("dsh_agents_disposed_total"))
        scope.observe("agent/error", self._on_error)

    def meter(self, scope: Scope, config: CallConfig) -> None:
        """Count what the agent of ``scope`` does, which calls the model of ``config``."""
        meter = SessionMeter(self._gathered, config, self._rates_of, scope.visible_tools, self._on_step)
        scope.observe("session/event", meter.apply)

    def totals(self) -> Counts:
        """Everything counted so far. Waits for the sink, and not for long: without it, what it had."""
        self._tell()
        try:
            self._sink.ask(p.FlushTelemetry(), timeout=FLUSH_TIMEOUT_S)
        except ActorGone:
            self._unread = 0  # what a sink that is gone for good was told is lost
        totals = dict(self._totals)
        add_counts(totals, self._gathered)
        return totals

    def report(self, supervisor: Ref[Any]) -> dict[str, list[JsonObject]]:
        """`totals`, and what the supervisor's actors are like at this moment, as `metrics.as_samples` gives
        it.
        """
        from dsh_actors.core.metrics import as_samples  # only where somebody looks

        counts, depths = self.totals(), {supervisor.name: supervisor.mailbox_depth, "agents": 0}
        live = running = 0
        for actor in live_actors():
            if actor.parent is not supervisor:
                continue
            if isinstance(actor, AgentActor):
                live, running = live + 1, running + actor.machine.running
                depths["agents"] += actor.mailbox_depth
            else:
                depths[actor.name] = actor.mailbox_depth
        counts |= {("dsh_agents_live",): live, ("dsh_agents_running",): running}
        counts |= {("dsh_mailbox_depth", name): depth for name, depth in depths.items()}
        return as_samples(counts)

    def taken(self, counts: Mapping[tuple[str, ...], float]) -> None:
        """For the sink: it has these now."""
        self._unread = max(0, self._unread - 1)
        add_counts(self._totals, counts)

    def _rates_of(self, model: str) -> Rates | None:
        if model not in self._rates:
            self._rates[model] = self._price_of(model)
        return self._rates[model]

    def _on_error(self, payload: Mapping[str, Any]) -> None:
        if payload.get("code") == CRASHED:
            self.count("dsh_agent_crashes_total")

    def _on_step(self, time_ms: int) -> None:
        # A clock that was set back must not keep the sink waiting.
        if abs(time_ms - self._told_at) >= GATHER_MS and self._unread < MAX_UNREAD:
            self._told_at = time_ms
            self._tell()

    def _tell(self) -> None:
        if self._gathered:
            counts = dict(self._gathered)
            self._gathered.clear()  # not another dictionary: the meters have this one
            self._unread += 1
            self._sink.tell(p.RecordEvents(counts))
