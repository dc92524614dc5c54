"""Turns the events of a chat-completions stream into normalised chunks. Pure.

Tolerates what compatible servers are known to do; what cannot be tolerated is a `Finish` with a
failure. Block ends, usage and finish come last, when the end of the stream is known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from dsh_actors.adapters.llm.errors import ErrorBody, error_of_payload
from dsh_actors.adapters.llm.reply_stream import CONTEXT_FULL, ReplyStream
from dsh_actors.adapters.llm.tool_slots import Fragments, ToolSlots
from dsh_actors.adapters.llm.usage import usage_of
from dsh_actors.core.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishKind,
    ReasoningDelta,
    TextDelta,
)
from dsh_actors.core.messages import Block, ReasoningBlock, TextBlock
from dsh_actors.core.text import JsonObject, clean_json
from dsh_actors.errors import EventRefused

__all__ = ["REASONING_KEYS", "ChatStream"]

REASONING_KEYS = ("reasoning_content", "reasoning", "reasoning_text")
"""Where servers put the model's reasoning. The first that is filled counts for the whole message."""

DETAILS_KEY = "reasoning_details"

_FINISHES: Mapping[str, FinishKind] = {
    "stop": "stop",
    "eos": "stop",
    "end": "stop",
    "end_turn": "stop",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "tool_use": "tool-calls",
    "length": "max-tokens",
    "max_tokens": "max-tokens",
    "model_length": "max-tokens",
    CONTEXT_FULL: "max-tokens",
}

_loads = json.JSONDecoder().decode
_scan: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


class ChatStream(ReplyStream):
    """One response. ``id_salt`` gives a text that no other response of the conversation has; it is
    asked only where a tool call came without an id.
    """

    finishes = _FINISHES

    def __init__(
        self,
        headers: Mapping[str, str],
        id_salt: Callable[[], str],
        secret: str | None = None,
        meanings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers, secret, meanings)
        self._salt: str | None = None
        self._id_salt = id_salt
        self._text: tuple[int, Fragments] | None = None
        self._reasoning: tuple[int, Fragments] | None = None
        self._reasoning_key: str | None = None
        self._details: list[Any] = []
        self._tools = ToolSlots(self._open_block, self._new_id, self.warnings)

    def feed(self, data: str, event: str, out: list[Chunk], is_tail: bool = False) -> None:
        if not data or self.is_over:
            return
        self.is_silent = False
        if data.startswith("[DONE]"):
            self.is_over = True
            return
        try:
            payload = _parsed(data)
        except (ValueError, RecursionError):
            if not is_tail:
                self.fail(self.failed("MALFORMED_RESPONSE", "the stream holds an event that is not JSON"))
            return
        is_error = event == "error"
        if is_error or type(payload) is not dict or "error" in payload or "choices" not in payload:
            error = error_of_payload(payload) or (ErrorBody() if is_error else None)
            if error is not None:
                self.fail(self.failure_of(error))
                return
            if not isinstance(payload, dict):
                self.fail(self.failed("MALFORMED_RESPONSE", "the stream holds an event that is no object"))
                return
        usage = payload.get("usage")
        if usage:
            self._note_usage(usage)
        choices = payload.get("choices")
        if choices and type(choices) is list:
            for choice in choices:
                self._choice(choice, out)
        elif "base_resp" in payload:
            refused = error_of_payload(payload)
            if refused is not None:
                self.fail(self.failure_of(refused))
                return
        groq = payload.get("x_groq")
        if groq and isinstance(groq, dict):
            self._note_usage(groq.get("usage"))

    def _choice(self, choice: Any, out: list[Chunk]) -> None:
        if not isinstance(choice, dict):
            self.warnings.add("null_choice")
            return
        if choice.get("index"):
            self.warnings.add("extra_choice")
            return
        delta = choice.get("delta")
        if delta is None:
            delta = choice.get("message")
        if isinstance(delta, dict):
            self._delta(delta, out)
        reason = choice.get("finish_reason")
        if reason and isinstance(reason, str):
            if self.reason is None:
                self.reason = reason
            elif self.reason != reason:
                self.warnings.add("finish_changed")
        if "usage" in choice:
            self._note_usage(choice["usage"])

    def _delta(self, delta: dict[str, Any], out: list[Chunk]) -> None:
        said = _only_one(delta)
        if said is not None and self._go_on(said, delta[said], out):
            return
        thought = self._thought(delta)
        if thought:
            self._reasoning = self._append(self._reasoning, "reasoning", ReasoningDelta, thought, out)
        content = delta.get("content")
        if content is not None and not isinstance(content, str):
            content = _joined_parts(content)
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            self.warnings.add("refusal")
            content = (content or "") + refusal
        if content:
            self._text = self._append(self._text, "text", TextDelta, content, out)
        calls = delta.get("tool_calls")
        if calls and isinstance(calls, list):
            for call in calls:
                self._tools.feed(call, out)
        elif delta.get("function_call"):
            self._tools.feed({"index": 0, "function": delta["function_call"]}, out)

    def _go_on(self, name: str, value: Any, out: list[Chunk]) -> bool:
        """Take the usual delta: more of one thing that it is known how to take."""
        if name == "content" and type(value) is str:
            self._text = self._append(self._text, "text", TextDelta, value, out)
        elif name == self._reasoning_key and type(value) is str:
            self._reasoning = self._append(self._reasoning, "reasoning", ReasoningDelta, value, out)
        elif name == "tool_calls" and type(value) is list:
            for call in value:
                self._tools.feed(call, out)
        else:
            return False
        return True

    def _thought(self, delta: dict[str, Any]) -> str:
        details = delta.get(DETAILS_KEY)
        if details and isinstance(details, list):
            try:
                self._details.extend(clean_json(details))
            except EventRefused:
                self.fail(self.failed("MALFORMED_RESPONSE", "the stream holds details nested too deeply"))
                return ""
        key = self._reasoning_key
        if key is None:
            for key in REASONING_KEYS:
                if delta.get(key):
                    break
            else:
                key = DETAILS_KEY
            value = delta.get(key)
            if not value:
                return ""
            self._reasoning_key = key
        else:
            value = delta.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return "".join(_detail_text(item) for item in value)
        return ""

    def _append(
        self,
        block: tuple[int, Fragments] | None,
        kind: str,
        delta: type[TextDelta] | type[ReasoningDelta],
        text: str,
        out: list[Chunk],
    ) -> tuple[int, Fragments]:
        if block is None:
            block = (self._open_block(), Fragments())
            out.append(BlockStart(block[0], kind))
        shown = block[1].add(text)
        if shown:
            out.append(delta(block[0], shown))
        return block

    def _new_id(self, number: int) -> str:
        if self._salt is None:
            self._salt = self._id_salt()
        return f"call_{self._salt}_{number}"

    def _note_usage(self, usage: Any) -> None:
        found = usage_of(usage, self.warnings)
        if found is not None:
            self.usage = found

    @property
    def _has_calls(self) -> bool:
        return bool(self._tools)

    def _success(self, kind: FinishKind) -> list[Chunk]:
        out: list[Chunk] = []
        calls, nameless = self._tools.close()
        if nameless and kind == "tool-calls":
            return self._error("MALFORMED_RESPONSE", "the model called a tool without naming it")
        blocks: dict[int, Block] = dict(calls)
        if self._reasoning is not None:
            index, pieces = self._reasoning
            rest = pieces.close()
            if rest:
                out.append(ReasoningDelta(index, rest))
            blocks[index] = ReasoningBlock(pieces.text())
        if self._text is not None:
            index, pieces = self._text
            rest = pieces.close()
            if rest:
                out.append(TextDelta(index, rest))
            blocks[index] = TextBlock(pieces.text())
        out.extend(BlockEnd(index, blocks[index]) for index in sorted(blocks))
        return out + self.end_with(Finish(kind, None, self._replay_state()))

    def _replay_state(self) -> JsonObject | None:
        """What the next request has to know to send the reasoning back under its own name."""
        response: JsonObject = {}
        if self._reasoning_key not in (None, REASONING_KEYS[0]):
            response["reasoningKey"] = self._reasoning_key
        if self._details:
            response[DETAILS_KEY] = self._details
        return {"response": response} if response else None


def _parsed(data: str) -> Any:
    """As `json.loads`, which spends half its time on blanks around the text."""
    try:
        value, end = _scan(data, 0)
    except StopIteration:
        return _loads(data)
    return value if end == len(data) else _loads(data)


def _only_one(delta: dict[str, Any]) -> str | None:
    """The one key of a delta, besides the role, whose value is not empty; None where there is no such one."""
    found = None
    for name, value in delta.items():
        if value and name != "role":
            if found is not None:
                return None
            found = name
    return found


def _joined_parts(parts: Any) -> str:
    if not isinstance(parts, list):
        return ""
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "".join(text for text in texts if isinstance(text, str))


def _detail_text(item: Any) -> str:
    if not isinstance(item, dict):
        return ""
    text = item.get("text") or item.get("summary")
    return text if isinstance(text, str) else ""
