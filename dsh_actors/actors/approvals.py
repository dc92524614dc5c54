"""The approvals actor: asks whoever can answer, and denies where nobody can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dsh_actors.actors import protocol as p
from dsh_actors.errors import ProtocolError
from dsh_actors.runtime.actor import BaseActor
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.timers import Timer, after

__all__ = ["Answerer", "ApprovalsActor"]


class Answerer(Protocol):
    """Somebody who can be asked. ``ask`` returns at once and calls ``answer`` later, or never."""

    def ask(self, request: p.RequestApproval, answer: Callable[[p.Outcome], None]) -> None: ...
    def withdraw(self, approval_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Given:
    approval_id: str
    outcome: p.Outcome


class ApprovalsActor(BaseActor):
    """Owns: the open approval requests and their deadlines.
    Receives: RequestApproval, DropApproval, and the answers.
    Sends: each request's outcome, once.
    Waits for: nothing.
    Dies when: the answerer raises; its open requests then time out with their turn.
    """

    def __init__(
        self,
        *,
        name: str,
        parent: Ref[Any] | None,
        generation: int,
        answerer: Answerer | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        super().__init__(name=name, parent=parent, generation=generation)
        self._answerer = answerer
        self._timeout_s = timeout_s
        self._open: dict[str, tuple[p.RequestApproval, Timer]] = {}

    def receive(self, message: Any) -> Any:
        match message:
            case p.RequestApproval():
                self._request(message)
            case p.DropApproval(approval_id=approval_id):
                if self._close(approval_id) is not None and self._answerer is not None:
                    self._answerer.withdraw(approval_id)
            case _Given(approval_id=approval_id, outcome=outcome):
                request = self._close(approval_id)
                if request is not None:
                    known = outcome in ("allowed-once", "rejected", "cancelled")
                    request.reply(outcome if known else "unavailable")
            case _:
                raise ProtocolError(f"{self.name} cannot use a {type(message).__name__}")

    def _request(self, request: p.RequestApproval) -> None:
        if self._answerer is None:
            request.reply("unavailable")
            return

        def give(outcome: p.Outcome) -> None:
            self.ref.tell(_Given(request.approval_id, outcome))

        self._open[request.approval_id] = (request, after(self._timeout_s, lambda: give("unavailable")))
        self._answerer.ask(request, give)

    def _close(self, approval_id: str) -> p.RequestApproval | None:
        request, timer = self._open.pop(approval_id, (None, None))
        if timer is not None:
            timer.cancel()
        return request
