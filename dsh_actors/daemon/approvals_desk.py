"""The desk where questions of agents wait for a person, each until its deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from dsh_actors.actors import protocol as p
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import HarnessError
from dsh_actors.ports import Clock

__all__ = ["ApprovalNotFound", "ApprovalsDesk", "Question"]

Decision = Literal["allow", "deny"]
OnApproval = Callable[[str, str, JsonObject], None]


class ApprovalNotFound(HarnessError):
    """The question was answered, ran out or was withdrawn, or never was."""

    code = "APPROVAL_NOT_FOUND"


@dataclass(frozen=True, slots=True)
class Question:
    """One open question. ``deadline`` is ms since the epoch; it is answered with no then."""

    id: str
    agent: str
    tool: str
    arguments: JsonObject = field(hash=False)
    reason: str
    deadline: int

    def to_json(self) -> JsonObject:
        return {
            "id": self.id,
            "agent": self.agent,
            "tool": self.tool,
            "arguments": self.arguments,
            "reason": self.reason,
            "deadline": self.deadline,
        }


class ApprovalsDesk:
    """An `Answerer` of the approvals actor, which keeps the deadlines.

    ``announce(agent, name, data)`` hears ``approval.requested`` and ``approval.decided``; it must be quick.
    """

    def __init__(self, clock: Clock, timeout_s: float, announce: OnApproval) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._announce = announce
        self._open: dict[str, tuple[Question, Callable[[p.Outcome], None]]] = {}

    def ask(self, request: p.RequestApproval, answer: Callable[[p.Outcome], None]) -> None:
        """For the approvals actor: a question has come up."""
        question = Question(
            request.approval_id,
            request.owner,
            request.tool,
            request.arguments,
            request.reason,
            self._clock.now_ms() + int(self._timeout_s * 1000),
        )
        self._open[question.id] = (question, answer)
        self._announce(question.agent, "approval.requested", question.to_json())

    def withdraw(self, approval_id: str, outcome: p.Outcome) -> None:
        """For the approvals actor: nobody has answered in time, or nobody needs the answer any more."""
        found = self._open.pop(approval_id, None)
        if found is not None:
            self._decided(found[0], "expired" if outcome == "unavailable" else "withdrawn")

    def decide(self, approval_id: str, decision: Decision) -> JsonObject:
        """Answer a question, once. Raises `ApprovalNotFound`."""
        question, answer = self._open.pop(approval_id, (None, None))
        if question is None or answer is None:
            raise ApprovalNotFound(
                "there is no such question, or it is over", hint="GET /v1/approvals has those that are open"
            )
        answer("allowed-once" if decision == "allow" else "rejected")
        return self._decided(question, "allowed" if decision == "allow" else "denied")

    def open(self, agent: str | None = None) -> list[Question]:
        """What waits for an answer, oldest first; of one agent, or of all."""
        return [each for each, _ in self._open.values() if agent in (None, each.agent)]

    def _decided(self, question: Question, outcome: str) -> JsonObject:
        decided: JsonObject = {"id": question.id, "outcome": outcome}
        self._announce(question.agent, "approval.decided", {**decided, "agent": question.agent})
        return decided
