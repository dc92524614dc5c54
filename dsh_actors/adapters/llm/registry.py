"""From provider settings to providers, by their type."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dsh_actors.adapters.llm.settings import ProviderConfig
from dsh_actors.config.profiles import PROFILES
from dsh_actors.errors import ConfigError
from dsh_actors.ports import LlmProvider

__all__ = ["build_provider"]


def _openai_compatible(config: ProviderConfig) -> LlmProvider:
    from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider

    if config.profile.name == "deepseek":
        return _deepseek(config)
    return OpenAiCompatibleProvider(config)


def _deepseek(config: ProviderConfig) -> LlmProvider:
    from dsh_actors.adapters.llm.deepseek import DeepSeekDialect
    from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider

    profile = PROFILES["deepseek"] if config.profile is PROFILES["generic"] else config.profile
    return OpenAiCompatibleProvider(config, DeepSeekDialect(profile))


def _anthropic(config: ProviderConfig) -> LlmProvider:
    from dsh_actors.adapters.llm.anthropic import AnthropicProvider

    return AnthropicProvider(config)


_TYPES: Mapping[str, Callable[[ProviderConfig], LlmProvider]] = {
    "anthropic": _anthropic,
    "deepseek": _deepseek,
    "openai_compatible": _openai_compatible,
}


def build_provider(config: ProviderConfig) -> LlmProvider:
    """The provider for its settings. Raises `ConfigError` for a type that there is not."""
    build = _TYPES.get(config.type)
    if build is None:
        raise ConfigError(
            f"provider {config.name}: there is no type {config.type!r}",
            hint=f"use one of {', '.join(sorted(_TYPES))}",
        )
    return build(config)
