"""How a provider is talked to, as ``[providers.NAME]`` says: profile, switches, headers, body, retries.

The table of profiles is read only where one is named or looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dsh_actors.config.keys import nearest, parse_duration
from dsh_actors.core.retry import RetryPolicy
from dsh_actors.errors import ConfigError

if TYPE_CHECKING:
    from dsh_actors.config.profiles import Profile

__all__ = [
    "CHAT_TYPES",
    "WIRE_KEYS",
    "WireSettings",
    "profile_in_force",
    "wire_rows",
    "wire_settings",
]

WIRE_KEYS = ("profile", "quirks", "extra_body", "extra_headers", "retry")

CHAT_TYPES = ("deepseek", "openai_compatible")
"""The types of providers that have a profile."""

_ANY_TYPE = ("extra_headers", "retry")
"""What every server on the network has."""

_OWN_MEMBERS = (
    *("model", "messages", "stream", "tools"),
    *("max_tokens", "max_completion_tokens", "temperature", "stop"),
)
"""Members that have a setting of their own, or that a request is nothing without."""

_DELAYS = ("initial_delay", "max_delay", "max_retry_after")
_RETRY_KEYS = ("max_retries", *_DELAYS, "jitter")

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "accept-encoding", "connection"}
)
_SECRET_HEADER = re.compile(r"auth|key|token|secret|cookie|pass|cred|session|sign", re.IGNORECASE)
_SCHEME = re.compile(r"(?:Basic|Bearer|Token) +(?=\S+$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WireSettings:
    """What was set. ``profile`` None leaves it to the base URL; ``retry`` None to the defaults.

    Headers may hold secrets and are never shown.
    """

    profile: str | None = None
    quirks: Mapping[str, Any] = field(default_factory=dict, hash=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)
    extra_headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    retry: RetryPolicy | None = None

    def secrets(self) -> dict[str, str]:
        """The values of headers that are named like a secret, by header, without a word such as Bearer."""
        return {
            name: _SCHEME.sub("", value)
            for name, value in self.extra_headers.items()
            if _SECRET_HEADER.search(name)
        }


def wire_settings(table: Mapping[str, Any], kind: str, where: str) -> WireSettings:
    """Read the `WIRE_KEYS` of one provider's table. Raises `ConfigError`."""
    given = [key for key in WIRE_KEYS if key in table]
    if not given:
        return WireSettings()
    usable = WIRE_KEYS if kind in CHAT_TYPES else () if kind == "scripted" else _ANY_TYPE
    wrong = next((key for key in given if key not in usable), None)
    if wrong is not None:
        raise ConfigError(f"{where}: {wrong} means nothing for the type {kind}")
    for key in given:
        if key != "profile" and not isinstance(table[key], dict):
            place = where.rpartition(" ")[2]
            raise ConfigError(f"{where}: {key} must be a table, written as [{place}.{key}]")
    retry = _retry(table["retry"], f"{where}.retry") if "retry" in table else None
    settings = WireSettings(
        table.get("profile"),
        table.get("quirks", {}),
        _body(table.get("extra_body", {}), f"{where}.extra_body"),
        _headers(table.get("extra_headers", {}), f"{where}.extra_headers"),
        retry,
    )
    try:
        profile_in_force(settings, kind, "")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from error
    return settings


def profile_in_force(settings: WireSettings, kind: str, base_url: str) -> Profile:
    """The profile with all that was set about it. Raises `ConfigError`."""
    from dataclasses import replace

    from dsh_actors.config.profiles import changed_profile, find_profile

    name = settings.profile
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"profile must be a text, not {name!r}")
    profile = find_profile("deepseek" if name is None and kind == "deepseek" else name, base_url)
    profile = changed_profile(profile, settings.quirks)
    if not _may_set(profile.auth_header):
        raise ConfigError(f"quirks: the key cannot stand in the header {profile.auth_header!r}")
    return replace(profile, extra_body={**profile.extra_body, **settings.extra_body})


def wire_rows(
    settings: WireSettings, kind: str, base_url: str, origin: str
) -> Iterator[tuple[str, Any, str]]:
    """(name, value, origin) of what is in force; of bodies and headers only the names."""
    if kind in CHAT_TYPES:
        guessed = "by type" if kind == "deepseek" else "by base_url"
        profile = profile_in_force(settings, kind, base_url)
        yield "profile", profile.name, guessed if settings.profile is None else origin
    for name, value in settings.quirks.items():
        yield f"quirks.{name}", value, origin
    for name in settings.extra_body:
        yield f"extra_body.{name}", "set", origin
    for name in settings.extra_headers:
        yield f"extra_headers.{name}", "set", origin
    if settings.retry is not None:
        yield "retry.max_retries", settings.retry.max_retries, origin
        for name in _DELAYS:
            yield f"retry.{name}", getattr(settings.retry, f"{name}_ms") / 1000, origin
        yield "retry.jitter", settings.retry.jitter_ratio, origin


def _body(table: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    for name in table:
        if name in _OWN_MEMBERS:
            raise ConfigError(f"{where}: {name} cannot be set here")
    try:
        json.dumps(table, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: a value has no JSON form: {error}") from error
    return table


def _may_set(header: str) -> bool:
    return _HEADER_NAME.fullmatch(header) is not None and header.lower() not in _OWN_HEADERS


def _headers(table: Mapping[str, Any], where: str) -> Mapping[str, str]:
    for name, value in table.items():
        if not _may_set(name):
            raise ConfigError(f"{where}: the header {name!r} cannot be set")
        # The value stays unsaid: it may be a secret.
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(f"{where}: the value of {name} must be a text of plain ASCII characters")
    return table


def _retry(table: Mapping[str, Any], where: str) -> RetryPolicy:
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in _RETRY_KEYS:
            raise ConfigError(f"{where}: unknown key {name!r}; {nearest(name, _RETRY_KEYS)}")
        if name == "max_retries":
            if type(value) is not int:
                raise ConfigError(f"{where}: {name} must be a whole number, not {value!r}")
            values[name] = value
        elif name == "jitter":
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ConfigError(f"{where}: {name} must be a number from 0 to 1, not {value!r}")
            values["jitter_ratio"] = float(value)
        else:
            try:
                values[f"{name}_ms"] = round(parse_duration(value) * 1000)
            except ValueError as error:
                raise ConfigError(f"{where}: {name}: {error}") from error
    plain = RetryPolicy()
    first = values.get("initial_delay_ms", plain.initial_delay_ms)
    longest = values.get("max_delay_ms", plain.max_delay_ms)
    if first > longest:
        texts = f"initial_delay ({first / 1000:g} s) is longer than max_delay ({longest / 1000:g} s)"
        raise ConfigError(f"{where}: {texts}")
    try:
        return RetryPolicy(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}") from error
