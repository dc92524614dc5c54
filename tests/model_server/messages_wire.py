"""The Messages wire of the scripted server: entries as its events, and what a strict server would refuse."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.model_server.entries import Entry, dumps, pieces_of

__all__ = ["deltas_of", "ending_of", "is_messages_body", "messages_faults"]

_STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

Event = dict[str, Any]


def is_messages_body(request: Any) -> bool:
    """Whether a request's body is one of this wire: it alone has a cache marker at its top."""
    return isinstance(request, dict) and "cache_control" in request


# --- answers ----------------------------------------------------------------------------------


def deltas_of(entry: Entry) -> list[Event]:
    """The events of an entry up to the end of its last block."""
    head = {"id": "msg_@@N@@", "type": "message", "role": "assistant", "model": "scripted", "content": []}
    usage = {**(_usage(entry) or {}), "output_tokens": 1}
    events: list[Event] = [{"type": "message_start", "message": {**head, "usage": usage}}]
    blocks: list[tuple[Event, list[Event]]] = []
    count = entry.get("pieces", 1)
    if entry.get("think"):
        signed = {"type": "signature_delta", "signature": entry.get("signature", "signed-@@N@@")}
        thoughts = [{"type": "thinking_delta", "thinking": p} for p in pieces_of(entry["think"], count)]
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, [*thoughts, signed]))
    text = entry.get("text", "")
    pieces = text if isinstance(text, list) else pieces_of(text, count)
    if pieces:
        texts = [{"type": "text_delta", "text": piece} for piece in pieces]
        blocks.append(({"type": "text", "text": ""}, texts))
    for index, call in enumerate(entry.get("calls", ())):
        identity = call.get("id", f"toolu_@@N@@_{index}")
        opening = {"type": "tool_use", "id": identity, "name": call["tool"], "input": {}}
        arguments = pieces_of(dumps(call["arguments"]), count)
        blocks.append((opening, [{"type": "input_json_delta", "partial_json": piece} for piece in arguments]))
    for index, (opening, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": opening})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    if entry.get("finish", "") is None:
        # What breaks off does so inside its last block.
        del events[-1]
    return events


def ending_of(entry: Entry) -> list[Event]:
    """The events after the last block."""
    finish = entry.get("finish", "tool_calls" if entry.get("calls") else "stop")
    events: list[Event] = []
    if finish is not None:
        usage = _usage(entry) or {}
        delta = {"stop_reason": _STOP_REASONS.get(finish, finish), "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": usage})
    if entry.get("done", True):
        events.append({"type": "message_stop"})
    return events


def _usage(entry: Entry) -> Event | None:
    """An entry's usage in this wire's words; its input does not include what came from the cache."""
    usage = entry.get("usage", {"prompt_tokens": 100, "completion_tokens": 10})
    if usage is None:
        return None
    details = usage.get("prompt_tokens_details") or {}
    cached = details.get("cached_tokens", usage.get("prompt_cache_hit_tokens", 0))
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens", 0),
    }


# --- requests ---------------------------------------------------------------------------------


def messages_faults(request: Any) -> list[str]:
    """What the vendor's documentation says is refused."""
    faults = [f"no {name}" for name in ("model", "max_tokens", "messages") if not request.get(name)]
    marks = json.dumps(request).count('"cache_control"')
    if marks > 4:
        faults.append(f"{marks} cache markers")
    role = "assistant"
    owed: list[str] = []
    used: set[str] = set()
    for place, message in enumerate(request.get("messages", ())):
        content = message.get("content")
        if message.get("role") not in ("user", "assistant"):
            faults.append(f"message {place}: the role {message.get('role')}")
        if message.get("role") == role and place:
            faults.append(f"message {place}: {role} twice in a row")
        role = message.get("role")
        if not isinstance(content, list) or not content:
            faults.append(f"message {place}: no content")
            continue
        answered = [b.get("tool_use_id") for b in content if b.get("type") == "tool_result"]
        if sorted(answered) != sorted(owed):
            faults.append(f"message {place}: results {answered} for the calls {owed}")
        owed = []
        for number, block in enumerate(content):
            faults += [f"message {place}.{number}: {f}" for f in _block_faults(block, role, content[:number])]
            if block.get("type") == "tool_use":
                owed.append(block["id"])
        faults += [f"message {place}: the id {i} again" for i in owed if i in used or owed.count(i) > 1]
        used.update(owed)
        if role == "assistant" and content[-1].get("type") in ("thinking", "redacted_thinking"):
            faults.append(f"message {place}: ends with thinking")
    if owed:
        faults.append(f"calls without a result at the end: {owed}")
    return faults


def _block_faults(block: Any, role: str, before: list[Any]) -> list[str]:
    match block:
        case {"type": "text", "text": str(text)}:
            return [] if text.strip() else ["blank text"]
        case {"type": "thinking", "thinking": str(), "signature": str(signature)}:
            return [] if signature and role == "assistant" else ["thinking without a signature"]
        case {"type": "redacted_thinking", "data": str()}:
            return []
        case {"type": "tool_use", "id": str(identity), "name": str(name), "input": dict()}:
            good = _ID.fullmatch(identity) and _ID.fullmatch(name)
            return [] if good else [f"the call {identity} of {name}"]
        case {"type": "tool_result", "tool_use_id": str(), "content": str() | list() as content}:
            late = any(other.get("type") != "tool_result" for other in before)
            return [] if content and not late else ["a result that is empty or comes too late"]
        case {"type": "image", "source": dict()}:
            return []
    return [f"an unknown block {str(block)[:80]}"]
