"""Streams of servers that put reasoning into the text, or members of their own into tool calls. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from dsh_actors.adapters.llm.chat_assistant import THINK_TAGS
from dsh_actors.adapters.llm.chat_stream import ChatStream
from dsh_actors.config.profiles import Profile
from dsh_actors.core.chunks import BlockEnd, Chunk, Finish
from dsh_actors.core.messages import ToolCallBlock
from dsh_actors.core.text import JsonObject, clean_json
from dsh_actors.errors import EventRefused

__all__ = ["ThinkSplitter", "VendorStream"]

_OPEN, _CLOSE = "<think>", "</think>"


class ThinkSplitter:
    """Parts text that begins with ``<think>…</think>``, in pieces of any size, tags cut anywhere.

    ``gap`` holds the blanks between the closing tag and the text.
    """

    def __init__(self) -> None:
        self.gap = ""
        self._state = "before"
        self._held = ""

    def feed(self, piece: str) -> tuple[str, str]:
        """The reasoning and the text that ``piece`` completes."""
        if self._state == "text":
            return "", piece
        text, self._held = self._held + piece, ""
        thought = ""
        if self._state == "before":
            start = text.lstrip()
            if len(start) < len(_OPEN) and _OPEN.startswith(start):
                self._held = text
                return "", ""
            if not start.startswith(_OPEN):
                self._state = "text"
                return "", text
            self._state, text = "thought", start[len(_OPEN) :]
        if self._state == "thought":
            thought, closed, rest = text.partition(_CLOSE)
            if not closed:
                kept = _tail_of_tag(thought)
                self._held = thought[len(thought) - kept :]
                return thought[: len(thought) - kept], ""
            self._state, text = "gap", rest
        shown = text.lstrip()
        self.gap += text[: len(text) - len(shown)]
        if shown:
            self._state = "text"
        return thought, shown

    def close(self) -> tuple[str, str]:
        """What is still held when the text ends."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "thought" else ("", held)


def _tail_of_tag(text: str) -> int:
    """How many characters at the end may be the beginning of the closing tag."""
    longest = min(len(text), len(_CLOSE) - 1)
    return next((n for n in range(longest, 0, -1) if _CLOSE.startswith(text[-n:])), 0)


class VendorStream(ChatStream):
    """A `ChatStream` with the switches ``think_tags`` and ``call_extras`` of a profile."""

    def __init__(
        self, profile: Profile, headers: Mapping[str, str], id_salt: Callable[[], str], secret: str | None
    ) -> None:
        super().__init__(headers, id_salt, secret, profile.errors)
        self._tags = ThinkSplitter() if profile.think_tags else None
        self._keeps_extras = profile.call_extras
        self._extras: list[JsonObject | None] = []

    def _delta(self, delta: dict[str, Any], out: list[Chunk]) -> None:
        content = delta.get("content")
        if self._tags is not None and content and isinstance(content, str):
            delta = self._parted(delta, *self._tags.feed(content))
        calls = delta.get("tool_calls")
        if self._keeps_extras and isinstance(calls, list):
            for call in calls:
                self._note_extra(call)
        super()._delta(delta, out)

    def _parted(self, delta: dict[str, Any], thought: str, text: str) -> dict[str, Any]:
        delta = {**delta, "content": text}
        if thought:
            key = self._reasoning_key = self._reasoning_key or THINK_TAGS
            delta[key] = (delta.get(key) or "") + thought
        return delta

    def _note_extra(self, call: Any) -> None:
        # These servers send each call whole, so the n-th element with a name is the n-th call.
        if isinstance(call, dict) and isinstance(call.get("function"), dict) and call["function"].get("name"):
            extra = call.get("extra_content")
            try:
                self._extras.append({"extra_content": clean_json(extra)} if isinstance(extra, dict) else None)
            except EventRefused:
                self.fail(self.failed("MALFORMED_RESPONSE", "the stream holds a call nested too deeply"))

    def close(self, was_cut: bool) -> list[Chunk]:
        out: list[Chunk] = []
        if self._tags is not None and self.failure is None:
            thought, text = self._tags.close()
            if thought or text:
                super()._delta(self._parted({}, thought, text), out)
        out += super().close(was_cut)
        return self._with_extras(out)

    def _with_extras(self, chunks: list[Chunk]) -> list[Chunk]:
        blocks = [chunk.block for chunk in chunks if isinstance(chunk, BlockEnd)]
        calls = sum(isinstance(block, ToolCallBlock) for block in blocks)
        finish = chunks[-1]
        if not isinstance(finish, Finish) or not any(self._extras) or calls != len(self._extras):
            return chunks
        extras = iter(self._extras)
        entries = [next(extras) if isinstance(block, ToolCallBlock) else None for block in blocks]
        state = {"response": {}, **(finish.replay_state or {}), "blocks": entries}
        return [*chunks[:-1], dataclasses.replace(finish, replay_state=state)]

    def _replay_state(self) -> JsonObject | None:
        state = super()._replay_state()
        if state is not None and self._tags is not None and self._tags.gap:
            state["response"]["thinkGap"] = self._tags.gap
        return state
