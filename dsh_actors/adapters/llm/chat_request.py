"""Request bodies of the chat-completions wire, built from cached fragments. Pure.

``messages`` is the last member of the body, so a request that only adds messages to the previous
one is, byte for byte, the previous body without its closing ``]}`` and with more after it. Servers
bill such a shared prefix at a fraction of the price.
"""

from __future__ import annotations

from typing import Any

from dsh_actors.adapters.llm.chat_assistant import assistant_messages
from dsh_actors.adapters.llm.chat_images import ChatImages
from dsh_actors.adapters.llm.dialect import Dialect, is_reasoning
from dsh_actors.adapters.llm.images import ImageReader
from dsh_actors.adapters.llm.strict_schema import strict_fault
from dsh_actors.adapters.llm.wire_parts import NO_OUTPUT, json_bytes
from dsh_actors.config.profiles import PROFILES, Profile
from dsh_actors.core.messages import Message, ToolResultBlock
from dsh_actors.core.request import ModelRequest, RequestHeader, ToolSchema
from dsh_actors.core.text import JsonObject, clean_text
from dsh_actors.errors import AttachmentError, UsageError

__all__ = ["ChatEncoder", "wire_messages"]

ERROR_PREFIX = "Error: "

BRIDGE = "I have read the results."
"""The model's word between a tool's result and a user message, where a server insists on one."""


class ChatEncoder:
    """Encodes the requests of one conversation with one provider, as its ``dialect`` has it.

    ``read_image`` gives the bytes of images; without it a text stands for each. An encoded image is kept
    as long as its conversation is, like text: every request carries it again.
    """

    def __init__(self, provider: str, dialect: Dialect, read_image: ImageReader | None = None) -> None:
        self._provider = provider
        self._dialect = dialect
        self._images = ChatImages(read_image)
        self._header: RequestHeader | None = None
        self._profile = dialect.profile
        self._model = ""
        self._head = b""
        self._messages: list[Message] = []
        self._tail = bytearray()
        self._ids: dict[str, str] = {}
        self._last: JsonObject = {}
        self._last_at = 0
        self._says_json = False

    def encode(self, request: ModelRequest) -> bytes:
        """The body. Costs what was added since the previous call, and the copy of the bytes.

        Raises `UsageError` for what the provider's settings do not allow, `AttachmentError` for an image
        that cannot be read now.
        """
        profile = self._dialect.profile
        if request.header is not self._header or profile is not self._profile:
            # What a message becomes depends on both; on the header's other members it does not.
            if profile is not self._profile or request.config.model != self._model:
                self._forget()
            self._profile, self._model = profile, request.config.model
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
        if profile.json_object:
            self._check_json(request.header)
        # The head ends with "[" where there is no system message; then the first comma goes.
        skip = 1 if self._tail and self._head.endswith(b"[") else 0
        held = self._held_end()
        return b"".join((self._head, memoryview(self._tail)[skip:], held, b"]}"))

    def _forget(self) -> None:
        self._messages, self._tail, self._ids, self._last = [], bytearray(), {}, {}
        self._images.restart()

    def _add(self, message: Message) -> None:
        due = self._images.due_before(message)
        if due is not None:
            self._put(due)
        given = (self._provider, self._profile, self._model, self._ids, self._images)
        for wire in wire_messages(message, *given):
            self._put(wire)
        self._messages.append(message)

    def _held_end(self) -> bytes:
        """The images of the results at the end, where they stand unless another result follows."""
        held = self._images.held_message()
        if held is None:
            return b""
        end, last = len(self._tail), (self._last, self._last_at)
        self._put(held)
        added = bytes(self._tail[end:])
        del self._tail[end:]
        self._last, self._last_at = last
        return added

    def _put(self, wire: JsonObject) -> None:
        profile = self._profile
        if not (profile.bridge_tool_results or profile.merge_same_role):
            self._tail += b"," + json_bytes(wire)
            return
        before, role = self._last.get("role"), wire["role"]
        if role == "user" and before == "tool" and profile.bridge_tool_results:
            self._tail += b"," + json_bytes(_text_message("assistant", BRIDGE))
        elif role == "user" == before and profile.merge_same_role:
            joined = _joined(self._last["content"], wire["content"])
            if joined is not None:
                wire = {"role": "user", "content": joined}
                del self._tail[self._last_at :]
        self._last, self._last_at = wire, len(self._tail)
        self._tail += b"," + json_bytes(wire)

    def _check_json(self, header: RequestHeader) -> None:
        """DeepSeek and OpenAI refuse this mode unless the conversation names the format."""
        if not self._says_json:
            text = (header.system or "").lower().encode("utf-8", "replace") + self._tail.lower()
            self._says_json = b"json" in text
        if not self._says_json:
            raise UsageError("json_object needs the word json in the prompt or the system prompt")

    def _encode_head(self, header: RequestHeader) -> bytes:
        members = self._dialect.parameters(header.config)
        if header.tools:
            strict = self._profile.strict_tools
            members["tools"] = [_wire_tool(tool, strict) for tool in header.tools]
        head = json_bytes(members)[:-1] + b',"messages":['
        if not header.system:
            return head
        role = self._profile.system_role
        if role == "reasoning":
            role = "developer" if is_reasoning(header.config.model, self._profile) else "system"
        return head + json_bytes(_text_message(role, header.system))


def _wire_tool(tool: ToolSchema, strict: bool) -> JsonObject:
    function = tool.to_json()
    if strict:
        fault = strict_fault(tool.parameters)
        if fault is not None:
            raise UsageError(
                f"strict_tools: the tool {tool.name} does not fit: {fault};"
                " leave it out with --tools, or turn strict_tools off"
            )
        function["strict"] = True
    return {"type": "function", "function": function}


def _joined(first: Any, second: Any) -> str | list[Any] | None:
    """The content of two messages as that of one."""
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    if isinstance(first, list) and isinstance(second, str | list):
        return [*first, *([{"type": "text", "text": second}] if isinstance(second, str) else second)]
    return None


def wire_messages(
    message: Message,
    provider: str,
    profile: Profile = PROFILES["generic"],
    model: str | None = None,
    ids: dict[str, str] | None = None,
    images: ChatImages | None = None,
) -> list[JsonObject]:
    """What one message becomes on the wire; nothing for an empty assistant message.

    ``model`` is the one that is asked; None for the one that wrote the message. ``ids`` holds the ids of
    calls that go under another one, and is kept up to date. ``images`` None: the model reads text only.
    """
    ids = {} if ids is None else ids
    images = images or ChatImages()
    if message.role == "assistant":
        return assistant_messages(message, provider, profile, model, ids)
    results = [block for block in message.content if isinstance(block, ToolResultBlock)]
    content = images.content(block for block in message.content if not isinstance(block, ToolResultBlock))
    wire: list[JsonObject] = [{"role": message.role, "content": content}] if content or not results else []
    wire.extend(_tool_result(result, ids, images) for result in results)
    return wire


def _text_message(role: str, text: str) -> JsonObject:
    return {"role": role, "content": clean_text(text)}


def _tool_result(block: ToolResultBlock, ids: dict[str, str], images: ChatImages) -> JsonObject:
    text = images.result_text(block) or NO_OUTPUT
    if block.is_error and not text.startswith(ERROR_PREFIX):
        text = ERROR_PREFIX + text
    call_id = ids.get(block.tool_call_id) or clean_text(block.tool_call_id)
    return {"role": "tool", "tool_call_id": call_id, "content": clean_text(text)}
