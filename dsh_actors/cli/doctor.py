"""`dsh doctor`: what would keep a run from working here. Looks at this machine only; sends nothing."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import click

from dsh_actors import __version__
from dsh_actors.cli.failures import describe_error, one_line
from dsh_actors.cli.places import working_directory
from dsh_actors.config import KEYS, Config, ProviderSettings, load_config, nearest
from dsh_actors.config.profiles import differences
from dsh_actors.config.wire import CHAT_TYPES, profile_in_force
from dsh_actors.core.exit_codes import exit_code_of
from dsh_actors.errors import HarnessError
from dsh_actors.task_spec import require_preset

__all__ = ["COMMAND"]

_PACKAGES = ("pykka", "gevent", "requests", "urllib3", "sseclient-py", "zstandard", "click")
_OTHER_VARIABLES = frozenset({"DSH_HOME", "DSH_DEBUG"})


@dataclass(frozen=True, slots=True)
class Finding:
    """``level`` bad: a run cannot work; note: it works, but something may surprise."""

    level: Literal["ok", "note", "bad"]
    text: str


@click.command("doctor", short_help="Check what would keep a run from working here.")
def COMMAND() -> int:
    """Check this machine: program, home, configuration, keys, sandbox, shell."""
    worst_is_bad = False
    for finding in findings():
        click.echo(one_line(f"{finding.level:<5} {finding.text}"))
        worst_is_bad |= finding.level == "bad"
    return exit_code_of("usage") if worst_is_bad else 0


def findings() -> Iterator[Finding]:
    """Every check's result, in order."""
    yield Finding("ok", f"dsh {__version__} on Python {sys.version.split()[0]}")
    yield from _guarded(_packages)
    try:
        config = load_config(cwd=working_directory(None))
        require_preset(config)
    except HarnessError as error:
        yield Finding("bad", f"configuration: {describe_error(error)}")
        return
    for check in (_home, _model, _variables):
        yield from check(config)
    yield from _guarded(_shell)
    yield from _guarded(_sandbox)


def _guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from check()
    except (OSError, HarnessError) as error:
        yield Finding("bad", f"{check.__name__.strip('_')}: {describe_error(error)}")


def _packages() -> Iterator[Finding]:
    versions = []
    for name in _PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            yield Finding("bad", f"package {name} is not installed")
    yield Finding("ok", ", ".join(versions))


def _home(config: Config) -> Iterator[Finding]:
    if config.home is None:
        yield Finding("bad", f"home: {config.home_problem}; set DSH_HOME, or run with --ephemeral")
        return
    if not os.path.isdir(config.home):
        yield Finding("ok", f"home: {config.home} (made by the first run)")
        return
    if config.home_problem is not None:
        yield Finding("bad", f"home: {config.home_problem}; nothing new can be kept there")
    else:
        yield Finding("ok", f"home: {config.home}")
    mode = os.stat(config.home).st_mode & 0o777
    if mode & 0o077:
        yield Finding("note", f"{config.home} is open to others (mode {mode:o}); chmod 700 {config.home}")


def _model(config: Config) -> Iterator[Finding]:
    name = config.agent.model.partition("/")[0]
    provider = config.providers.get(name)
    if provider is None:
        hint = nearest(name, config.providers)
        yield Finding("bad", f"model {config.agent.model}: no provider {name!r}; {hint}")
        return
    yield Finding("ok", f"model {config.agent.model} ({config.origins['agent.model']})")
    yield from _profile(provider)
    place = config.key_origin(name)
    if place is None and provider.api_key_env is not None:
        yield Finding("bad", f"no key for {name}; set {provider.api_key_env} or try --model scripted/demo")
        return
    if place is not None:
        yield Finding("ok", f"key for {name} from {place}")
    if provider.type != "scripted":
        yield from _route(config, provider)


def _route(config: Config, provider: ProviderSettings) -> Iterator[Finding]:
    """What a run would be refused for before its first request."""
    from dsh_actors.adapters.llm.registry import build_provider
    from dsh_actors.adapters.llm.transport import NETWORK_ERRORS, Transport, network_failure
    from dsh_actors.config.addresses import shown_address
    from dsh_actors.core.chunks import CallConfig
    from dsh_actors.providers import provider_config

    model = config.agent.model.partition("/")[2]
    try:
        settings = provider_config(config, provider)
        build_provider(settings).prepare(CallConfig(provider.name, model))
        Transport(settings, settings.base_url, {})  # reads certificates and proxies, connects to nothing
    except HarnessError as error:
        yield Finding("bad", f"model {config.agent.model}: {describe_error(error)}")
    except NETWORK_ERRORS as error:
        failure = network_failure(error, shown_address(provider.base_url or ""))
        yield Finding("bad", f"model {config.agent.model}: {failure.message}")


def _profile(provider: ProviderSettings) -> Iterator[Finding]:
    if provider.type not in CHAT_TYPES:
        return
    profile = profile_in_force(provider.wire, provider.type, provider.base_url or "")
    switches = [f"{name} {_switch(value)}" for name, value in differences(profile).items()]
    switches += [f"extra_body {name}" for name in profile.extra_body]
    said = ", ".join(switches) or "nothing special"
    yield Finding("ok", f"profile {profile.name} for {provider.name}: {said}")


def _switch(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"for {len(value)} codes" if isinstance(value, Mapping) else str(value)


def _variables(config: Config) -> Iterator[Finding]:
    known = _OTHER_VARIABLES | {key.variable for key in KEYS}
    for name in sorted(os.environ):
        if name.startswith("DSH_") and name not in known:
            yield Finding("note", f"{name} means nothing to dsh; {nearest(name, known)}")
    for path in config.files:
        yield Finding("ok", f"configuration from {path}")


def _shell() -> Iterator[Finding]:
    shell = shutil.which("bash") or shutil.which("sh")
    yield Finding("ok", f"shell {shell}") if shell else Finding("bad", "no shell (bash or sh) on PATH")


def _sandbox() -> Iterator[Finding]:
    from dsh_actors.adapters.tools.sandbox import probe_sandbox

    kind = probe_sandbox()
    if kind is None:
        yield Finding("note", "no sandbox works here: commands run with your rights")
    else:
        yield Finding("ok", f"sandbox {kind}")
