"""What the turn machine and its parts share: phases, the environment, and the sink they write to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from dsh_actors.core.chunks import CallConfig, Failure, Usage
from dsh_actors.core.events import Event, SurfaceOp
from dsh_actors.core.ids import Ticket
from dsh_actors.core.limits import LimitWatch
from dsh_actors.core.messages import Message, ToolCallBlock
from dsh_actors.core.options import Limits, TitlePolicy
from dsh_actors.core.state import Counters, SessionState
from dsh_actors.core.text import JsonObject
from dsh_actors.core.turn_io import Call, Effect

__all__ = ["Environment", "Phase", "TurnSink"]


class Phase(Enum):
    """Where an agent stands. All but `IDLE` and `MAINTENANCE` are a running turn."""

    IDLE = "idle"
    MAINTENANCE = "maintenance"
    ASSEMBLING = "assembling"
    DECIDING = "deciding"
    CALLING = "calling"
    FLUSHING = "flushing"
    STREAMING = "streaming"
    RECOVERING = "recovering"
    BACKOFF = "backoff"
    TOOLS = "tools"
    STOPPING = "stopping"


def _never(_call: Call) -> bool:
    return False


def _always(_call: Call) -> bool:
    return True


def _unknown_cost(_model: str, _usage: Usage, _time_ms: int) -> float | None:
    return None


@dataclass(slots=True)
class Environment:
    """What the machine asks about its surroundings. The functions are quick and have no effect.

    ``cost_of`` gets ``PROVIDER/MODEL``, what was used, and when the request began (ms since the epoch).
    ``watch`` outlives a restart of the agent. ``require_text``: an answer without text is a failure.
    ``titles`` None: the session gets no title.
    """

    config: CallConfig
    is_parallel: Callable[[Call], bool] = _never
    needs_flush: Callable[[Call], bool] = _always
    cost_of: Callable[[str, Usage, int], float | None] = _unknown_cost
    watch: LimitWatch = field(default_factory=lambda: LimitWatch(Limits(), Counters()))
    max_parallel: int = 10
    require_text: bool = True
    titles: TitlePolicy | None = None


class TurnSink(Protocol):
    """The turn as its request cycle and its tool batch see it."""

    state: SessionState
    env: Environment
    phase: Phase

    @property
    def place(self) -> JsonObject: ...
    def emit(
        self,
        kind: str,
        data: JsonObject,
        *,
        surface: SurfaceOp | None = None,
        sources: tuple[int, ...] | None = None,
        ignorable: bool = False,
    ) -> Event: ...
    def do(self, effect: Effect) -> None: ...
    def new_ticket(self) -> Ticket: ...
    def start(self, phase: Phase, effect: Callable[[Ticket], Effect]) -> None: ...
    def log_user_message(self, message: Message) -> None: ...
    def run_tools(self, calls: list[ToolCallBlock]) -> None: ...
    def end_step(self, result: JsonObject | None) -> None: ...
    def stop_at(self, reached: JsonObject) -> None: ...
    def fail(self, failure: Failure) -> None: ...
