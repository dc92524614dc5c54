"""The three adapters side by side: how each is built, and the same replies written on each one's wire."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dsh_actors.adapters.llm.http_provider import HttpProvider
from dsh_actors.adapters.llm.registry import build_provider
from tests.adapters.llm.llm_kit import DONE, MemoryTransport, config, delta

Part = tuple[str, ...]
"""``("text", …pieces)``, ``("think", …pieces)`` or ``("call", id, name, …pieces)``."""


@dataclass(frozen=True)
class Wire:
    """``begin`` writes parts, the last one open; ``finish`` their end for "stop", "tool-calls" or
    "max-tokens" and a usage of 10 fresh, 90 cached and 5 written tokens; ``error`` an error object
    inside a stream.
    """

    name: str
    model: str
    begin: Callable[[Sequence[Part]], bytes]
    finish: Callable[[Sequence[Part], str], bytes]
    error: Callable[[str, str], bytes]
    path: str

    def build(self, transport: MemoryTransport | None = None, **changes: Any) -> HttpProvider:
        provider = build_provider(config(**{"type": self.name, **changes}))
        assert isinstance(provider, HttpProvider)
        if transport is not None:
            provider._shared_transport = transport
        return provider

    def reply(self, *parts: Part, finish: str = "stop") -> bytes:
        return self.begin(parts) + self.finish(parts, finish)


def _chat_begin(parts: Sequence[Part]) -> bytes:
    out, calls = b"", 0
    for kind, *rest in parts:
        if kind == "call":
            call_id, name, *pieces = rest
            opening = {"index": calls, "id": call_id, "function": {"name": name, "arguments": ""}}
            out += delta(tool_calls=[opening])
            out += b"".join(
                delta(tool_calls=[{"index": calls, "function": {"arguments": piece}}]) for piece in pieces
            )
            calls += 1
        else:
            key = "content" if kind == "text" else "reasoning_content"
            out += b"".join(delta(**{key: piece}) for piece in rest)
    return out


_CHAT_FINISHES = {"stop": "stop", "tool-calls": "tool_calls", "max-tokens": "length"}


def _chat_finish(parts: Sequence[Part], kind: str) -> bytes:
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": _CHAT_FINISHES[kind]}]}
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 90},
    }
    return _data(end) + _data({"choices": [], "usage": usage}) + DONE


def _chat_error(kind: str, message: str) -> bytes:
    return _data({"error": {"type": kind, "message": message}}) + DONE


def _data(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def event(kind: str, **members: object) -> bytes:
    """One event of the Messages wire."""
    return f"event: {kind}\n".encode() + _data({"type": kind, **members})


def started(**usage: int) -> bytes:
    counts = usage or {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 1}
    return event("message_start", message={"id": "m", "role": "assistant", "content": [], "usage": counts})


def block(index: int, content: dict[str, object], *deltas: dict[str, object], stop: bool = True) -> bytes:
    """One content block of the Messages wire, with its deltas."""
    out = event("content_block_start", index=index, content_block=content)
    out += b"".join(event("content_block_delta", index=index, delta=one) for one in deltas)
    return out + event("content_block_stop", index=index) if stop else out


def stopped(reason: str | None = "end_turn", **delta_members: object) -> bytes:
    """The end of a message of the Messages wire."""
    out = b""
    if reason is not None:
        members = {"stop_reason": reason, **delta_members}
        out = event("message_delta", delta=members, usage={"output_tokens": 5})
    return out + event("message_stop")


def text_block(index: int, *pieces: str, stop: bool = True) -> bytes:
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block(index, {"type": "text", "text": ""}, *deltas, stop=stop)


def thinking_block(index: int, *pieces: str, signature: str | None = "c2ln") -> bytes:
    deltas: list[dict[str, object]] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    if signature is not None:
        deltas.append({"type": "signature_delta", "signature": signature})
    return block(index, {"type": "thinking", "thinking": "", "signature": ""}, *deltas)


def tool_block(index: int, call_id: object, name: object, *pieces: str, stop: bool = True) -> bytes:
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    opening = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return block(index, opening, *deltas, stop=stop)


def _messages_begin(parts: Sequence[Part]) -> bytes:
    out = started()
    for index, (kind, *rest) in enumerate(parts):
        match kind:
            case "text":
                out += text_block(index, *rest, stop=False)
            case "think":
                out += thinking_block(index, *rest)
            case "call":
                out += tool_block(index, *rest, stop=False)
        if index < len(parts) - 1 and kind != "think":
            out += event("content_block_stop", index=index)
    return out


_MESSAGES_FINISHES = {"stop": "end_turn", "tool-calls": "tool_use", "max-tokens": "max_tokens"}


def _messages_finish(parts: Sequence[Part], kind: str) -> bytes:
    is_open = parts and parts[-1][0] != "think"
    last = event("content_block_stop", index=len(parts) - 1) if is_open else b""
    return last + stopped(_MESSAGES_FINISHES[kind])


def _messages_error(kind: str, message: str) -> bytes:
    return event("error", error={"type": kind, "message": message})


_CHAT = (_chat_begin, _chat_finish, _chat_error, "/chat/completions")

WIRES = (
    Wire("openai_compatible", "any", *_CHAT),
    Wire("deepseek", "deepseek-flash", *_CHAT),
    Wire("anthropic", "claude-x", _messages_begin, _messages_finish, _messages_error, "/messages"),
)
BY_NAME = {wire.name: wire for wire in WIRES}
