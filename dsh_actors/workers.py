"""How the shared workers of a harness are built, one function an actor: the supervisor starts them anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsh_actors.actors.address import Address
from dsh_actors.actors.approvals import Answerer, ApprovalsActor
from dsh_actors.actors.model_gateway import GatewayState, ModelGatewayActor
from dsh_actors.actors.projector import ProjectorActor
from dsh_actors.actors.session_store import SessionStoreActor
from dsh_actors.actors.store_books import StoreBooks
from dsh_actors.actors.supervisor import WorkerSpec
from dsh_actors.actors.telemetry_sink import TelemetryFeed, TelemetrySinkActor
from dsh_actors.actors.tool_pool import RunningCalls, ToolPoolActor
from dsh_actors.adapters.storage.memory import MemoryStorage
from dsh_actors.config import Config
from dsh_actors.core.ids import SessionId
from dsh_actors.core.redaction import Redactor
from dsh_actors.ports import Clock, LlmProvider, SessionStorage
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.tasks import Slots

__all__ = ["Addresses", "WorkerParts", "worker_specs"]

MAX_TOOL_CALLS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the shared workers are found, whichever incarnation is up."""

    store: Address = field(default_factory=lambda: Address("session_store"))
    gateway: Address = field(default_factory=lambda: Address("model_gateway"))
    pool: Address = field(default_factory=lambda: Address("tool_pool"))
    approvals: Address = field(default_factory=lambda: Address("approvals"))
    projector: Address = field(default_factory=lambda: Address("projector"))
    telemetry: Address = field(default_factory=lambda: Address("telemetry_sink"))

    def all(self) -> tuple[Address, ...]:
        """From the top down, in the order of stopping."""
        return (self.approvals, self.pool, self.gateway, self.projector, self.telemetry, self.store)


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """What the workers share with the rest of the harness. ``project`` brings the index up to date.

    ``answerer`` is who is asked for approval, at most ``approval_timeout_s`` seconds; None: nobody.
    """

    storage: SessionStorage
    memory: MemoryStorage
    providers: Mapping[str, LlmProvider]
    redactor: Redactor
    clock: Clock
    books: StoreBooks
    project: Callable[[SessionId], None]
    feed: TelemetryFeed
    answerer: Answerer | None = None
    approval_timeout_s: float = 300.0


def worker_specs(
    config: Config, parts: WorkerParts, addresses: Addresses
) -> dict[str, tuple[Address, WorkerSpec]]:
    """Every worker by name, in the order of starting. A harness that keeps nothing has no projector."""
    specs = [
        (addresses.store, _store(config, parts, addresses.store)),
        (addresses.gateway, _gateway(config, parts)),
        (addresses.pool, _pool(parts)),
        (addresses.approvals, _approvals(parts)),
        (addresses.telemetry, _telemetry(parts)),
    ]
    if parts.storage is not parts.memory:
        specs.append((addresses.projector, _projector(parts, addresses.projector)))
    return {address.name: (address, build) for address, build in specs}


def _store(config: Config, parts: WorkerParts, home: Address) -> WorkerSpec:
    window_s = config.session.write_window_ms / 1000

    def build(generation: int, parent: Ref[Any]) -> SessionStoreActor:
        return SessionStoreActor(
            name=home.name,
            parent=parent,
            generation=generation,
            home=home,
            storage=parts.storage,
            ephemeral=parts.memory,
            books=parts.books,
            window_s=window_s,
        )

    return build


def _gateway(config: Config, parts: WorkerParts) -> WorkerSpec:
    limits = {name: each.max_concurrency for name, each in config.providers.items()}
    state = GatewayState(parts.providers, parts.redactor, limits=limits)

    def build(generation: int, parent: Ref[Any]) -> ModelGatewayActor:
        return ModelGatewayActor(
            name="model_gateway", parent=parent, generation=generation, state=state, clock=parts.clock
        )

    return build


def _pool(parts: WorkerParts) -> WorkerSpec:
    slots, running = Slots(MAX_TOOL_CALLS_AT_ONCE), RunningCalls()

    def build(generation: int, parent: Ref[Any]) -> ToolPoolActor:
        return ToolPoolActor(
            name="tool_pool",
            parent=parent,
            generation=generation,
            slots=slots,
            redactor=parts.redactor,
            running=running,
        )

    return build


def _approvals(parts: WorkerParts) -> WorkerSpec:
    def build(generation: int, parent: Ref[Any]) -> ApprovalsActor:
        return ApprovalsActor(
            name="approvals",
            parent=parent,
            generation=generation,
            answerer=parts.answerer,
            timeout_s=parts.approval_timeout_s,
        )

    return build


def _projector(parts: WorkerParts, home: Address) -> WorkerSpec:
    def build(generation: int, parent: Ref[Any]) -> ProjectorActor:
        return ProjectorActor(
            name=home.name, parent=parent, generation=generation, home=home, project=parts.project
        )

    return build


def _telemetry(parts: WorkerParts) -> WorkerSpec:
    def build(generation: int, parent: Ref[Any]) -> TelemetrySinkActor:
        return TelemetrySinkActor(
            name="telemetry_sink", parent=parent, generation=generation, feed=parts.feed
        )

    return build
