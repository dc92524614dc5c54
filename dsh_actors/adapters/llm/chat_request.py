"""Request bodies of the chat-completions wire, built from cached fragments. Pure.

``messages`` is the last member of the body, so a request that only adds messages to the previous
one is, byte for byte, the previous body without its closing ``]}`` and with more after it. Servers
bill such a shared prefix at a fraction of the price.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dsh_actors.adapters.llm.chat_images import ChatImages
from dsh_actors.adapters.llm.images import ImageReader
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.messages import (
    Message,
    ModelSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from dsh_actors.core.request import ModelRequest, RequestHeader
from dsh_actors.core.text import JsonObject, clean_text
from dsh_actors.errors import AttachmentError

__all__ = ["ChatEncoder", "wire_arguments", "wire_messages"]

NO_OUTPUT = "(no output)"
"""Stands for an empty tool result, which some servers refuse."""

ERROR_PREFIX = "Error: "


class ChatEncoder:
    """Encodes the requests of one conversation with one provider.

    ``parameters`` gives the members beside messages and tools. ``needs_reasoning``: assistant
    messages with tool calls must carry reasoning, if only an empty one. ``read_image`` gives the bytes
    of images; without it a text stands for each. An encoded image is kept as long as its conversation
    is, like text: every request carries it again.
    """

    def __init__(
        self,
        provider: str,
        parameters: Callable[[CallConfig], JsonObject],
        needs_reasoning: bool = False,
        read_image: ImageReader | None = None,
    ) -> None:
        self._provider = provider
        self._parameters = parameters
        self._needs_reasoning = needs_reasoning
        self._images = ChatImages(read_image)
        self._header: RequestHeader | None = None
        self._head = b""
        self._messages: list[Message] = []
        self._tail = bytearray()

    def encode(self, request: ModelRequest) -> bytes:
        """The body. Costs what was added since the previous call, and the copy of the bytes.

        Raises `AttachmentError` for an image that cannot be read now.
        """
        if request.header is not self._header:
            self._head = self._encode_head(request.header)
            self._header = request.header
        known = len(self._messages)
        if list(request.messages[:known]) != self._messages:
            self._forget()
            known = 0
        try:
            for message in request.messages[known:]:
                self._add(message)
        except AttachmentError:
            self._forget()
            raise
        # The head ends with "[" where there is no system message; then the first comma goes.
        skip = 1 if self._tail and self._head.endswith(b"[") else 0
        held = self._images.held_message()
        end = b"]}" if held is None else b"," + _dump(held) + b"]}"
        return b"".join((self._head, memoryview(self._tail)[skip:], end))

    def _forget(self) -> None:
        self._messages, self._tail = [], bytearray()
        self._images.restart()

    def _add(self, message: Message) -> None:
        due = self._images.due_before(message)
        if due is not None:
            self._tail += b"," + _dump(due)
        for wire in wire_messages(message, self._provider, self._needs_reasoning, self._images):
            self._tail += b"," + _dump(wire)
        self._messages.append(message)

    def _encode_head(self, header: RequestHeader) -> bytes:
        members = self._parameters(header.config)
        if header.tools:
            members["tools"] = [{"type": "function", "function": tool.to_json()} for tool in header.tools]
        head = _dump(members)[:-1] + b',"messages":['
        return head + _dump(_text_message("system", header.system)) if header.system else head


def wire_messages(
    message: Message, provider: str, needs_reasoning: bool = False, images: ChatImages | None = None
) -> list[JsonObject]:
    """What one message becomes on the wire; nothing for an empty assistant message.

    ``images`` None: the model reads text only.
    """
    images = images or ChatImages()
    if message.role == "assistant":
        return _assistant(message, provider, needs_reasoning)
    results = [block for block in message.content if isinstance(block, ToolResultBlock)]
    content = images.content(block for block in message.content if not isinstance(block, ToolResultBlock))
    wire: list[JsonObject] = [{"role": message.role, "content": content}] if content or not results else []
    wire.extend(_tool_result(result, images) for result in results)
    return wire


def _assistant(message: Message, provider: str, needs_reasoning: bool) -> list[JsonObject]:
    text = "".join(block.text for block in message.content if isinstance(block, TextBlock))
    calls = [_tool_call(block) for block in message.content if isinstance(block, ToolCallBlock)]
    wire = _text_message("assistant", text)
    source = message.source
    if isinstance(source, ModelSource) and source.provider == provider:
        wire.update(_reasoning(message, source.replay_state))
    if not text and not calls and len(wire) == 2:
        return []
    if calls:
        if needs_reasoning and len(wire) == 2:
            wire["reasoning_content"] = ""
        wire["tool_calls"] = calls
    return [wire]


def _reasoning(message: Message, replay_state: JsonObject | None) -> JsonObject:
    """Reasoning goes back unchanged, under the name it came with."""
    response: Any = (replay_state or {}).get("response")
    if not isinstance(response, dict):
        response = {}
    if response.get("reasoning_details"):
        return {"reasoning_details": response["reasoning_details"]}
    text = "".join(block.text for block in message.content if isinstance(block, ReasoningBlock))
    return {response.get("reasoningKey", "reasoning_content"): clean_text(text)} if text else {}


def _text_message(role: str, text: str) -> JsonObject:
    return {"role": role, "content": clean_text(text)}


def _tool_call(block: ToolCallBlock) -> JsonObject:
    function = {"name": clean_text(block.name), "arguments": wire_arguments(block.arguments)}
    return {"id": clean_text(block.id), "type": "function", "function": function}


def _tool_result(block: ToolResultBlock, images: ChatImages) -> JsonObject:
    text = images.result_text(block) or NO_OUTPUT
    if block.is_error and not text.startswith(ERROR_PREFIX):
        text = ERROR_PREFIX + text
    return {"role": "tool", "tool_call_id": clean_text(block.tool_call_id), "content": clean_text(text)}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_strict_loads = json.JSONDecoder(parse_constant=_refuse_constant).decode


def wire_arguments(raw: str) -> str:
    """``raw`` as it came where it is a JSON object, what it holds where it is one inside a string.

    Anything else becomes ``{}``: some servers refuse the whole conversation otherwise.
    """
    for _ in range(2):
        try:
            value = _strict_loads(raw)
        except (ValueError, RecursionError):
            return "{}"
        if isinstance(value, dict):
            return clean_text(raw)
        if not isinstance(value, str):
            return "{}"
        raw = value
    return "{}"


def _dump(value: JsonObject) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Messages are well-formed by now; a tool's schema may still hold half a surrogate pair.
    return text.encode("utf-8", "replace")
