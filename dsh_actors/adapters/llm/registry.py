"""From provider settings to providers, and from ``PROVIDER/MODEL`` to a provider and a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dsh_actors.adapters.llm.settings import ProviderConfig
from dsh_actors.config.profiles import PROFILES
from dsh_actors.errors import ConfigError, UsageError
from dsh_actors.ports import LlmProvider

__all__ = ["ModelRoutes", "build_provider", "register_type"]


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


_TYPES: dict[str, Callable[[ProviderConfig], LlmProvider]] = {
    "anthropic": _anthropic,
    "deepseek": _deepseek,
    "openai_compatible": _openai_compatible,
}


def register_type(name: str, build: Callable[[ProviderConfig], LlmProvider]) -> None:
    """Add a type of provider that the configuration may name."""
    _TYPES[name] = build


def build_provider(config: ProviderConfig) -> LlmProvider:
    """The provider for its settings. Raises `ConfigError` for a type that nobody registered."""
    build = _TYPES.get(config.type)
    if build is None:
        raise ConfigError(
            f"provider {config.name}: there is no type {config.type!r}",
            hint=f"use one of {', '.join(sorted(_TYPES))}",
        )
    return build(config)


class ModelRoutes:
    """The providers of a harness, by name."""

    def __init__(self, providers: Iterable[LlmProvider]) -> None:
        self._providers = {provider.name: provider for provider in providers}

    def names(self) -> tuple[str, ...]:
        return tuple(self._providers)

    def provider(self, name: str) -> LlmProvider:
        """Raises `UsageError`, naming the nearest one, for a name that nobody has."""
        provider = self._providers.get(name)
        if provider is not None:
            return provider
        import difflib  # only for the text of this error

        near = difflib.get_close_matches(name, self._providers, 1, 0.5)
        known = ", ".join(sorted(self._providers)) or "none"
        raise UsageError(
            f"there is no provider {name!r}",
            code="NO_ADAPTER",
            hint=f"did you mean {near[0]!r}?" if near else f"providers: {known}",
        )

    def resolve(self, model: str) -> tuple[LlmProvider, str]:
        """Split ``PROVIDER/MODEL``; the model may hold more slashes. Raises `UsageError`."""
        name, slash, rest = model.partition("/")
        if not slash or not name or not rest:
            raise UsageError(
                f"a model is named PROVIDER/MODEL, not {model!r}",
                hint=f"providers: {', '.join(sorted(self._providers))}",
            )
        return self.provider(name), rest
