"""What the HTTP layer needs of whoever hosts the agents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, Protocol

from dsh_actors.core.events import Event
from dsh_actors.core.outcome import RunEnd
from dsh_actors.core.text import JsonObject
from dsh_actors.daemon.info import AgentInfo
from dsh_actors.task_spec import TaskSpec

__all__ = ["Hosting", "How"]

How = Literal["send", "steer", "inject"]


class Hosting(Protocol):
    """Plain blocking calls. An id that is not hosted raises `AgentNotFound`."""

    def create(self, spec: TaskSpec) -> AgentInfo: ...
    def get(self, agent_id: str) -> AgentInfo: ...
    def list(
        self, state: str | None = None, after: str | None = None, limit: int | None = None
    ) -> list[AgentInfo]:
        """In the order of ids, behind ``after``."""

    def deliver(self, agent_id: str, text: str, how: How) -> JsonObject:
        """``how``: send, steer or inject. ``{"message_id"}``."""

    def cancel(self, agent_id: str, keep_inbox: bool = False) -> None: ...
    def fork(
        self,
        agent_id: str,
        at_seq: int | None = None,
        session_id: str | None = None,
        prompt: str | None = None,
    ) -> AgentInfo: ...
    def wait(
        self, ids: Sequence[str], any: bool = False, timeout: float | None = None
    ) -> Mapping[str, RunEnd | None]:
        """The ends of those that are done, None for who never ran; who is not done is left out."""

    def dispose(self, agent_id: str) -> None: ...
    def events(self, agent_id: str, after: int = -1) -> Iterable[Event]:
        """What is stored behind event ``after``, in order; all that was recorded before the call."""

    def subscribe(self, agent_id: str, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Hear every event from now on, until the undo is called. Wakes nobody."""
