"""The gate before a tool: the approval policy, the guards, and the question where a policy says ask."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.tool_pool import denied
from dsh_actors.core import turn_io as io
from dsh_actors.core.ids import SessionId, Ticket
from dsh_actors.core.policy import ApprovalPolicy, Decision, decide
from dsh_actors.core.scope import Scope
from dsh_actors.core.text import require_lossless
from dsh_actors.ports import Tool

__all__ = ["ToolGate"]


@dataclass(eq=False, slots=True)
class ToolGate:
    """One agent's. A decision may only become stricter: guards deny or abstain, nobody overrules a denial."""

    session_id: SessionId
    policy: ApprovalPolicy
    cwd: str
    scope: Scope
    locate: Callable[[str], str]
    """Where a path argument leads, as the file tools understand it."""
    ask: Callable[[p.RequestApproval | p.DropApproval], None]
    _open: dict[Ticket, tuple[int, str, str, Decision]] = field(default_factory=dict)

    @property
    def is_quick(self) -> bool:
        """Whether `decide` may run in the agent: it asks neither the disk nor a guard (foreign code)."""
        return not self._needs_disk and not self.scope.guards_of()

    @property
    def _needs_disk(self) -> bool:
        return self.policy.mode == "rules"

    def decide(self, call: io.Call, tool: Tool | None) -> Decision:
        """What policy and guards say. A tool that does not exist is let through: the pool says so."""
        if tool is None or call.problem is not None:
            return Decision("allow", "unknown")
        spec = tool.spec
        path = call.arguments.get(spec.path_argument) if spec.path_argument else None
        real = self.locate(path) if isinstance(path, str) and self._needs_disk else None
        decision = decide(
            self.policy,
            call.name,
            spec.changes,
            call.arguments,
            path if isinstance(path, str) else None,
            self.cwd,
            real,
        )
        if decision.kind != "deny":
            for guard in self.scope.guards_of():
                reason = guard(call)
                if reason is not None:
                    return Decision("deny", "guard", str(reason))
        return decision

    def settle(self, ticket: Ticket, index: int, call: io.Call, decision: Any, reply: Any) -> list[io.Input]:
        """The machine's inputs for a decision; for ``ask`` the answer comes later through `answered`.

        Raises `EventRefused` for a decision whose words the log cannot hold.
        """
        if isinstance(decision, Decision):
            require_lossless([decision.rule, decision.reason, decision.hint], "a decision")
        match decision:
            case Decision(kind="allow"):
                return [io.ToolPrepared(ticket, index)]
            case Decision(kind="ask"):
                return [self._ask(ticket, index, call, decision, reply)]
            case Decision():
                refusal = denied(call.name, decision.rule, decision.reason, decision.hint)
                return [io.ToolPrepared(ticket, index, refusal)]
        refusal = denied(call.name, "pre-execute", f"{call.name} was refused without a valid decision", None)
        return [io.ToolPrepared(ticket, index, refusal)]

    def _ask(self, ticket: Ticket, index: int, call: io.Call, decision: Decision, reply: Any) -> io.Input:
        # Tickets and call ids come again after a restart; an answer must never reach a later question.
        approval_id = f"approval-{self.session_id}-{call.id}-{secrets.token_hex(6)}"
        self._open[ticket] = (index, approval_id, call.name, decision)
        self.ask(
            p.RequestApproval(
                self.session_id,
                approval_id,
                call.name,
                call.arguments,
                decision.reason,
                lambda outcome: reply(p.ApprovalAnswered(ticket, index, approval_id, outcome)),
            )
        )
        data = {"id": approval_id, "toolName": call.name, "callId": call.id, "reason": decision.reason}
        return io.Record("approval/asked", data)

    def answered(self, message: p.ApprovalAnswered) -> list[io.Input]:
        """Record the answer and let the call go on or be refused. A late answer is dropped."""
        entry = self._open.pop(message.ticket, None)
        if entry is None:
            return []
        index, approval_id, tool, decision = entry
        record = io.Record("approval/decided", {"id": approval_id, "outcome": message.outcome})
        if message.outcome == "allowed-once":
            return [record, io.ToolPrepared(message.ticket, index)]
        why = {
            "rejected": "and was rejected",
            "cancelled": "and the question was withdrawn",
        }.get(message.outcome, "and nobody is there to give it")
        refusal = denied(tool, decision.rule, f"{decision.reason}; it needs approval, {why}", decision.hint)
        return [record, io.ToolPrepared(message.ticket, index, refusal)]

    def drop(self, ticket: Ticket) -> list[io.Input]:
        """The call is not wanted any more: withdraw its question."""
        entry = self._open.pop(ticket, None)
        if entry is None:
            return []
        self.ask(p.DropApproval(entry[1]))
        return [io.Record("approval/decided", {"id": entry[1], "outcome": "cancelled"})]

    def close(self) -> None:
        """The agent is gone: withdraw all its questions."""
        while self._open:
            _, (_, approval_id, _, _) = self._open.popitem()
            self.ask(p.DropApproval(approval_id))
