"""Messages and their content blocks: frozen in Python, tagged objects on the wire.

Blocks and sources live in one open table each, so that a plugin adds a kind without editing this
file. A tag that nobody registered is kept as it is (`OpaqueBlock`, `OpaqueSource`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, Protocol

from dsh_actors.core.ids import CallId, MessageId
from dsh_actors.core.text import JsonObject, shape_fault
from dsh_actors.errors import EventRefused

__all__ = [
    "IMAGE_TYPES",
    "Block",
    "ImageBlock",
    "ImageRef",
    "Message",
    "ModelSource",
    "OpaqueBlock",
    "OpaqueSource",
    "PluginSource",
    "ReasoningBlock",
    "Role",
    "Source",
    "TextBlock",
    "ToolCallBlock",
    "ToolResultBlock",
    "ToolSource",
    "UserSource",
    "block_from_json",
    "register_block",
    "register_source",
    "require_input",
    "source_from_json",
    "text_of",
    "user_message",
]

IMAGE_TYPES: Mapping[str, str] = MappingProxyType(
    {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF", "image/webp": "WebP"}
)
"""The media types of images that messages refer to, each with its name for people."""

_ATTACHMENT_ID = re.compile(r"sha256:[0-9a-f]{64}")

Role = Literal["system", "user", "assistant"]


class Block(Protocol):
    """One content part. ``to_json`` gives ``{"type": …}``."""

    def to_json(self) -> JsonObject: ...


class Source(Protocol):
    """Where a message came from. ``to_json`` gives ``{"kind": …}``."""

    def to_json(self) -> JsonObject: ...


@dataclass(frozen=True, slots=True)
class TextBlock:
    text: str

    def to_json(self) -> JsonObject:
        return {"type": "text", "text": self.text}


@dataclass(frozen=True, slots=True)
class ReasoningBlock:
    text: str

    def to_json(self) -> JsonObject:
        return {"type": "reasoning", "text": self.text}


@dataclass(frozen=True, slots=True)
class ToolCallBlock:
    """A call the model asked for; ``arguments`` is its JSON text, exactly as received."""

    id: CallId
    name: str
    arguments: str

    def to_json(self) -> JsonObject:
        return {"type": "tool-call", "id": self.id, "name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class ToolResultBlock:
    tool_call_id: CallId
    content: tuple[Block, ...]
    is_error: bool = False

    def to_json(self) -> JsonObject:
        data: JsonObject = {
            "type": "tool-result",
            "toolCallId": self.tool_call_id,
            "content": [block.to_json() for block in self.content],
        }
        if self.is_error:
            data["isError"] = True
        return data


@dataclass(frozen=True, slots=True)
class ImageRef:
    """A stored image without its bytes. ``id`` is ``sha256:`` and the 64 hex digits of their digest.

    ``size`` is in bytes, ``width`` and ``height`` in pixels; ``name`` is its giver's word for it.
    ``extra`` holds members that another harness wrote.
    """

    id: str
    media_type: str
    size: int
    width: int
    height: int
    name: str | None = None
    extra: JsonObject = field(default_factory=dict, hash=False)

    def to_json(self) -> JsonObject:
        data: JsonObject = {
            "attachmentId": self.id,
            "mediaType": self.media_type,
            "bytes": self.size,
            "width": self.width,
            "height": self.height,
        }
        if self.name is not None:
            data["name"] = self.name
        return data | self.extra

    @staticmethod
    def from_json(data: object) -> ImageRef | None:
        """None for what is no reference to a stored image."""
        if type(data) is not dict:
            return None
        rest = dict(data)
        given, kind = rest.pop("attachmentId", None), rest.pop("mediaType", None)
        size, width, height = (rest.pop(key, None) for key in ("bytes", "width", "height"))
        name = rest.pop("name", None)
        if type(given) is not str or not _ATTACHMENT_ID.fullmatch(given):
            return None
        if type(kind) is not str or kind not in IMAGE_TYPES:
            return None
        if any(type(number) is not int or number < 1 for number in (size, width, height)):
            return None
        # A name that is null would not come back as it was.
        if type(name) is not str and "name" in data:
            return None
        return ImageRef(given, kind, size, width, height, name, rest)

    @property
    def digest(self) -> str:
        """The 64 hex digits."""
        return self.id.removeprefix("sha256:")

    def words(self) -> str:
        """The image in a few words for people and models: ``photo.png, PNG, 640 × 480``."""
        facts = f"{IMAGE_TYPES[self.media_type]}, {self.width} × {self.height}"
        return facts if self.name is None else f"{self.name}, {facts}"


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """An image by reference; its bytes are in the attachment store and in no log."""

    attachment: ImageRef

    def to_json(self) -> JsonObject:
        return {"type": "image", "attachment": self.attachment.to_json()}


@dataclass(frozen=True, slots=True)
class OpaqueBlock:
    """A block of a kind that nobody registered, or an image without a usable reference; kept as it is."""

    data: JsonObject = field(hash=False)

    def to_json(self) -> JsonObject:
        return self.data


@dataclass(frozen=True, slots=True)
class UserSource:
    def to_json(self) -> JsonObject:
        return {"kind": "user"}


@dataclass(frozen=True, slots=True)
class PluginSource:
    """Written by a part of the harness. ``form`` is the producer's word for what it is."""

    plugin: str
    form: str | None = None
    extra: JsonObject = field(default_factory=dict, hash=False)

    def to_json(self) -> JsonObject:
        data: JsonObject = {"kind": "plugin", "plugin": self.plugin}
        if self.form is not None:
            data["form"] = self.form
        return data | self.extra


@dataclass(frozen=True, slots=True)
class ModelSource:
    """``replay_state`` is the adapter's private data, used only on the route that made it."""

    provider: str
    model: str
    replay_state: JsonObject | None = field(default=None, hash=False)

    def to_json(self) -> JsonObject:
        data: JsonObject = {"kind": "model", "provider": self.provider, "model": self.model}
        if self.replay_state is not None:
            data["replayState"] = self.replay_state
        return data


@dataclass(frozen=True, slots=True)
class ToolSource:
    call_id: CallId

    def to_json(self) -> JsonObject:
        return {"kind": "tool", "callId": self.call_id}


@dataclass(frozen=True, slots=True)
class OpaqueSource:
    data: JsonObject = field(hash=False)

    def to_json(self) -> JsonObject:
        return self.data


@dataclass(frozen=True, slots=True)
class Message:
    """What a model reads or writes. The id is made once and kept across inbox, log and request."""

    id: MessageId
    role: Role
    content: tuple[Block, ...]
    source: Source

    def to_json(self) -> JsonObject:
        return {
            "id": self.id,
            "role": self.role,
            "content": [block.to_json() for block in self.content],
            "source": self.source.to_json(),
        }

    @staticmethod
    def from_json(data: JsonObject) -> Message:
        """Raises `EventRefused` where the shape is wrong."""
        try:
            role, content = data["role"], data["content"]
            if not data["id"] or role not in ("system", "user", "assistant") or not isinstance(content, list):
                raise EventRefused(f"message {data['id']!r}: wrong id, role or content")
            return Message(
                MessageId(data["id"]),
                role,
                tuple(map(block_from_json, content)),
                source_from_json(data["source"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise EventRefused(f"not a message: {shape_fault(error)}") from error


def user_message(
    message_id: str, text: str, source: Source | None = None, images: tuple[ImageBlock, ...] = ()
) -> Message:
    """A user-role message with one text block, and images after it."""
    return Message(MessageId(message_id), "user", (TextBlock(text), *images), source or UserSource())


def require_input(message: Message) -> None:
    """Raises `EventRefused` for what cannot be input: the log would refuse it later, at a worse time."""
    if message.role != "user" or any(isinstance(b, ToolCallBlock | ToolResultBlock) for b in message.content):
        raise EventRefused(f"message {message.id!r}: input is a user message without calls or results")


def text_of(message: Message) -> str:
    """The text blocks of a message, joined."""
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


_BLOCKS: dict[str, Callable[[JsonObject], Block]] = {}
_SOURCES: dict[str, Callable[[JsonObject], Source]] = {}


def register_block(kind: str, parse: Callable[[JsonObject], Block]) -> None:
    """Add a block kind; ``parse`` may raise KeyError or TypeError on a wrong shape."""
    _BLOCKS[kind] = parse


def register_source(kind: str, parse: Callable[[JsonObject], Source]) -> None:
    """Add a source kind; ``parse`` may raise KeyError or TypeError on a wrong shape."""
    _SOURCES[kind] = parse


def block_from_json(data: JsonObject) -> Block:
    parse = _BLOCKS.get(data["type"])
    return parse(data) if parse else OpaqueBlock(data)


def source_from_json(data: JsonObject) -> Source:
    parse = _SOURCES.get(data["kind"])
    return parse(data) if parse else OpaqueSource(data)


def _image(data: JsonObject) -> Block:
    ref = ImageRef.from_json(data.get("attachment"))
    # What cannot be read back without loss must survive all the same.
    return OpaqueBlock(data) if ref is None or len(data) != 2 else ImageBlock(ref)


def _plugin_source(data: JsonObject) -> Source:
    extra = {k: v for k, v in data.items() if k not in ("kind", "plugin", "form")}
    return PluginSource(data["plugin"], data.get("form"), extra)


register_block("text", lambda d: TextBlock(d["text"]))
register_block("reasoning", lambda d: ReasoningBlock(d["text"]))
register_block("tool-call", lambda d: ToolCallBlock(CallId(d["id"]), d["name"], d["arguments"]))
register_block("image", _image)
register_block(
    "tool-result",
    lambda d: ToolResultBlock(
        CallId(d["toolCallId"]), tuple(map(block_from_json, d["content"])), bool(d.get("isError", False))
    ),
)
# A user source with more keys (the original's web front end adds some) must survive unchanged.
register_source("user", lambda d: UserSource() if len(d) == 1 else OpaqueSource(d))
register_source("plugin", _plugin_source)
register_source("model", lambda d: ModelSource(d["provider"], d["model"], d.get("replayState")))
register_source("tool", lambda d: ToolSource(CallId(d["callId"])))
