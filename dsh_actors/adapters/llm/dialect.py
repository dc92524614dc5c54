"""What differs between chat-completions servers on the request side: the seam for vendors. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dsh_actors.adapters.llm.settings import ModelFacts
from dsh_actors.config.profiles import PROFILES, Profile
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import UsageError

__all__ = [
    "Dialect",
    "ProfileDialect",
    "chosen_effort",
    "effort_word",
    "is_reasoning",
    "limited_output",
    "request_members",
]


class Dialect(Protocol):
    """One vendor's reading of the common request."""

    models: tuple[ModelFacts, ...] | None
    """The vendor's catalogue; None where there is none."""

    profile: Profile
    """How messages and tools are written and answers read; replaced when a server refuses its form."""

    def resolve(self, config: CallConfig, facts: ModelFacts | None) -> CallConfig:
        """Fill in the model's defaults and settle on its words. Raises `UsageError`."""

    def parameters(self, config: CallConfig) -> JsonObject:
        """The body's members beside tools and messages, for a resolved configuration."""


class ProfileDialect:
    """OpenAI style with a vendor's switches: nothing is sent that was not asked for."""

    models: tuple[ModelFacts, ...] | None = None

    def __init__(self, profile: Profile = PROFILES["generic"]) -> None:
        self.profile = profile

    def resolve(self, config: CallConfig, facts: ModelFacts | None) -> CallConfig:
        """Raises `UsageError` where an effort was asked for that the server has no member for."""
        effort = config.reasoning_effort
        if self.profile.thinking_style == "none" and effort not in (None, "off"):
            raise UsageError(
                f"{config.provider} takes no reasoning effort",
                code="UNSUPPORTED_REASONING_EFFORT",
                hint=f"leave it out, or set thinking_style in [providers.{config.provider}.quirks]",
            )
        if config.temperature is not None and (
            self.profile.omit_temperature or is_reasoning(config.model, self.profile)
        ):
            config = dataclasses.replace(config, temperature=None)
        return limited_output(chosen_effort(config, facts), facts)

    def parameters(self, config: CallConfig) -> JsonObject:
        effort = config.reasoning_effort
        thinking = {} if effort is None else _THINKING[self.profile.thinking_style](effort, self.profile)
        return request_members(config, self.profile, thinking)


def _effort(effort: str, profile: Profile) -> JsonObject:
    word = profile.effort_off if effort == "off" else effort
    return {"reasoning_effort": word} if word else {}


def _openrouter(effort: str, profile: Profile) -> JsonObject:
    return {"reasoning": {"enabled": False} if effort == "off" else {"effort": effort}}


_THINKING: Mapping[str, Callable[[str, Profile], JsonObject]] = {
    "none": lambda effort, profile: {},
    "effort": _effort,
    "deepseek": lambda effort, profile: _switch(effort) | _effort(effort, profile),
    "switch": lambda effort, profile: _switch(effort),
    "qwen": lambda effort, profile: {"enable_thinking": effort != "off"},
    "openrouter": _openrouter,
    "template": lambda effort, profile: {"chat_template_kwargs": {"enable_thinking": effort != "off"}},
}
"""How an effort that was asked for is written, by `Profile.thinking_style`."""


def _switch(effort: str) -> JsonObject:
    return {"thinking": {"type": "disabled" if effort == "off" else "enabled"}}


def is_reasoning(model: str, profile: Profile) -> bool:
    """Whether the model is one of the profile's ``reasoning_models``."""
    return model.startswith(profile.reasoning_models) if profile.reasoning_models else False


def request_members(config: CallConfig, profile: Profile, thinking: JsonObject) -> JsonObject:
    """All members beside tools and messages, in their fixed order; those not set are left out."""
    members: JsonObject = {"model": config.model, "stream": True}
    if profile.stream_options:
        members["stream_options"] = {"include_usage": True}
    members |= thinking
    optional: dict[str, Any] = {
        profile.max_tokens_field: config.max_tokens,
        "temperature": config.temperature,
        "stop": list(config.stop) or None,
        "response_format": {"type": "json_object"} if profile.json_object else None,
    }
    members |= {name: value for name, value in optional.items() if value is not None}
    return members | dict(profile.extra_body)


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
    if facts.efforts:
        effort_word(facts.id, asked, dict(zip(facts.efforts, facts.efforts, strict=True)))
    return config


def effort_word(who: str, asked: str, words: Mapping[str, str]) -> str:
    """The word that is sent for an effort: ``words`` has it. Raises `UsageError` for one ``who`` lacks."""
    effort = words.get(asked)
    if effort is None:
        raise UsageError(
            f"{who} has no reasoning effort {asked!r}",
            code="UNSUPPORTED_REASONING_EFFORT",
            hint=f"use one of {', '.join(dict.fromkeys(words.values()))}",
        )
    return effort
