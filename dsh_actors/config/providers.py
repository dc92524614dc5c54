"""Providers: the built-in ones, those of ``[providers.NAME]``, and where their keys come from.

Settings hold the name of the variable with the key, never the key.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from dsh_actors.config.addresses import is_web_address
from dsh_actors.config.models import ModelSettings, catalogue, merged, model_in
from dsh_actors.config.tables import refuse_unknown as _refuse_unknown
from dsh_actors.config.tables import text_in as _text
from dsh_actors.config.toml_file import read_toml
from dsh_actors.config.wire import WIRE_KEYS, WireSettings, wire_settings
from dsh_actors.core.options import DEFAULT_CONCURRENCY
from dsh_actors.errors import ConfigError

__all__ = ["BUILT_IN", "ModelSettings", "ProviderSettings", "provider_settings", "read_credentials"]

MAX_CONCURRENCY = 65_535
"""There are no more ports to connect from."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_ENDPOINTS = ("/chat/completions", "/messages")
"""What the adapters add to a base URL by themselves."""


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """One route to a vendor. ``models`` are those of the configuration; `known_models` has the others too.

    ``api_key_env`` None: no variable holds its key; without a stored one it needs none.
    ``max_concurrency`` bounds the requests of this process at once. ``ca_file`` is the absolute path of the
    certificates to check the server's against, None for those of the environment.
    The base URL may hold a password. ``builtin_url``: it is the vendor's own, not one the user set.
    ``wire``: what was set about its profile, headers, body and retries.
    """

    name: str
    type: str
    base_url: str | None = field(default=None, repr=False)
    api_key_env: str | None = None
    models: tuple[ModelSettings, ...] = ()
    builtin_url: bool = False
    max_concurrency: int = DEFAULT_CONCURRENCY
    ca_file: str | None = None
    wire: WireSettings = field(default_factory=WireSettings)

    def known_models(self) -> tuple[ModelSettings, ...]:
        """The catalogue's models with those of the configuration over them, field by field.

        The prices of the catalogue hold for the vendor's own name, also behind a base URL of the
        user's; what another provider of its type charges is not known.
        """
        known = catalogue(self.type)
        if self.name not in BUILT_IN or BUILT_IN[self.name].type != self.type:
            known = tuple(replace(model, price=None) for model in known)
        return merged(known, self.models)


BUILT_IN: Mapping[str, ProviderSettings] = {
    "anthropic": ProviderSettings(
        "anthropic", "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", builtin_url=True
    ),
    "deepseek": ProviderSettings(
        "deepseek", "deepseek", "https://api.deepseek.com", "DEEPSEEK_API_KEY", builtin_url=True
    ),
    "openai": ProviderSettings(
        "openai", "openai_compatible", "https://api.openai.com/v1", "OPENAI_API_KEY", builtin_url=True
    ),
    "scripted": ProviderSettings("scripted", "scripted"),
}

_PROVIDER_KEYS = ("type", "base_url", "api_key_env", "models", "max_concurrency", "ca_file", *WIRE_KEYS)


def provider_settings(
    tables: Mapping[str, Any], where: str, env: Mapping[str, str]
) -> tuple[dict[str, ProviderSettings], dict[str, str]]:
    """The providers in force by name, and the origin of each base URL. Raises `ConfigError`."""
    providers = dict(BUILT_IN)
    origins = dict.fromkeys(BUILT_IN, "default")
    for name, table in tables.items():
        providers[name] = _provider(name, table, f"{where}: providers.{name}")
        origins[name] = where
    for name in BUILT_IN:
        variable = f"{name.upper()}_BASE_URL"
        url = env.get(variable)
        if url and providers[name].base_url is not None:
            providers[name] = replace(providers[name], base_url=_url(url, variable), builtin_url=False)
            origins[name] = variable
    return providers, origins


def _provider(name: str, table: Any, where: str) -> ProviderSettings:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    if not name or "/" in name or not name.isprintable() or " " in name:
        raise ConfigError(f"{where}: a provider's name must not be empty or contain a slash or a blank")
    _refuse_unknown(table, _PROVIDER_KEYS, where)
    base = BUILT_IN.get(name) or ProviderSettings(name, "openai_compatible")
    url = table.get("base_url", base.base_url)
    kind = _text(table, "type", where) or base.type
    if url is None and kind in BUILT_IN:
        url = BUILT_IN[kind].base_url
    if url is None and kind == "openai_compatible":
        raise ConfigError(f"{where}: base_url is missing")
    models = table.get("models", [])
    if not isinstance(models, list):
        raise ConfigError(f"{where}: models are written as [[providers.{name}.models]] tables")
    return ProviderSettings(
        name,
        kind,
        None if url is None else _url(url, where),
        _variable(table, "api_key_env", where) or base.api_key_env,
        _models(models, where),
        builtin_url=base.builtin_url and "base_url" not in table,
        max_concurrency=_concurrency(table, where),
        ca_file=_file(table, "ca_file", where),
        wire=wire_settings(table, kind, where),
    )


def _concurrency(table: Mapping[str, Any], where: str) -> int:
    value = table.get("max_concurrency", DEFAULT_CONCURRENCY)
    if type(value) is not int or not 1 <= value <= MAX_CONCURRENCY:
        bounds = f"a whole number of requests up to {MAX_CONCURRENCY}"
        raise ConfigError(f"{where}: max_concurrency must be {bounds}, not {value!r}")
    return value


def _models(entries: list[Any], where: str) -> tuple[ModelSettings, ...]:
    models = tuple(model_in(entry, f"{where}.models[{index}]") for index, entry in enumerate(entries))
    seen: set[str] = set()
    for index, model in enumerate(models):
        if model.id in seen:
            raise ConfigError(f"{where}.models[{index}]: {model.id!r} has a table already")
        seen.add(model.id)
    return models


def _variable(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = _text(table, key, where)
    if value is not None and not _VARIABLE.fullmatch(value):
        # The value stays unsaid: it may be the key itself.
        raise ConfigError(f"{where}: {key} is the name of a variable, such as MY_API_KEY, not a key")
    return value


def _file(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = _text(table, key, where)
    if value is None:
        return None
    path = os.path.expanduser(value)
    if not os.path.isabs(path) or "\0" in path:
        raise ConfigError(f"{where}: {key} must be an absolute path, not {value!r}")
    return path


def _url(value: Any, where: str) -> str:
    if not is_web_address(value):
        # What may hold a password stays unsaid.
        said = "" if isinstance(value, str) and ("@" in value or "?" in value) else f", not {value!r}"
        raise ConfigError(f"{where}: the base URL must look like https://host/v1{said}")
    path = urlsplit(value).path.rstrip("/")
    added = next((end for end in _ENDPOINTS if path.endswith(end)), None)
    if added is not None:
        raise ConfigError(f"{where}: the base URL must end before {added}, which is added to it")
    return str(value).rstrip("/")


def read_credentials(path: str) -> dict[str, str]:
    """Keys by provider name from ``[NAME] api_key = "…"``; an absent file is empty. Raises `ConfigError`."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(f"{path} can be read by others", hint=f"chmod 600 {path}")
    keys: dict[str, str] = {}
    for name, table in read_toml(path, secret=True).items():
        value = table.get("api_key") if isinstance(table, dict) else None
        if not isinstance(value, str) or len(table) != 1:
            raise ConfigError(f'{path}: write each key as [{name}] and api_key = "…" below it')
        if value.strip():
            keys[name] = value.strip()
    return keys
