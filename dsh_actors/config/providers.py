"""Providers: the built-in ones, those of ``[providers.NAME]``, and where their keys come from.

Settings hold the name of the variable with the key, never the key.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from dsh_actors.config.keys import nearest
from dsh_actors.config.toml_file import read_toml
from dsh_actors.config.wire import WIRE_KEYS, WireSettings, wire_settings
from dsh_actors.core.outcome import Price
from dsh_actors.errors import ConfigError

__all__ = ["BUILT_IN", "ModelSettings", "ProviderSettings", "provider_settings", "read_credentials"]

DEFAULT_CONCURRENCY = 256


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """A model as the configuration describes it. Sizes are tokens; None is not known."""

    id: str
    context_window: int | None = None
    max_output: int | None = None
    price: Price | None = None
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProviderSettings:
    """One route to a vendor. No ``models``: the adapter's own catalogue, or none, applies.

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
_MODEL_KEYS = ("id", "context_window", "max_output", "price", "capabilities")
_PRICE_KEYS = ("input", "output", "cache_read", "cache_write", "currency")


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
    if not name or "/" in name:
        raise ConfigError(f"{where}: a provider's name must not be empty or contain a slash")
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
        _text(table, "api_key_env", where) or base.api_key_env,
        tuple(_model(entry, f"{where}.models[{index}]") for index, entry in enumerate(models)),
        builtin_url=base.builtin_url and "base_url" not in table,
        max_concurrency=_concurrency(table, where),
        ca_file=_file(table, "ca_file", where),
        wire=wire_settings(table, kind, where),
    )


def _concurrency(table: Mapping[str, Any], where: str) -> int:
    value = table.get("max_concurrency", DEFAULT_CONCURRENCY)
    if type(value) is not int or value < 1:
        raise ConfigError(f"{where}: max_concurrency must be a whole number of requests, not {value!r}")
    return value


def _file(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = _text(table, key, where)
    if value is None:
        return None
    path = os.path.expanduser(value)
    if not os.path.isabs(path):
        raise ConfigError(f"{where}: {key} must be an absolute path, not {value!r}")
    return path


def _model(entry: Any, where: str) -> ModelSettings:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} must be a table")
    _refuse_unknown(entry, _MODEL_KEYS, where)
    model = _text(entry, "id", where)
    if model is None:
        raise ConfigError(f"{where}: id is missing")
    capabilities = entry.get("capabilities", [])
    if not isinstance(capabilities, list) or not all(isinstance(word, str) for word in capabilities):
        raise ConfigError(f"{where}: capabilities must be a list of texts")
    return ModelSettings(
        model,
        _count(entry, "context_window", where),
        _count(entry, "max_output", where),
        _price(entry["price"], f"{where}.price") if "price" in entry else None,
        tuple(capabilities),
    )


def _price(table: Any, where: str) -> Price:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table such as {{ input = 0.5, output = 2 }}")
    _refuse_unknown(table, _PRICE_KEYS, where)
    amounts: dict[str, float] = {}
    for key in ("input", "output", "cache_read", "cache_write"):
        value = table.get(key)
        if value is None and key in ("input", "output"):
            raise ConfigError(f"{where}: {key} is missing")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise ConfigError(f"{where}: {key} must be an amount for a million tokens, not {value!r}")
        amounts[key] = float(value)
    return Price(**amounts, currency=_text(table, "currency", where) or "USD")


def _count(table: Mapping[str, Any], key: str, where: str) -> int | None:
    value = table.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigError(f"{where}: {key} must be a whole number of tokens, not {value!r}")
    return value


def _text(table: Mapping[str, Any], key: str, where: str) -> str | None:
    value = table.get(key)
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise ConfigError(f"{where}: {key} must be a text, not {value!r}")
    return value


def _url(value: Any, where: str) -> str:
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, TypeError, AttributeError):
        good = False
    if not good:
        raise ConfigError(f"{where}: the base URL must look like https://host/v1, not {value!r}")
    return str(value).rstrip("/")


def _refuse_unknown(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; {nearest(key, known)}")


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
