"""The normalised vocabulary of a model call: configuration, stream chunks, finish reasons, failures.

One call is one HTTP attempt. Blocks are indexed from 0 in first-seen order; deltas of different
blocks may interleave; at most one `UsageChunk`, then exactly one `Finish`, and nothing after it.
Key names on the wire are those of the original harness.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from dsh_actors.core.ids import CallId
from dsh_actors.core.messages import Block, block_from_json
from dsh_actors.core.text import JsonObject, shape_fault
from dsh_actors.errors import EventRefused

__all__ = [
    "BlockEnd",
    "BlockStart",
    "CallConfig",
    "Chunk",
    "Failure",
    "Finish",
    "FinishKind",
    "ReasoningDelta",
    "TextDelta",
    "ToolCallDelta",
    "Usage",
    "UsageChunk",
    "chunk_from_json",
]


@dataclass(frozen=True, slots=True)
class CallConfig:
    """How a model is called. ``None`` leaves a field to the provider."""

    provider: str
    model: str
    reasoning_effort: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    def to_json(self) -> JsonObject:
        data: JsonObject = {"provider": self.provider, "model": self.model}
        if self.reasoning_effort is not None:
            data["reasoningEffort"] = self.reasoning_effort
        if self.temperature is not None:
            data["temperature"] = self.temperature
        if self.max_tokens is not None:
            data["maxTokens"] = self.max_tokens
        if self.stop:
            data["stop"] = list(self.stop)
        return data

    @staticmethod
    def from_json(data: JsonObject) -> CallConfig:
        return CallConfig(
            data["provider"],
            data["model"],
            data.get("reasoningEffort"),
            data.get("temperature"),
            data.get("maxTokens"),
            tuple(data.get("stop", ())),
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call. ``input``, ``cache_read`` and ``cache_write`` are disjoint.

    ``reasoning`` is a part of ``output``. ``None`` means the provider did not report it.
    """

    input: int
    output: int
    cache_read: int | None = None
    cache_write: int | None = None
    reasoning: int | None = None

    @property
    def prompt(self) -> int:
        """All of the request, whatever the cache had to do with it."""
        return self.input + (self.cache_read or 0) + (self.cache_write or 0)

    @property
    def total(self) -> int:
        return self.prompt + self.output

    def to_json(self) -> JsonObject:
        data: JsonObject = {"inputTokens": self.input, "outputTokens": self.output}
        if self.cache_read is not None:
            data["cacheReadTokens"] = self.cache_read
        if self.cache_write is not None:
            data["cacheWriteTokens"] = self.cache_write
        if self.reasoning is not None:
            data["reasoningTokens"] = self.reasoning
        return data

    @staticmethod
    def from_json(data: JsonObject) -> Usage:
        return Usage(
            data["inputTokens"],
            data["outputTokens"],
            data.get("cacheReadTokens"),
            data.get("cacheWriteTokens"),
            data.get("reasoningTokens"),
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a model call failed. ``code`` is the stable part; see `core/retry.py` for the table.

    ``retry_after_ms`` is what the provider asked for; ``status`` is an HTTP status.

    Two members are for the decision that follows and are not logged: ``should_retry``, the provider's word
    on it, and ``fitting_output``, the output limit with which the same request would fit the context.
    """

    message: str
    code: str
    status: int | None = None
    retry_after_ms: int | None = None
    request_id: str | None = None
    should_retry: bool | None = field(default=None, compare=False)
    fitting_output: int | None = field(default=None, compare=False)

    def to_json(self) -> JsonObject:
        data: JsonObject = {"message": self.message, "code": self.code}
        if self.status is not None:
            data["status"] = self.status
        if self.retry_after_ms is not None:
            data["providerRetryAfterMs"] = self.retry_after_ms
        if self.request_id is not None:
            data["requestId"] = self.request_id
        return data

    @staticmethod
    def from_json(data: JsonObject) -> Failure:
        return Failure(
            data.get("message", ""),
            data.get("code", "UNKNOWN"),
            data.get("status"),
            data.get("providerRetryAfterMs"),
            data.get("requestId"),
        )


@dataclass(frozen=True, slots=True)
class BlockStart:
    index: int
    block_type: str

    def to_json(self) -> JsonObject:
        return {"type": "block-start", "index": self.index, "blockType": self.block_type}


@dataclass(frozen=True, slots=True)
class TextDelta:
    index: int
    text: str

    def to_json(self) -> JsonObject:
        return {"type": "text-delta", "index": self.index, "text": self.text}


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    index: int
    text: str

    def to_json(self) -> JsonObject:
        return {"type": "reasoning-delta", "index": self.index, "text": self.text}


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    index: int
    id: CallId
    name: str | None
    arguments: str

    def to_json(self) -> JsonObject:
        data: JsonObject = {"type": "tool-call-delta", "index": self.index, "id": self.id}
        if self.name is not None:
            data["name"] = self.name
        data["argumentsDelta"] = self.arguments
        return data


@dataclass(frozen=True, slots=True)
class BlockEnd:
    """Closes a block; ``block`` is authoritative over the deltas."""

    index: int
    block: Block

    def to_json(self) -> JsonObject:
        return {"type": "block-end", "index": self.index, "block": self.block.to_json()}


@dataclass(frozen=True, slots=True)
class UsageChunk:
    usage: Usage

    def to_json(self) -> JsonObject:
        return {"type": "usage", "usage": self.usage.to_json()}


FinishKind = Literal["stop", "tool-calls", "max-tokens", "aborted", "error"]


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a stream. ``failure`` is set for ``aborted`` and ``error`` only.

    ``replay_state`` is the adapter's private data for the next request on the same route:
    ``{"response": …, "blocks": [one entry a block, in order]}``; ``blocks`` may be absent.
    ``continues``: the model only paused; it goes on when it gets its own message back.
    """

    kind: FinishKind
    failure: Failure | None = None
    replay_state: JsonObject | None = field(default=None, hash=False)
    continues: bool = False

    def to_json(self) -> JsonObject:
        reason: JsonObject = {"kind": self.kind}
        if self.continues:
            reason["continue"] = True
        if self.failure is not None:
            reason["failure"] = self.failure.to_json()
        data: JsonObject = {"type": "finish", "reason": reason}
        if self.replay_state is not None:
            data["replayState"] = self.replay_state
        return data


Chunk = BlockStart | TextDelta | ReasoningDelta | ToolCallDelta | BlockEnd | UsageChunk | Finish


def chunk_from_json(data: JsonObject) -> Chunk:
    """Read one logged chunk. Raises `EventRefused` for an unknown type or a wrong shape."""
    try:
        match data["type"]:
            case "text-delta":
                return TextDelta(data["index"], data["text"])
            case "reasoning-delta":
                return ReasoningDelta(data["index"], data["text"])
            case "tool-call-delta":
                return ToolCallDelta(
                    data["index"], CallId(data["id"]), data.get("name"), data["argumentsDelta"]
                )
            case "block-start":
                return BlockStart(data["index"], data["blockType"])
            case "block-end":
                return BlockEnd(data["index"], block_from_json(data["block"]))
            case "usage":
                return UsageChunk(Usage.from_json(data["usage"]))
            case "finish":
                reason = data["reason"]
                failure = reason.get("failure")
                return Finish(
                    reason["kind"],
                    failure and Failure.from_json(failure),
                    data.get("replayState"),
                    bool(reason.get("continue")),
                )
    except (KeyError, TypeError, AttributeError) as error:
        raise EventRefused(f"not a stream chunk: {shape_fault(error)}") from error
    raise EventRefused(f"unknown stream chunk {data['type']!r}")
