"""Request bodies of the Anthropic Messages wire, built from cached fragments. Pure.

``messages`` is the last member of the body and its earlier bytes never change: the cache markers
sit on the fixed tools and system prompt, and one at the top of the body follows the conversation
by itself. A request that extends another is that one's bytes without the closing brackets, and more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from dsh_actors.adapters.llm.images import ImageData, ImageEncoder, ImageLimits, ImageReader
from dsh_actors.adapters.llm.tool_ids import MAX_ID_CHARS, safe_id
from dsh_actors.adapters.llm.wire_parts import NO_OUTPUT, argument_object, json_bytes, shown_text
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.messages import (
    Block,
    ImageBlock,
    Message,
    ModelSource,
    ReasoningBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from dsh_actors.core.request import ModelRequest, RequestHeader
from dsh_actors.core.text import JsonObject, clean_json, clean_text
from dsh_actors.errors import AttachmentError, EventRefused

__all__ = ["CACHE_MARK", "RAW_ARGUMENTS", "MessagesEncoder", "model_family", "wire_input"]

CACHE_MARK: JsonObject = {"type": "ephemeral"}

RAW_ARGUMENTS = "_raw"
"""Where arguments go that are no JSON object: the wire takes nothing else as a call's input."""

IMAGE_LIMITS = ImageLimits(count=100, encoded_bytes=28 << 20, each_encoded_bytes=5_000_000)
"""The vendor's documentation: 100 images and 32 MB a request, 5 MB an image."""

_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")
_SNAPSHOT = re.compile(r"[-@](\d{8}|latest)$")


def model_family(model: str) -> str:
    """The model without the date of its snapshot: what a signature of its thinking is bound to."""
    return _SNAPSHOT.sub("", model)


class MessagesEncoder:
    """Encodes the requests of one conversation with one provider.

    ``parameters`` gives the members beside tools, system prompt and messages. ``read_image`` gives the
    bytes of images; without it a text stands for each.
    """

    def __init__(
        self,
        provider: str,
        parameters: Callable[[CallConfig], JsonObject],
        read_image: ImageReader | None = None,
    ) -> None:
        self._provider = provider
        self._images = ImageEncoder(read_image, IMAGE_LIMITS)
        self._parameters = parameters
        self._header: RequestHeader | None = None
        self._head = b""
        self._family = ""
        self._forget()

    def _forget(self) -> None:
        self._messages: list[Message] = []
        self._done = bytearray()  # whole wire messages, a comma before each
        self._role = ""  # of the last one, which later messages of its role may join
        self._results: list[bytes] = []
        self._blocks: list[bytes] = []
        self._ids = _CallIds()
        self._images.restart()

    def encode(self, request: ModelRequest) -> bytes:
        """The body. Costs what was added since the previous call, and the copy of the bytes.

        Raises `AttachmentError` for an image that cannot be read now.
        """
        if request.header is not self._header:
            self._head = self._encode_head(request.header)
            self._header = request.header
            family = model_family(request.config.model)
            if family != self._family:
                # Thinking that was sent to one model is left out for another, and the reverse.
                self._family = family
                self._forget()
        known = len(self._messages)
        if list(request.messages[:known]) != self._messages:
            self._forget()
            known = 0
        try:
            for message in request.messages[known:]:
                self._add(message)
                self._messages.append(message)
        except AttachmentError:
            self._forget()
            raise
        last = self._last_message()
        # The first message has no comma before it.
        whole = (memoryview(self._done)[1:], last) if self._done else (last[1:],)
        return b"".join((self._head, *whole, b"]}"))

    def _encode_head(self, header: RequestHeader) -> bytes:
        members = self._parameters(header.config)
        if header.tools:
            tools = [_tool(tool.to_json()) for tool in header.tools]
            tools[-1]["cache_control"] = CACHE_MARK
            members["tools"] = tools
        if header.system and header.system.strip():
            text = clean_text(header.system)
            members["system"] = [{"type": "text", "text": text, "cache_control": CACHE_MARK}]
        return json_bytes(members)[:-1] + b',"messages":['

    def _add(self, message: Message) -> None:
        """Put a message's blocks into the last wire message if that is of its role, else into a new one."""
        if message.role == "assistant":
            role, results, blocks = "assistant", [], self._assistant(message)
        else:
            role, results, blocks = "user", *self._user(message)
        if not results and not blocks:
            return
        if role != self._role:
            self._done += self._last_message()
            self._role, self._results, self._blocks = role, [], []
        self._results += results
        self._blocks += blocks

    def _last_message(self) -> bytes:
        # The results of a turn are refused after any other block.
        content = b",".join((*self._results, *self._blocks))
        return b',{"role":"%b","content":[%b]}' % (self._role.encode(), content) if content else b""

    def _user(self, message: Message) -> tuple[list[bytes], list[bytes]]:
        results: list[bytes] = []
        blocks: list[bytes] = []
        for block in message.content:
            if isinstance(block, ToolResultBlock):
                call_id = self._ids.of_result(block.tool_call_id)
                results.append(json_bytes(_tool_result(block, call_id, self._images)))
            elif isinstance(block, ImageBlock):
                blocks += map(json_bytes, _image(self._images.encode(block)))
            elif (text := shown_text(block)).strip():
                blocks.append(json_bytes(_text(text)))
        return results, blocks

    def _assistant(self, message: Message) -> list[bytes]:
        wire: list[bytes] = []
        end = 0  # after the last block that may end a message: thinking may not
        for block, entry in zip(message.content, self._entries(message), strict=True):
            match block:
                case ReasoningBlock():
                    wire += map(json_bytes, _thinking(block, entry))
                case ToolCallBlock():
                    wire.append(_tool_use(block, self._ids.of_call(block.id)))
                    end = len(wire)
                case _ if (text := shown_text(block)).strip():
                    wire.append(json_bytes(_text(text)))
                    end = len(wire)
        return wire[:end]

    def _entries(self, message: Message) -> list[Any]:
        """What the adapter kept of each block; nothing unless this very model wrote the message."""
        none = [None] * len(message.content)
        source = message.source
        if not isinstance(source, ModelSource) or source.provider != self._provider:
            return none
        if model_family(source.model) != self._family or not source.replay_state:
            return none
        entries = source.replay_state.get("blocks")
        return entries if isinstance(entries, list) and len(entries) == len(none) else none


class _CallIds:
    """Ids of calls as the wire wants them: portable, and unique in the conversation."""

    def __init__(self) -> None:
        self._uses: dict[str, int] = {}
        self._current: dict[str, str] = {}

    def of_call(self, call_id: str) -> str:
        wire = safe_id(call_id)
        count = self._uses[wire] = self._uses.get(wire, 0) + 1
        if count > 1:
            # Some servers number the calls of each message from zero.
            wire = safe_id(f"{call_id}#{count}")
        self._current[call_id] = wire
        return wire

    def of_result(self, call_id: str) -> str:
        return self._current.get(call_id) or safe_id(call_id)


def _tool(schema: JsonObject) -> JsonObject:
    parameters = schema["parameters"]
    return {
        "name": schema["name"],
        "description": schema["description"],
        "input_schema": parameters if "type" in parameters else {"type": "object", **parameters},
    }


def _text(text: str) -> JsonObject:
    return {"type": "text", "text": clean_text(text)}


def _thinking(block: ReasoningBlock, entry: Any) -> Iterator[JsonObject]:
    """Thinking goes back unchanged with its signature, or not at all."""
    if isinstance(entry, dict):
        if "signature" in entry:
            yield {"type": "thinking", "thinking": block.text, "signature": entry["signature"]}
        elif "redacted" in entry:
            yield {"type": "redacted_thinking", "data": entry["redacted"]}


def _tool_use(block: ToolCallBlock, call_id: str) -> bytes:
    name = _FOREIGN.sub("_", block.name)[:MAX_ID_CHARS] or "unnamed"
    head = json_bytes({"type": "tool_use", "id": call_id, "name": name})
    return b'%b,"input":%b}' % (head[:-1], wire_input(block.arguments))


def _image(image: ImageData | str) -> Iterator[JsonObject]:
    """An image with a text before it that names it, or the text that stands for it."""
    if isinstance(image, str):
        yield _text(image)
        return
    yield _text(image.handle)
    source = {"type": "base64", "media_type": image.media_type, "data": image.base64}
    yield {"type": "image", "source": source}


def _result_content(blocks: tuple[Block, ...], images: ImageEncoder) -> str | list[JsonObject]:
    if not any(isinstance(block, ImageBlock) for block in blocks):
        text = clean_text("".join(map(shown_text, blocks)))
        return text if text.strip() else NO_OUTPUT
    parts: list[JsonObject] = []
    for block in blocks:
        if isinstance(block, ImageBlock):
            parts += _image(images.encode(block))
        elif (text := shown_text(block)).strip():
            parts.append(_text(text))
    return parts


def _tool_result(block: ToolResultBlock, call_id: str, images: ImageEncoder) -> JsonObject:
    content = _result_content(block.content, images)
    wire: JsonObject = {"type": "tool_result", "tool_use_id": call_id, "content": content}
    if block.is_error:
        wire["is_error"] = True
    return wire


def wire_input(raw: str) -> bytes:
    """A call's arguments as a JSON object: as they are, or from inside a string, or kept as raw text."""
    found = argument_object(raw)
    if found is not None:
        try:
            return json_bytes(clean_json(found[1]))  # refuses numbers that are too large for a float
        except (ValueError, EventRefused):
            pass
    return json_bytes({RAW_ARGUMENTS: clean_text(raw)})
