"""What is sent to a model, in normalised form, and the digest that proves it later.

`RequestDigest` is incremental: a request that extends the previous one costs what it adds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.messages import Message
from dsh_actors.core.sharing import shared
from dsh_actors.core.text import JsonObject

__all__ = ["ModelRequest", "RequestDigest", "RequestHeader", "ToolSchema"]


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """The part of a tool that a model sees."""

    name: str
    description: str
    parameters: JsonObject = field(hash=False)

    def to_json(self) -> JsonObject:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    @staticmethod
    def from_json(data: JsonObject) -> ToolSchema:
        return ToolSchema(data["name"], data["description"], data["parameters"])


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The part of a request that rarely changes; logged as ``request/header`` when it does.

    ``adapter_defaults`` names the config fields (``reasoningEffort``, ``maxTokens``) that the
    provider's adapter filled in.
    """

    config: CallConfig
    adapter_defaults: frozenset[str] = frozenset()
    system: str | None = None
    tools: tuple[ToolSchema, ...] = ()

    def to_json(self) -> JsonObject:
        data: JsonObject = {"config": self.config.to_json()}
        if self.adapter_defaults:
            data["adapterDefaults"] = dict.fromkeys(sorted(self.adapter_defaults), True)
        if self.system:
            data["system"] = self.system
        if self.tools:
            data["tools"] = [tool.to_json() for tool in self.tools]
        return data

    @staticmethod
    def from_json(data: JsonObject) -> RequestHeader:
        return RequestHeader(
            CallConfig.from_json(data["config"]),
            frozenset(data.get("adapterDefaults", ())),
            shared(data.get("system")),
            tuple(shared(ToolSchema.from_json(tool)) for tool in data.get("tools", ())),
        )


    def asked(self) -> CallConfig:
        """The configuration less what an adapter filled in."""
        config, filled = self.config, self.adapter_defaults
        return CallConfig(
            config.provider,
            config.model,
            None if "reasoningEffort" in filled else config.reasoning_effort,
            config.temperature,
            None if "maxTokens" in filled else config.max_tokens,
            config.stop,
        )


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One normalised request. ``messages`` belongs to the asker and is not changed while in use."""

    header: RequestHeader
    messages: Sequence[Message] = field(hash=False)
    session_id: str = ""

    @property
    def config(self) -> CallConfig:
        return self.header.config


class RequestDigest:
    """SHA-256 over a normalised request: header and messages, each as compact JSON and a newline."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._running = hashlib.sha256()
        self._header: RequestHeader | None = None
        self._header_bytes = b""

    def update(self, request: ModelRequest) -> str:
        """The digest of ``request`` as 64 hex digits."""
        known = len(self._messages)
        if list(request.messages[:known]) != self._messages:
            self._messages, self._running, known = [], hashlib.sha256(), 0
        for message in request.messages[known:]:
            self._messages.append(message)
            self._running.update(_line(message.to_json()))
        if request.header is not self._header:
            self._header, self._header_bytes = request.header, shared(_line(request.header.to_json()))
        whole = self._running.copy()
        whole.update(self._header_bytes)
        return whole.hexdigest()


def _line(value: JsonObject) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
