"""Turns the events of an Anthropic Messages stream into normalised chunks. Pure.

Follows the vendor's documentation of streaming messages: typed events, blocks keyed by index,
cumulative usage, and ``message_stop`` as the only end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from dsh_actors.adapters.llm.errors import ErrorBody, error_of_payload
from dsh_actors.adapters.llm.reply_stream import CONTEXT_FULL, ReplyStream
from dsh_actors.adapters.llm.tool_slots import Fragments
from dsh_actors.adapters.llm.usage import merged_usage
from dsh_actors.core.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    FinishKind,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from dsh_actors.core.ids import CallId
from dsh_actors.core.messages import Block, ReasoningBlock, TextBlock, ToolCallBlock
from dsh_actors.core.text import JsonObject, clean_text

__all__ = ["MessagesStream"]

PAUSE = "pause_turn"

_FINISHES: Mapping[str, FinishKind] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    PAUSE: "stop",
    "stop": "stop",
    "tool_use": "tool-calls",
    "max_tokens": "max-tokens",
    CONTEXT_FULL: "max-tokens",
}

_KINDS = {"text": "text", "thinking": "reasoning", "redacted_thinking": "reasoning", "tool_use": "tool-call"}

_KIND_OF_DELTA = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "thinking"}

_loads = json.JSONDecoder().decode


class _Slot:
    """One content block of the wire. ``index`` is ours, None until there is something to show."""

    __slots__ = ("call_id", "entry", "index", "input", "is_open", "kind", "name", "pieces", "shown_kind")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.shown_kind = _KINDS[kind]
        self.index: int | None = None
        self.is_open = True
        self.pieces = Fragments()
        self.call_id = ""
        self.name = ""
        self.input: Any = None
        self.entry: JsonObject | None = None  # what the next request needs to send the block back


class MessagesStream(ReplyStream):
    """One response. ``id_salt`` gives a text that no other response of the conversation has; it is
    asked only where a tool call came without an id.
    """

    finishes = _FINISHES

    def __init__(
        self, headers: Mapping[str, str], id_salt: Callable[[], str], secret: str | None = None
    ) -> None:
        super().__init__(headers, secret)
        self._id_salt = id_salt
        self._slots: dict[int, _Slot] = {}
        self._open = 0
        self._call_ids: set[str] = set()
        self._is_nameless = False
        self._explanation = ""

    @property
    def is_complete(self) -> bool:
        """A stop reason alone is not enough: a block may still be missing its end."""
        return self.reason is not None and self._open == 0

    @property
    def _has_calls(self) -> bool:
        return bool(self._call_ids)

    def feed(self, data: str, event: str, out: list[Chunk], is_tail: bool = False) -> None:
        if not data or self.is_over:
            return
        try:
            payload = _loads(data)
        except (ValueError, RecursionError):
            if not is_tail and not data.startswith("[DONE]"):
                self._fail_with(None, "the stream holds an event that is not JSON")
            return
        if type(payload) is not dict:
            self._fail_with(error_of_payload(payload), "the stream holds an event that is no object")
            return
        # "message" is also what an event without a name is called.
        kind = payload.get("type") or ("" if event == "message" else event)
        if kind != "ping":
            self.is_silent = False
        match kind:
            case "content_block_delta":
                self._delta(payload, out)
            case "content_block_start":
                self._start(payload, out)
            case "content_block_stop":
                slot = self._slots.get(_index(payload))
                if slot is not None and slot.is_open:
                    self._close_slot(slot, out)
            case "message_start":
                message = payload.get("message")
                if isinstance(message, dict):
                    self._note_usage(message.get("usage"))
            case "message_delta":
                self._note_usage(payload.get("usage"))
                self._note_reason(payload.get("delta"))
            case "message_stop":
                self.is_over = True
            case "ping":
                pass
            case "message":
                self._whole(payload, out)
            case _:
                self._other(kind, payload)

    def _whole(self, message: dict[str, Any], out: list[Chunk]) -> None:
        """A message that came in one piece."""
        self._note_usage(message.get("usage"))
        content = message.get("content")
        for index, block in enumerate(content if isinstance(content, list) else ()):
            self._start({"index": index, "content_block": block}, out)
        for slot in self._slots.values():
            if slot.is_open:
                self._close_slot(slot, out)
        self._note_reason(message)
        self.is_over = self.reason is not None

    def _other(self, kind: Any, payload: dict[str, Any]) -> None:
        """An error in one of its shapes, or an event that may be ignored."""
        is_error = kind == "error"
        # Without a type it may be the bare error object of something between us and the vendor.
        if is_error or payload.get("error") or "type" not in payload:
            error = error_of_payload(payload) or (ErrorBody() if is_error else None)
            if error is not None:
                self.fail(self.failure_of(error))

    def _fail_with(self, error: ErrorBody | None, otherwise: str) -> None:
        self.is_silent = False
        self.fail(self.failed("MALFORMED_RESPONSE", otherwise) if error is None else self.failure_of(error))

    def _note_usage(self, raw: Any) -> None:
        self.usage = merged_usage(self.usage, raw)

    def _note_reason(self, delta: Any) -> None:
        if not isinstance(delta, dict):
            return
        reason, details = delta.get("stop_reason"), delta.get("stop_details")
        if reason and isinstance(reason, str):
            if self.reason is None:
                self.reason = reason
            elif self.reason != reason:
                self.warnings.add("finish_changed")
        if isinstance(details, dict):
            words = (details.get("category"), details.get("explanation"))
            self._explanation = ": ".join(word for word in words if word and isinstance(word, str))

    def _explain(self, reason: str) -> str:
        if reason == "refusal":
            return f"the model refused ({self._explanation})" if self._explanation else "the model refused"
        return super()._explain(reason)

    # --- blocks -------------------------------------------------------------------------------

    def _start(self, payload: dict[str, Any], out: list[Chunk]) -> None:
        block = payload.get("content_block")
        kind = _word(block.get("type")) if isinstance(block, dict) else ""
        if not isinstance(block, dict) or kind not in _KINDS:
            self.warnings.add("unknown_block")
            return
        key = _index(payload)
        if key in self._slots:
            self.warnings.add("index_reused")
            return
        slot = self._new_slot(key, kind)
        match kind:
            case "text":
                self._text(slot, block.get("text"), out)
            case "thinking":
                self._text(slot, block.get("thinking"), out)
                self._sign(slot, block.get("signature"), out)
            case "redacted_thinking":
                slot.entry = {"redacted": _word(block.get("data"))}
                self._show(slot, out)
            case "tool_use":
                self._open_call(slot, block, out)

    def _new_slot(self, key: int, kind: str) -> _Slot:
        slot = self._slots[key] = _Slot(kind)
        self._open += 1
        return slot

    def _open_call(self, slot: _Slot, block: dict[str, Any], out: list[Chunk]) -> None:
        slot.name, slot.input = _word(block.get("name")), block.get("input")
        index = self._show(slot, out)
        call_id = unique = _word(block.get("id")) or f"toolu_{self._id_salt()}_{index}"
        number = 2
        while unique in self._call_ids:
            unique, number = f"{call_id}_{number}", number + 1
        self._call_ids.add(unique)
        slot.call_id = unique
        self._is_nameless |= not slot.name
        out.append(ToolCallDelta(index, CallId(unique), slot.name or None, ""))

    def _delta(self, payload: dict[str, Any], out: list[Chunk]) -> None:
        delta = payload.get("delta")
        if not isinstance(delta, dict):
            return
        kind = _word(delta.get("type"))
        slot = self._slots.get(_index(payload))
        if slot is None:
            begun = _KIND_OF_DELTA.get(kind)
            if begun is None:
                # A block of a kind that is not known, whose start was passed over.
                self.warnings.add("unknown_block")
                return
            slot = self._new_slot(_index(payload), begun)
        if not slot.is_open:
            self.warnings.add("delta_after_stop")
        elif kind == "text_delta" and slot.kind == "text":
            self._text(slot, delta.get("text"), out)
        elif kind == "input_json_delta" and slot.kind == "tool_use":
            shown = slot.pieces.add(_fragment(delta.get("partial_json")))
            if shown and slot.index is not None:
                out.append(ToolCallDelta(slot.index, CallId(slot.call_id), None, shown))
        elif kind == "thinking_delta" and slot.kind == "thinking":
            self._text(slot, delta.get("thinking"), out)
        elif kind == "signature_delta" and slot.kind == "thinking":
            self._sign(slot, delta.get("signature"), out)
        elif kind != "citations_delta":
            self.warnings.add("unknown_delta")

    def _text(self, slot: _Slot, text: Any, out: list[Chunk]) -> None:
        shown = slot.pieces.add(_fragment(text))
        if shown:
            out.append(_delta_of(slot, self._show(slot, out), shown))

    def _sign(self, slot: _Slot, signature: Any, out: list[Chunk]) -> None:
        if signature and isinstance(signature, str):
            slot.entry = {"signature": clean_text(signature)}
            # Thinking that is not shown still has to be sent back.
            self._show(slot, out)

    def _show(self, slot: _Slot, out: list[Chunk]) -> int:
        if slot.index is None:
            slot.index = self._open_block()
            out.append(BlockStart(slot.index, slot.shown_kind))
        return slot.index

    def _close_slot(self, slot: _Slot, out: list[Chunk]) -> None:
        slot.is_open = False
        self._open -= 1
        rest = slot.pieces.close()
        if rest and slot.kind != "tool_use":
            out.append(_delta_of(slot, self._show(slot, out), rest))
        if slot.index is not None:
            out.append(BlockEnd(slot.index, _block_of(slot)))

    # --- the end ------------------------------------------------------------------------------

    def _success(self, kind: FinishKind) -> list[Chunk]:
        if self._is_nameless and kind == "tool-calls":
            return self._error("MALFORMED_RESPONSE", "the model called a tool without naming it")
        out: list[Chunk] = []
        for slot in self._slots.values():
            if slot.is_open:
                self.warnings.add("block_without_end")
                self._close_slot(slot, out)
        return out + self.end_with(Finish(kind, None, self._replay_state(), self.reason == PAUSE))

    def _replay_state(self) -> JsonObject | None:
        """Signatures and redacted thinking, one entry a block that was shown, in their order."""
        shown = {slot.index: slot.entry for slot in self._slots.values() if slot.index is not None}
        entries = [shown[index] for index in sorted(shown)]
        return {"blocks": entries} if any(entries) else None


def _delta_of(slot: _Slot, index: int, text: str) -> Chunk:
    return TextDelta(index, text) if slot.kind == "text" else ReasoningDelta(index, text)


def _block_of(slot: _Slot) -> Block:
    text = slot.pieces.text()
    if slot.kind == "text":
        return TextBlock(text)
    if slot.kind != "tool_use":
        return ReasoningBlock(text)
    if not text.strip():
        # Where no fragment came, the whole input may stand in the block's start.
        whole = slot.input if slot.input and isinstance(slot.input, dict) else {}
        text = clean_text(json.dumps(whole, ensure_ascii=False, separators=(",", ":")))
    return ToolCallBlock(CallId(slot.call_id), slot.name, text)


def _index(payload: dict[str, Any]) -> int:
    value = payload.get("index")
    return value if isinstance(value, int) else 0


def _fragment(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _word(value: Any) -> str:
    return clean_text(value) if isinstance(value, str) else ""
