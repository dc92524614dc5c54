"""What is told about a sub-agent: to the model that asked for it, to its parent, and in the parent's log."""

from __future__ import annotations

import json
import secrets

from dsh_actors.core.children import ChildUse
from dsh_actors.core.messages import Message, OpaqueSource, PluginSource, user_message
from dsh_actors.core.outcome import RunEnd
from dsh_actors.core.pricing import Tokens
from dsh_actors.core.text import JsonObject, bound_text, clean_text
from dsh_actors.ports import ToolOutput

__all__ = ["ended_fact", "interrupted_notice", "notice", "relayed", "report_of", "resumption", "tool_answer"]


def _message(text: str, source: JsonObject) -> Message:
    return user_message(f"msg-{secrets.token_hex(12)}", clean_text(text), OpaqueSource(source))


def tool_answer(child: str, end: RunEnd) -> ToolOutput:
    """The result of a call that waited for a sub-agent."""
    meta: JsonObject = {"agent": child, "reason": end.reason}
    if end.completed:
        return ToolOutput(_answer(end) or "", meta=meta)
    text = f"Error: the agent did not finish: {end.message}"
    if end.answer:
        text += f"\nWhat it said so far:\n{end.answer}"
    return ToolOutput(text, is_error=True, code=f"SUBAGENT_{end.reason.upper()}", meta=meta)


def _answer(end: RunEnd) -> str | None:
    """What was said last, or the value that it was to be, without anything around it."""
    if end.structured is None:
        return end.answer
    return json.dumps(end.structured, ensure_ascii=False)


def notice(child: str, label: str, end: RunEnd, limit_bytes: int) -> Message:
    """What tells a parent that a sub-agent behind it has come to rest."""
    if end.completed:
        summary, lead = "done", f"Agent {child} ({label}) is done. Its answer:\n"
    else:
        summary = end.message
        lead = f"Agent {child} ({label}) did not finish: {end.message}. Its last words:\n"
    answer = _answer(end)
    if answer:
        text = lead + bound_text(answer, limit_bytes)
    else:
        text = lead.rpartition(". ")[0] + ". It said nothing."
    source: JsonObject = {"kind": "subagent-settled", "form": "notice", "summary": clean_text(summary)}
    return _message(text, source | {"senderSessionId": child})


def interrupted_notice(child: str, label: str, *, may_go_on: bool = True) -> Message:
    """What tells a resumed parent of a sub-agent that the end of the process interrupted."""
    text = f"Agent {child} ({label}) was interrupted together with you, and is not at work any more. "
    text += "agent_send lets it go on from where it was." if may_go_on else "It cannot go on."
    source: JsonObject = {"kind": "subagent-settled", "form": "notice", "summary": "interrupted"}
    return _message(text, source | {"senderSessionId": child})


def relayed(parent: str, text: str) -> Message:
    """What a parent says to its sub-agent."""
    return _message(text, {"kind": "coordinator", "form": "relay", "senderSessionId": parent})


def report_of(child: str, label: str, text: str) -> Message:
    """What a sub-agent tells its parent in the middle of its work."""
    source = {"kind": "subagent-report", "form": "relay", "senderSessionId": child}
    return _message(f"Agent {child} ({label}) reports:\n{text}", source)


def resumption() -> Message:
    """What sets an agent to work again whose turn a fault ended."""
    text = "A fault of the harness ended your last turn. What it had logged is above; go on with your task."
    source = PluginSource("subagents", "notice", {"summary": "the turn was interrupted"})
    return user_message(f"msg-{secrets.token_hex(12)}", text, source)


def ended_fact(child: str, mode: str, end: RunEnd, currency: str | None) -> JsonObject:
    """The data of ``subagent/ended``."""
    tokens = Tokens(**end.usage["own"])
    tokens.sum(Tokens(**end.usage["children"]))
    # Nothing asked for is nothing to pay, whatever the price.
    cost = end.cost if any(end.usage["own"].values()) or end.cost is not None else 0.0
    denied = tuple({"agent": child, **each} for each in end.denied)
    data: JsonObject = {"id": child, "mode": mode, "reason": end.reason, "message": clean_text(end.message)}
    if end.limit is not None:
        data["limit"] = end.limit
    return data | ChildUse(tokens, cost, currency, denied, end.tool_errors).to_json()
