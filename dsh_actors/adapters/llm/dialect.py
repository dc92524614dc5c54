"""What differs between chat-completions servers on the request side: the seam for vendors. Pure."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from dsh_actors.adapters.llm.settings import ModelFacts
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import UsageError

__all__ = ["Dialect", "OpenAiDialect", "chosen_effort", "limited_output"]


class Dialect(Protocol):
    """One vendor's reading of the common request."""

    @property
    def models(self) -> tuple[ModelFacts, ...] | None:
        """The vendor's catalogue; None where there is none."""

    @property
    def needs_reasoning(self) -> bool:
        """Whether assistant messages with tool calls must carry reasoning."""

    def resolve(self, config: CallConfig, facts: ModelFacts | None) -> CallConfig:
        """Fill in the model's defaults and settle on its words. Raises `UsageError`."""

    def parameters(self, config: CallConfig) -> JsonObject:
        """The body's members beside tools and messages, for a resolved configuration."""


class OpenAiDialect:
    """Plain OpenAI style: nothing is sent that was not asked for."""

    models: tuple[ModelFacts, ...] | None = None
    needs_reasoning = False

    def resolve(self, config: CallConfig, facts: ModelFacts | None) -> CallConfig:
        return limited_output(chosen_effort(config, facts), facts)

    def parameters(self, config: CallConfig) -> JsonObject:
        members: JsonObject = {
            "model": config.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if config.reasoning_effort not in (None, "off"):
            members["reasoning_effort"] = config.reasoning_effort
        return members | sampling(config)


def sampling(config: CallConfig) -> JsonObject:
    """The members that all servers name alike; those not set are left out."""
    members: JsonObject = {}
    if config.max_tokens is not None:
        members["max_tokens"] = config.max_tokens
    if config.temperature is not None:
        members["temperature"] = config.temperature
    if config.stop:
        members["stop"] = list(config.stop)
    return members


def limited_output(config: CallConfig, facts: ModelFacts | None) -> CallConfig:
    """``config`` with the model's default output limit. Raises `UsageError` for one beyond its maximum."""
    asked = config.max_tokens
    if asked is not None and asked < 1:
        raise UsageError(f"the output limit must be at least 1 token, but is {asked}")
    if facts is None:
        return config
    if asked is None:
        return dataclasses.replace(config, max_tokens=facts.default_output)
    if facts.max_output is not None and asked > facts.max_output:
        raise UsageError(f"{facts.id} writes at most {facts.max_output} tokens, but {asked} were asked for")
    return config


def chosen_effort(config: CallConfig, facts: ModelFacts | None) -> CallConfig:
    """``config`` with the model's default effort. Raises `UsageError` for one it does not take."""
    asked = config.reasoning_effort
    if facts is None or asked == "off":
        return config
    if asked is None:
        return dataclasses.replace(config, reasoning_effort=facts.default_effort)
    if facts.efforts and asked not in facts.efforts:
        raise UsageError(
            f"{facts.id} has no reasoning effort {asked!r}",
            code="UNSUPPORTED_REASONING_EFFORT",
            hint=f"use one of {', '.join(facts.efforts)}",
        )
    return config
