"""How many tokens a request holds: as the provider counted where that can be reused, else an estimate. Pure.

The estimate needs no tokenizer. Four ASCII characters are a token, as is every started group of them;
a character of Chinese, Japanese or Korean is 0.7 tokens, any other 0.5. A block costs 4 tokens beside
its text, a message 4, the system prompt 4, the list of tools (as JSON) 4. An image of w × h pixels is
w·h / 750 tokens, at least 85 and at most 1,600. (Four characters and the fours are those of the
original harness; it counts all scripts alike, which makes Chinese less than half of what it is.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dsh_actors.core.chunks import Usage
from dsh_actors.core.events import Event
from dsh_actors.core.messages import (
    Block,
    Message,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from dsh_actors.core.request import ModelRequest, RequestHeader, ToolSchema
from dsh_actors.core.text import JsonObject

__all__ = [
    "Breakdown",
    "Measurement",
    "TokenMeter",
    "fitting_output",
    "message_tokens",
    "reply_usage",
    "system_tokens",
    "text_tokens",
    "tools_tokens",
]

_OVERHEAD = 4
_IMAGE_PIXELS = 750
_IMAGE_LEAST, _IMAGE_MOST = 85, 1_600

_WIDE = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+"
)
"""Runs of Chinese, Japanese and Korean characters."""

MIN_OUTPUT = 1_024
"""The smallest output limit that a default is cut to: with less room the provider has the word."""

_MARGIN = 3
"""One part in so many of what is estimated is kept free: JSON and code are up to a third more tokens."""


def text_tokens(text: str) -> int:
    """The estimate for a text, without the 4 tokens of a block."""
    if text.isascii():
        return (len(text) + 3) // 4
    ascii_count = len(text.encode("ascii", "ignore"))
    wide = sum(len(run) for run in _WIDE.findall(text))
    other = len(text) - ascii_count - wide
    return (ascii_count + 3) // 4 + (7 * wide + 5 * other + 9) // 10


def message_tokens(message: Message) -> int:
    """The estimate for one message with its blocks."""
    return _OVERHEAD + sum(map(_block_tokens, message.content))


def _block_tokens(block: Block) -> int:
    match block:
        case TextBlock() | ReasoningBlock():
            return text_tokens(block.text) + _OVERHEAD
        case ToolCallBlock():
            return text_tokens(block.name) + text_tokens(block.arguments) + _OVERHEAD
        case ToolResultBlock():
            return sum(map(_block_tokens, block.content)) + _OVERHEAD
    data = block.to_json()
    return (_image_tokens(data) or text_tokens(_json(data))) + _OVERHEAD


def _image_tokens(data: JsonObject) -> int | None:
    attachment = data.get("attachment")
    if data.get("type") != "image" or not isinstance(attachment, dict):
        return None
    width, height = attachment.get("width"), attachment.get("height")
    if not (isinstance(width, int) and isinstance(height, int)):
        return _IMAGE_MOST
    return min(_IMAGE_MOST, max(_IMAGE_LEAST, width * height // _IMAGE_PIXELS))


def system_tokens(system: str | None) -> int:
    return text_tokens(system) + _OVERHEAD if system else 0


def tools_tokens(tools: Sequence[ToolSchema]) -> int:
    return text_tokens(_json([tool.to_json() for tool in tools])) + _OVERHEAD if tools else 0


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Measurement:
    """Tokens of a request, reply and output limit aside; ``estimated`` without any count.

    ``uncounted`` of them are an estimate: all, or where ``is_anchored`` what came since the provider's count.
    """

    tokens: int
    estimated: int
    uncounted: int
    is_anchored: bool


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Estimates of the parts of a request, in tokens."""

    system: int
    tools: int
    messages: int

    @property
    def total(self) -> int:
        return self.system + self.tools + self.messages


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A request that a provider has counted. ``header`` is its envelope, but for the sampling members."""

    header: RequestHeader
    counted: int
    estimated: int


class TokenMeter:
    """Measures the requests of one conversation; each costs what it adds to the one before.

    An anchor is what the provider counted of a request (input, read from and written to its cache; the
    reply is a message of the next one). It holds for later requests with the same provider, model,
    system prompt and tools, unless the provider counted less, with the reply, than was estimated: a
    server that cuts the prompt in silence does.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._sums: list[int] = [0]
        self._system: tuple[str | None, int] = (None, 0)
        self._tools: tuple[tuple[ToolSchema, ...], int] = ((), 0)
        self._anchor: _Anchor | None = None

    def measure(self, request: ModelRequest) -> Measurement:
        """What the request holds."""
        estimated = self.breakdown(request).total
        anchor = self._anchor
        if anchor is None or not _same_envelope(anchor.header, request.header):
            return Measurement(estimated, estimated, estimated, False)
        since = estimated - anchor.estimated
        return Measurement(max(0, anchor.counted + since), estimated, max(0, since), True)

    def breakdown(self, request: ModelRequest) -> Breakdown:
        """The estimate of each part of the request."""
        header = request.header
        if header.system is not self._system[0]:
            self._system = (header.system, system_tokens(header.system))
        if header.tools is not self._tools[0]:
            self._tools = (header.tools, tools_tokens(header.tools))
        return Breakdown(self._system[1], self._tools[1], self._sum(request.messages))

    def anchor(self, header: RequestHeader, estimated: int, usage: Usage) -> None:
        """Take over what the provider counted of a request that it answered, and that was measured."""
        self._anchor = _Anchor(header, usage.prompt, estimated) if usage.total >= estimated else None

    def recall(self, header: RequestHeader, nodes: Sequence[Event], messages: Sequence[Message]) -> None:
        """Find the anchor in a log: the newest reply on the surface that the provider counted.

        ``header`` is that of the newest logged request. A reply to a history that was replaced since
        is none.
        """
        for index in reversed(range(len(nodes))):
            node = nodes[index]
            usage = node.data.get("usage") if node.type == "assistant/message" else None
            if usage is None:
                continue
            reply, source = node.data["message"]["id"], node.data["message"]["source"]
            place = next((i for i, message in enumerate(messages) if message.id == reply), None)
            is_same = (source.get("provider"), source.get("model")) == (
                header.config.provider,
                header.config.model,
            )
            if place is None or not is_same or any(earlier.seq > node.seq for earlier in nodes[:index]):
                return
            estimated = self.breakdown(ModelRequest(header, messages[:place])).total
            self.anchor(header, estimated, Usage.from_json(usage))
            return

    def _sum(self, messages: Sequence[Message]) -> int:
        known = self._messages
        count = len(known)
        if list(messages[:count]) != known:
            count = next(
                (i for i, (a, b) in enumerate(zip(known, messages, strict=False)) if a is not b and a != b),
                min(len(known), len(messages)),
            )
            del known[count:], self._sums[count + 1 :]
        for message in messages[count:]:
            known.append(message)
            self._sums.append(self._sums[-1] + message_tokens(message))
        return self._sums[-1]


def _same_envelope(one: RequestHeader, other: RequestHeader) -> bool:
    return (
        one.config.provider == other.config.provider
        and one.config.model == other.config.model
        and one.system == other.system
        and one.tools == other.tools
    )


def fitting_output(window: int, prompt: Measurement, wanted: int) -> int:
    """The output limit that leaves room for the prompt: ``wanted``, else a half, a quarter, … of it.

    It shrinks in halves so that it rarely changes from request to request, and not below `MIN_OUTPUT`.
    """
    room = window - prompt.tokens - prompt.uncounted // _MARGIN
    while wanted > room and wanted > MIN_OUTPUT:
        wanted = max(MIN_OUTPUT, wanted // 2)
    return wanted


def reply_usage(prompt: int, blocks: Sequence[Block]) -> Usage:
    """An estimate of what a reply took that came without a count of tokens; nothing is taken as cached."""
    return Usage(prompt, sum(map(_block_tokens, blocks)))
