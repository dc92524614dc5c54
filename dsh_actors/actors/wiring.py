"""What an agent is connected to: what all agents of a harness share, and what is its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dsh_actors.actors.address import Address
from dsh_actors.actors.owned_work import OwnedWork
from dsh_actors.actors.tool_gate import ToolGate
from dsh_actors.core.ids import CallId
from dsh_actors.core.scope import Scope
from dsh_actors.core.text import JsonObject
from dsh_actors.core.turn_env import Environment
from dsh_actors.ports import CancelToken, Clock, LlmProvider, Tool, ToolContext

__all__ = ["AgentParts", "Wiring"]


@dataclass(frozen=True, slots=True)
class Wiring:
    """What all agents of a harness share.

    A checkpoint is saved when a turn ends with ``checkpoint_events`` new events, and in the middle of
    one with ``checkpoint_max_events``.
    """

    clock: Clock
    store: Address
    gateway: Address
    pool: Address
    approvals: Address
    providers: Mapping[str, LlmProvider] = field(hash=False)
    work: OwnedWork
    checkpoint_events: int = 256
    checkpoint_max_events: int = 4_096


@dataclass(frozen=True, slots=True)
class AgentParts:
    """What is one agent's own. ``make_context`` gives a tool what it may use.

    ``remaining_ms`` is what is left of the run's time, None for no limit. ``children`` are the sub-agents
    that the log knew of when the agent was built.
    """

    scope: Scope
    env: Environment
    gate: ToolGate
    make_context: Callable[[CallId, CancelToken, Tool], ToolContext] = field(hash=False)
    remaining_ms: Callable[[], int | None] = field(hash=False)
    children: Mapping[str, JsonObject] = field(default_factory=dict, hash=False)
