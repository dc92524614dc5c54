"""Sub-agents that are processes of their own: ``[subagents.NAME]`` of the user's configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsh_actors.config.keys import parse_duration
from dsh_actors.config.tables import refuse_unknown, text_in, texts_in
from dsh_actors.errors import ConfigError

__all__ = ["OutsideAgent", "outside_agents", "outside_rows", "outside_section"]

_KEYS = ("command", "description", "env_keys", "idle_timeout", "model", "sandbox")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IDLE_S = 900.0


@dataclass(frozen=True, slots=True)
class OutsideAgent:
    """``command`` empty: ``dsh run`` itself. ``env_keys`` name variables with keys that the command gets.

    ``idle_timeout_s`` is how long it may write nothing. ``model``: what it uses where nobody asks for
    another. ``sandbox``: whether a command of the user's runs in the sandbox of its parent's commands;
    ``dsh`` has one of its own.
    """

    name: str
    command: tuple[str, ...] = ()
    description: str | None = None
    env_keys: tuple[str, ...] = ()
    idle_timeout_s: float = _IDLE_S
    model: str | None = None
    sandbox: bool = True


def outside_agents(tables: Any, where: str) -> dict[str, OutsideAgent]:
    """By name. Raises `ConfigError` with the place."""
    if not isinstance(tables, dict):
        raise ConfigError(f"{where}: sub-agents are written as [subagents.NAME] tables")
    return {name: _agent(name, table, f"{where}: subagents.{name}") for name, table in tables.items()}


def outside_section(agents: Mapping[str, OutsideAgent]) -> str:
    """What a model is told of them."""
    lines = [f"- {name}: {agent.description or 'an agent'}" for name, agent in sorted(agents.items())]
    return "\n".join(["Other agents that the agent tool can give a task to, as its preset:", *lines])


def outside_rows(agents: Mapping[str, OutsideAgent]) -> Iterator[tuple[str, Any]]:
    """(name, value) of what is set, for people."""
    for name, agent in sorted(agents.items()):
        yield f"subagents.{name}.command", " ".join(agent.command) or "dsh run"
        yield f"subagents.{name}.idle_timeout", agent.idle_timeout_s
        if agent.env_keys:
            yield f"subagents.{name}.env_keys", ", ".join(agent.env_keys)
        if agent.model is not None:
            yield f"subagents.{name}.model", agent.model


def _agent(name: str, table: Any, where: str) -> OutsideAgent:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table")
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name is made of letters, digits, dots, dashes and underscores")
    refuse_unknown(table, _KEYS, where)
    command = texts_in(table, "command", where)
    if command == ():
        raise ConfigError(f"{where}: command is empty; leave it out for dsh itself")
    env_keys = texts_in(table, "env_keys", where) or ()
    for variable in env_keys:
        if not _VARIABLE.fullmatch(variable):
            raise ConfigError(f"{where}: env_keys names variables, which {variable!r} cannot be")
    if env_keys and command is None:
        raise ConfigError(f"{where}: env_keys is for a command; dsh gets the key of its own provider")
    sandbox = table.get("sandbox", True)
    if not isinstance(sandbox, bool):
        raise ConfigError(f"{where}: sandbox must be true or false, not {sandbox!r}")
    return OutsideAgent(
        name,
        command or (),
        text_in(table, "description", where),
        env_keys,
        _idle_s(table, where),
        text_in(table, "model", where),
        sandbox,
    )


def _idle_s(table: Mapping[str, Any], where: str) -> float:
    try:
        return parse_duration(table.get("idle_timeout", _IDLE_S))
    except ValueError as error:
        raise ConfigError(f"{where}: idle_timeout: {error}") from error
