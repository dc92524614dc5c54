"""The projector actor: keeps the derived index near the sessions, one session at a time and never in a hurry.

Nobody depends on it. What it does not get to, or fails at, is stale in the index and found stale there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.address import Address
from dsh_actors.core.ids import SessionId
from dsh_actors.core.scope import Scope
from dsh_actors.errors import ProtocolError
from dsh_actors.runtime.actor import BaseActor
from dsh_actors.runtime.files import start_native
from dsh_actors.runtime.future import GeventFuture
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.timers import Timer, after

__all__ = ["ProjectorActor", "watch_sessions"]

MAX_WAITING = 1000
"""Sessions that wait to be looked at; of more than these the oldest is forgotten and stays stale."""

WINDOW_S = 5.0
"""How long changes are collected: agents at work have the processor first, and closing settles the rest."""


@dataclass(frozen=True, slots=True)
class _WindowOver:
    """The live sessions that changed may be looked at."""


@dataclass(frozen=True, slots=True)
class _Projected:
    """The native call that looked at a session has ended. ``generation``: of the actor that started it."""

    session_id: SessionId
    generation: int
    error: BaseException | None


class ProjectorActor(BaseActor):
    """Owns: the names of sessions whose rows in the index may be stale.
    Receives: SessionChanged, SettleIndex.
    Sends: nothing.
    Waits for: nothing; the index is written in a native thread.
    Dies when: told something else; what it knew is stale until the sessions change again.
    """

    def __init__(
        self,
        *,
        name: str,
        parent: Ref[Any] | None,
        generation: int,
        home: Address,
        project: Callable[[SessionId], object],
        window_s: float = WINDOW_S,
    ) -> None:
        super().__init__(name=name, parent=parent, generation=generation)
        self._home = home
        self._project = project
        self._window_s = window_s
        self._generation = generation
        # Dictionaries keep their order: the first in is the first out.
        self._due: dict[SessionId, None] = {}
        self._later: dict[SessionId, None] = {}
        self._timer: Timer | None = None
        self._is_busy = False
        self._settling: list[GeventFuture] = []

    def receive(self, message: Any) -> Any:
        match message:
            case p.SessionChanged(session_id=session_id):
                self._note(session_id)
            case _WindowOver():
                self._timer = None
                self._due |= self._later
                self._later.clear()
            case _Projected():
                self._ended(message)
            case p.SettleIndex():
                return self._settle()
            case _:
                raise ProtocolError(f"{self.name} cannot use a {type(message).__name__}")
        self._go_on()
        return None

    def stopped(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _note(self, session_id: SessionId) -> None:
        if session_id not in self._due:
            _add(self._later, session_id)
            if self._timer is None:
                self._timer = after(self._window_s, lambda: self._home.tell(_WindowOver()))

    def _go_on(self) -> None:
        """Start on the next session unless one is being looked at; tell those who wait when there is none."""
        if self._is_busy:
            return
        if not self._due:
            settling, self._settling = self._settling, []
            for promise in settling:
                promise.set(None)
            return
        session_id = next(iter(self._due))
        del self._due[session_id]
        self._is_busy = True
        home, generation = self._home, self._generation
        start_native(
            partial(self._project, session_id),
            lambda _value, error: home.tell(_Projected(session_id, generation, error)),
        )

    def _ended(self, message: _Projected) -> None:
        if message.generation == self._generation:
            self._is_busy = False
        if message.error is not None:
            # Reading a damaged or vanished session, or a fault of ours: its row is stale, no more.
            LOGGER.debug("session %s was not indexed: %s", message.session_id, message.error)

    def _settle(self) -> GeventFuture | None:
        self._due |= self._later
        self._later.clear()
        if not self._is_busy and not self._due:
            return None
        promise = self.promise()
        self._settling.append(promise)
        self._go_on()
        return promise


def watch_sessions(scope: Scope, projector: Address) -> None:
    """Tell the projector of every agent below ``scope`` that becomes idle or is disposed of."""

    def on_status(payload: dict[str, Any]) -> None:
        if payload.get("status") == "idle":
            projector.tell(p.SessionChanged(payload["session"]))

    scope.observe("agent/status", on_status)
    scope.observe("agent/disposed", lambda payload: projector.tell(p.SessionChanged(payload["session"])))


def _add(sessions: dict[SessionId, None], session_id: SessionId) -> None:
    sessions[session_id] = None
    if len(sessions) > MAX_WAITING:
        del sessions[next(iter(sessions))]
