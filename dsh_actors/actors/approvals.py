"""The approvals actor: asks whoever can answer, and denies where nobody can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from dsh_actors.actors import protocol as p
from dsh_actors.actors.boundary import let_exits_pass
from dsh_actors.errors import ProtocolError
from dsh_actors.runtime.actor import BaseActor
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.timers import Timer, after

__all__ = ["Answerer", "ApprovalsActor"]


class Answerer(Protocol):
    """Somebody who can be asked. ``ask`` returns at once and calls ``answer`` later, or never.

    ``withdraw`` says that a question is over without an answer of his: ``unavailable`` for one that he
    had too long, ``cancelled`` for one that nobody needs answered any more.
    """

    def ask(self, request: p.RequestApproval, answer: Callable[[p.Outcome], None]) -> None: ...
    def withdraw(self, approval_id: str, outcome: p.Outcome) -> None: ...


@dataclass(frozen=True, slots=True)
class _Given:
    approval_id: str
    outcome: p.Outcome


@dataclass(frozen=True, slots=True)
class _Overdue:
    approval_id: str


class ApprovalsActor(BaseActor):
    """Owns: the open approval requests and their deadlines.
    Receives: RequestApproval, DropApproval, and the answers.
    Sends: each request's outcome, once; ``unavailable`` if the answerer raises, or if it ends itself.
    Waits for: nothing.
    Dies when: a message is malformed (a fault of ours).
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
                if self._close(approval_id) is not None:
                    self._withdraw(approval_id, "cancelled")
            case _Overdue(approval_id=approval_id):
                self._give_up(approval_id)
            case _Given(approval_id=approval_id, outcome=outcome):
                request = self._close(approval_id)
                if request is not None:
                    known = outcome in ("allowed-once", "rejected", "cancelled")
                    request.reply(outcome if known else "unavailable")
            case _:
                raise ProtocolError(f"{self.name} cannot use a {type(message).__name__}")

    def stopped(self) -> None:
        """Nobody will answer what is open: say so, or the agents would wait for ever."""
        for approval_id in tuple(self._open):
            self._give_up(approval_id)

    def _give_up(self, approval_id: str) -> None:
        request = self._close(approval_id)
        if request is not None:
            request.reply("unavailable")
            self._withdraw(approval_id, "unavailable")

    def _request(self, request: p.RequestApproval) -> None:
        if self._answerer is None:
            request.reply("unavailable")
            return

        def give(outcome: p.Outcome) -> None:
            self.ref.tell(_Given(request.approval_id, outcome))

        overdue = _Overdue(request.approval_id)
        self._open[request.approval_id] = (request, after(self._timeout_s, lambda: self.ref.tell(overdue)))
        try:
            self._answerer.ask(request, give)
        except BaseException as error:  # whoever answers is foreign code
            let_exits_pass(error)
            LOGGER.exception("an approval could not be asked for")
            give("unavailable")

    def _withdraw(self, approval_id: str, outcome: p.Outcome) -> None:
        if self._answerer is None:
            return
        try:
            self._answerer.withdraw(approval_id, outcome)
        except BaseException as error:  # whoever answers is foreign code
            let_exits_pass(error)
            LOGGER.exception("an approval could not be withdrawn")

    def _close(self, approval_id: str) -> p.RequestApproval | None:
        request, timer = self._open.pop(approval_id, (None, None))
        if timer is not None:
            timer.cancel()
        return request
