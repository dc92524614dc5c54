"""The layers of the configuration, merged: each value knows where it came from.

defaults < ``$DSH_HOME/config.toml`` < the project's ``.dsh/config.toml`` < environment < options
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dsh_actors.config.addresses import address_secrets, proxy_secrets, shown_address
from dsh_actors.config.home import HOME_HINT, Home, find_home, find_project_file
from dsh_actors.config.keys import KEYS, KEYS_BY_NAME, nearest
from dsh_actors.config.models import ModelSettings
from dsh_actors.config.providers import ProviderSettings, provider_settings, read_credentials
from dsh_actors.config.sections import (
    AgentConfig,
    ApprovalConfig,
    DaemonConfig,
    ModelConfig,
    SessionConfig,
    ToolsConfig,
)
from dsh_actors.config.subagents import OutsideAgent, outside_agents, outside_rows
from dsh_actors.config.toml_file import read_toml
from dsh_actors.config.wire import wire_rows
from dsh_actors.core.options import Limits
from dsh_actors.core.pricing import Price, Rates
from dsh_actors.errors import ConfigError

__all__ = ["Config", "load_config"]

_SECTIONS = sorted({key.section for key in KEYS} | {"providers", "subagents"})


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that was configured. ``home_problem`` is why nothing can be kept.

    ``home`` None: there is none; where there is one with a problem, it may still be read.

    Keys of providers are held apart: `api_key` and `secrets` give them, no representation shows them.
    """

    home: str | None
    home_problem: str | None
    cwd: str
    agent: AgentConfig
    limits: Limits
    model: ModelConfig
    tools: ToolsConfig
    session: SessionConfig
    approval: ApprovalConfig
    daemon: DaemonConfig
    providers: Mapping[str, ProviderSettings] = field(hash=False)
    values: Mapping[str, Any] = field(hash=False, repr=False)
    origins: Mapping[str, str] = field(hash=False, repr=False)
    files: tuple[str, ...] = ()
    subagents: Mapping[str, OutsideAgent] = field(default_factory=dict, hash=False)
    _environment_keys: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    _stored_keys: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    _proxy_passwords: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    _models: dict[str, tuple[ModelSettings, ...]] = field(
        default_factory=dict, init=False, hash=False, repr=False, compare=False
    )

    def api_key(self, provider: str) -> str | None:
        """The key for a provider: from its variable, else from ``credentials.toml``, else None."""
        variable = self.providers[provider].api_key_env if provider in self.providers else None
        return self._environment_keys.get(variable or "") or self._stored_keys.get(provider)

    def key_origin(self, provider: str) -> str | None:
        """Where `api_key` comes from, for people."""
        variable = self.providers[provider].api_key_env
        if variable in self._environment_keys:
            return variable
        return "credentials.toml" if provider in self._stored_keys else None

    def secrets(self) -> dict[str, str]:
        """Every secret value the harness knows, by the name of its variable (or its place in the file)."""
        found = {**self._proxy_passwords, **self._environment_keys}
        found |= {f"credentials.{name}": value for name, value in self._stored_keys.items()}
        for name, provider in self.providers.items():
            for place, value in address_secrets(provider.base_url or ""):
                found[f"providers.{name}.base_url{place}"] = value
            for header, value in provider.wire.secrets().items():
                found[f"providers.{name}.extra_headers.{header}"] = value
        return found

    def secret_variables(self) -> frozenset[str]:
        """The environment variables that child processes must not inherit."""
        return frozenset(p.api_key_env for p in self.providers.values() if p.api_key_env)

    def models(self, provider: str) -> tuple[ModelSettings, ...]:
        """What is known of a provider's models; empty where nothing is."""
        known = self._models.get(provider)
        if known is None and provider in self.providers:
            known = self._models[provider] = self.providers[provider].known_models()
        return known or ()

    def price(self, model: str) -> Rates | None:
        """The rates of ``PROVIDER/MODEL``, None where they are not known."""
        provider, _, model_id = model.partition("/")
        return next((known.price for known in self.models(provider) if known.id == model_id), None)

    def price_at(self, model: str, time_ms: int) -> Price | None:
        """The price of a request to ``PROVIDER/MODEL`` at this time, None where it is not known."""
        rates = self.price(model)
        return None if rates is None else rates.at(time_ms)

    def require_home(self, *, writable: bool = False, or_ephemeral: bool = False) -> str:
        """The home, to read from, or to write to as well. Raises `ConfigError` where that cannot be.

        ``or_ephemeral``: the command at hand has the option that does without.
        """
        if self.home is None or (writable and self.home_problem is not None):
            hint = f"{HOME_HINT}, or use --ephemeral" if or_ephemeral else HOME_HINT
            raise ConfigError(f"no place for sessions: {self.home_problem}", hint=hint)
        return self.home

    def rows(self) -> Iterator[tuple[str, Any, str]]:
        """(name, value, origin) of everything in force, keys as their origin only."""
        yield "home", self.home, self.origins["home"]
        for key in KEYS:
            yield key.name, self.values[key.name], self.origins[key.name]
        for name, provider in sorted(self.providers.items()):
            origin = self.origins[f"providers.{name}"]
            yield f"providers.{name}.type", provider.type, origin
            if provider.base_url is not None:
                yield f"providers.{name}.base_url", shown_address(provider.base_url, "***@"), origin
                yield f"providers.{name}.max_concurrency", provider.max_concurrency, origin
            for row, value, place in wire_rows(provider.wire, provider.type, provider.base_url or "", origin):
                yield f"providers.{name}.{row}", value, place
            if provider.ca_file is not None:
                yield f"providers.{name}.ca_file", provider.ca_file, origin
            if provider.api_key_env is not None:
                found = self.key_origin(name)
                state = "set" if found else "not set"
                yield f"providers.{name}.api_key", state, found or provider.api_key_env
            for model in provider.models:
                yield f"providers.{name}.models", model.id, origin
        for row, value in outside_rows(self.subagents):
            yield row, value, self.origins["subagents"]


def load_config(
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    options: Mapping[str, Any] | None = None,
    project_file: bool = True,
    own_files: bool = True,
) -> Config:
    """Resolve everything once. ``options`` are values by key name, already of the right type.

    ``cwd`` decides which project's file applies; without ``project_file`` none does. Without
    ``own_files`` nothing is read in the home. Raises `ConfigError`; creates nothing.
    """
    env = os.environ if env is None else env
    cwd = os.getcwd() if cwd is None else cwd
    home = find_home(env)
    values = {key.name: key.default for key in KEYS}
    origins = {key.name: "default" for key in KEYS} | {"home": home.origin}
    files, tables, outside, where = [], {}, {}, "config.toml"
    if home.path is not None and own_files:
        where = os.path.join(home.path, "config.toml")
        document = read_toml(where)
        tables = document.get("providers", {})
        if not isinstance(tables, dict):
            raise ConfigError(f"{where}: providers are written as [providers.NAME] tables")
        outside = outside_agents(document.get("subagents", {}), where)
        _merge_file(document, where, values, origins)
        files += [where] if document else []
    project = find_project_file(cwd, home.path) if project_file else None
    if project is not None:
        _merge_file(read_toml(project), project, values, origins, project=True)
        files.append(project)
    _merge_environment(env, values, origins)
    for name, value in (options or {}).items():
        values[name] = KEYS_BY_NAME[name].parse(value, "option")
        origins[name] = "option"
    providers, provider_origins = provider_settings(tables, where, env)
    origins |= {f"providers.{name}": origin for name, origin in provider_origins.items()}
    origins["subagents"] = where
    config = _build(home, cwd, env, values, origins, providers, tuple(files), own_files)
    return replace(config, subagents=outside) if outside else config


def _merge_file(
    document: Mapping[str, Any],
    path: str,
    values: dict[str, Any],
    origins: dict[str, str],
    *,
    project: bool = False,
) -> None:
    for section, table in document.items():
        if section not in _SECTIONS:
            raise ConfigError(f"{path}: unknown section [{section}]; {nearest(section, _SECTIONS)}")
        if section in ("providers", "subagents"):
            if project:
                what = "providers, endpoints or keys" if section == "providers" else "commands of sub-agents"
                raise ConfigError(f"{path}: a project cannot set {what}")
            continue
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {section} must be a table, written as [{section}]")
        for name, value in table.items():
            key = KEYS_BY_NAME.get(f"{section}.{name}")
            if key is None:
                known = [k.name for k in KEYS if k.section == section]
                hint = nearest(f"{section}.{name}", known)
                raise ConfigError(f"{path}: unknown key {section}.{name}; {hint}")
            if project and not key.project:
                raise ConfigError(f"{path}: a project cannot set {key.name}")
            values[key.name] = key.parse(value, path)
            origins[key.name] = path


def _merge_environment(env: Mapping[str, str], values: dict[str, Any], origins: dict[str, str]) -> None:
    for key in KEYS:
        text = env.get(key.variable)
        if text:
            values[key.name] = key.parse(text, key.variable)
            origins[key.name] = key.variable


def _build(
    home: Home,
    cwd: str,
    env: Mapping[str, str],
    values: dict[str, Any],
    origins: dict[str, str],
    providers: dict[str, ProviderSettings],
    files: tuple[str, ...],
    own_files: bool,
) -> Config:
    sections: dict[str, dict[str, Any]] = {}
    for key in KEYS:
        sections.setdefault(key.section, {})[key.field] = values[key.name]
    variables = [provider.api_key_env for provider in providers.values() if provider.api_key_env]
    in_environment = {name: env[name].strip() for name in variables if env.get(name, "").strip()}
    stored = read_credentials(os.path.join(home.path, "credentials.toml")) if home.path and own_files else {}
    return Config(
        home=home.path,
        home_problem=home.problem,
        cwd=cwd,
        agent=AgentConfig(**sections["agent"]),
        limits=Limits(**sections["limits"], max_retries=values["model.max_retries"]),
        model=ModelConfig(**sections["model"]),
        tools=ToolsConfig(**sections["tools"]),
        session=SessionConfig(**sections["session"]),
        approval=ApprovalConfig(**sections["approval"]),
        daemon=DaemonConfig(**sections["daemon"]),
        providers=providers,
        values=values,
        origins=origins,
        files=files,
        _environment_keys=in_environment,
        _stored_keys=stored,
        _proxy_passwords=proxy_secrets(env),
    )
