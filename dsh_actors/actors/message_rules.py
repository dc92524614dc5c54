"""Who may send which message to whom, and how: asks go down the ranks only, everything else is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from dsh_actors.actors import protocol as p
from dsh_actors.core import turn_io

__all__ = ["RANKS", "RULES", "Rule"]


class Rule(NamedTuple):
    """``how``: "ask" waits for the reply (down the ranks only), "tell" does not."""

    sender: str
    receiver: str
    how: Literal["ask", "tell"]


RANKS: Mapping[str, int] = {
    "harness": 5,
    "supervisor": 4,
    "agent": 3,
    "approvals": 2,
    "tool_pool": 2,
    "model_gateway": 2,
    "session_store": 1,
    **dict.fromkeys(("projector", "telemetry_sink"), 1),
}
"""Who stands above whom. Every ask goes to a lower rank."""

_ASKED = Rule("harness", "agent", "ask")

RULES: Mapping[type, tuple[Rule, ...]] = {
    p.CreateAgent: (Rule("harness", "supervisor", "ask"),),
    p.ResumeAgent: (Rule("harness", "supervisor", "ask"),),
    p.ForkAgent: (Rule("harness", "supervisor", "ask"),),
    p.DisposeAgent: (Rule("harness", "supervisor", "ask"),),
    p.GetAgents: (Rule("harness", "supervisor", "ask"),),
    p.AwaitAgent: (Rule("harness", "supervisor", "ask"),),
    p.Shutdown: (Rule("harness", "supervisor", "ask"),),
    p.WhenIdle: (Rule("harness", "agent", "ask"), Rule("supervisor", "agent", "ask")),
    p.GetStatus: (Rule("harness", "agent", "ask"),),
    p.GetSnapshot: (Rule("harness", "agent", "ask"), Rule("supervisor", "agent", "ask")),
    turn_io.Deliver: (_ASKED, Rule("harness", "agent", "tell")),
    turn_io.Wake: (Rule("supervisor", "agent", "tell"), _ASKED),
    turn_io.EditInbox: (Rule("harness", "agent", "ask"),),
    turn_io.ClearInbox: (Rule("harness", "agent", "ask"),),
    turn_io.Cancel: (Rule("harness", "agent", "ask"), Rule("supervisor", "agent", "tell")),
    turn_io.Record: (Rule("harness", "agent", "ask"), Rule("harness", "agent", "tell")),
    turn_io.TitleWritten: (Rule("model_gateway", "agent", "tell"),),
    turn_io.StorageBroken: (Rule("session_store", "agent", "tell"),),
    turn_io.Flushed: (Rule("session_store", "agent", "tell"),),
    turn_io.Chunks: (Rule("model_gateway", "agent", "tell"),),
    turn_io.ToolRan: (Rule("tool_pool", "agent", "tell"),),
    p.ApprovalAnswered: (Rule("approvals", "agent", "tell"),),
    p.ReserveSession: (Rule("supervisor", "session_store", "ask"),),
    p.OpenSession: (Rule("supervisor", "session_store", "ask"),),
    p.ForkSession: (Rule("supervisor", "session_store", "ask"),),
    p.InspectSession: (Rule("harness", "session_store", "ask"),),
    p.LoadSession: (Rule("harness", "session_store", "ask"),),
    p.PrepareSession: (Rule("harness", "session_store", "ask"),),
    p.ReleaseSession: (Rule("harness", "session_store", "ask"),),
    p.SaveCheckpoint: (Rule("agent", "session_store", "tell"),),
    p.RecoverSession: (Rule("supervisor", "session_store", "ask"),),
    p.CloseSession: (Rule("supervisor", "session_store", "ask"),),
    p.AppendEvents: (Rule("agent", "session_store", "tell"),),
    p.FlushSession: (Rule("agent", "session_store", "tell"), Rule("harness", "session_store", "tell")),
    p.SessionChanged: (Rule("agent", "projector", "tell"), Rule("supervisor", "projector", "tell")),
    p.SettleIndex: (Rule("harness", "projector", "ask"),),
    p.OpenModelStream: (Rule("agent", "model_gateway", "tell"),),
    p.AbortModelStream: (Rule("agent", "model_gateway", "tell"),),
    p.RunToolCall: (Rule("agent", "tool_pool", "tell"),),
    p.CancelToolCall: (Rule("agent", "tool_pool", "tell"),),
    p.RequestApproval: (Rule("agent", "approvals", "tell"),),
    p.DropApproval: (Rule("agent", "approvals", "tell"),),
    p.RecordEvents: (Rule("harness", "telemetry_sink", "tell"),),
    p.FlushTelemetry: (Rule("harness", "telemetry_sink", "ask"),),
}
