"""From configuration to providers, each built when it is first asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from dsh_actors.config import Config, ProviderSettings
from dsh_actors.core.messages import ImageRef
from dsh_actors.errors import ConfigError
from dsh_actors.ports import LlmProvider

if TYPE_CHECKING:
    from dsh_actors.adapters.llm.settings import ProviderConfig

__all__ = ["LazyProviders", "provider_config"]


class LazyProviders(Mapping[str, LlmProvider]):
    """Providers by name. ``given`` ones come before those of the configuration.

    ``read_image`` gives them the bytes of images; without it models read text only.
    """

    def __init__(
        self,
        config: Config,
        given: Mapping[str, LlmProvider],
        read_image: Callable[[ImageRef], bytes] | None = None,
    ) -> None:
        self._config = config
        self._read_image = read_image
        self._built = dict(given)

    def __getitem__(self, name: str) -> LlmProvider:
        """Raises `KeyError` for an unknown name, `ConfigError` for settings that cannot be used."""
        if name not in self._built:
            self._built[name] = self._build(self._config.providers[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._built, *self._config.providers]))

    def __len__(self) -> int:
        return len({*self._built, *self._config.providers})

    def __contains__(self, name: object) -> bool:
        return name in self._built or name in self._config.providers

    def _build(self, settings: ProviderSettings) -> LlmProvider:
        if settings.type == "scripted":
            from dsh_actors.testing.scripted import ScriptedProvider

            return ScriptedProvider()
        from dsh_actors.adapters.llm.registry import build_provider

        return build_provider(provider_config(self._config, settings, self._read_image))


def provider_config(
    config: Config, settings: ProviderSettings, read_image: Callable[[ImageRef], bytes] | None = None
) -> ProviderConfig:
    """What an adapter is built from. Raises `ConfigError` for settings that cannot be used."""
    from dsh_actors.adapters.llm.model_facts import facts_of
    from dsh_actors.adapters.llm.settings import ProviderConfig
    from dsh_actors.config.wire import profile_in_force
    from dsh_actors.core.retry import RetryPolicy

    model = config.model
    if settings.ca_file is not None and not os.path.exists(settings.ca_file):
        raise ConfigError(f"provider {settings.name}: there is no ca_file {settings.ca_file}")
    return ProviderConfig(
        name=settings.name,
        type=settings.type,
        base_url=settings.base_url or "",
        api_key=config.api_key(settings.name),
        api_key_env=settings.api_key_env,
        models=tuple(map(facts_of, config.models(settings.name))) or None,
        builtin_url=settings.builtin_url,
        connect_timeout_s=model.connect_timeout_s,
        first_event_timeout_s=model.first_event_timeout_s,
        idle_timeout_s=model.idle_timeout_s,
        queue_timeout_s=model.queue_timeout_s,
        read_image=read_image,
        total_timeout_s=model.total_timeout_s,
        ca_file=settings.ca_file,
        max_concurrency=settings.max_concurrency,
        headers=settings.wire.extra_headers,
        retry_policy=settings.wire.retry or RetryPolicy(),
        profile=profile_in_force(settings.wire, settings.type, settings.base_url or ""),
    )
