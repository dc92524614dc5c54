"""A task as JSON, as a line of a batch or a request to the daemon holds it: checked, and as agent options.

The keys are those of `dsh run`'s options; what is left out comes from the configuration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dsh_actors.config import Config
from dsh_actors.config.keys import KEYS_BY_NAME, nearest
from dsh_actors.config.toml_file import read_toml
from dsh_actors.core.ids import SessionId
from dsh_actors.core.options import DEFAULT_SCHEMA_RETRIES, AgentOptions, Limits
from dsh_actors.core.policy import POLICY_NAMES, ApprovalPolicy
from dsh_actors.core.text import JsonObject, is_well_formed, shorten
from dsh_actors.errors import (
    ConfigError,
    SessionCorrupt,
    SessionNotFound,
    SessionUnsupported,
    UsageError,
)
from dsh_actors.ports import SessionStorage

__all__ = [
    "LIMIT_NAMES",
    "MAX_ID_LENGTH",
    "TaskSpec",
    "approval_policy",
    "chosen_session_id",
    "fork_point",
    "require_preset",
    "session_exists",
]

MAX_ID_LENGTH = 200
_FORK_POINT = re.compile(r"(.+)@(-?\d{1,18})", re.DOTALL)

_KEYS = {
    "model": "agent.model",
    "reasoning": "agent.reasoning",
    "max_output": "agent.max_output",
    "approve": "approval.policy",
    "sandbox": "approval.sandbox",
}
_TEXTS = ("prompt", "cwd", "system_prompt", "append_system_prompt", "session_id", "resume", "fork")
_LISTS = ("tools", "deny_tools", "add_dirs")
LIMIT_NAMES = (*(name[7:] for name in KEYS_BY_NAME if name.startswith("limits.")), "max_retries")
"""The limits of a task, as its options are called."""

_KNOWN = (*_KEYS, *_TEXTS, *_LISTS, "ephemeral", "limits", "schema", "schema_retries", "id")


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What was asked for, well-formed but not yet checked against the world; None is not given.

    ``fork`` is ``ID`` or ``ID@SEQ``; ``keys`` are configuration keys that the task sets, ``name`` is the
    task's own id in a batch.
    """

    name: str | None = None
    prompt: str | None = None
    cwd: str | None = None
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    session_id: str | None = None
    resume: str | None = None
    fork: str | None = None
    tools: tuple[str, ...] | None = None
    deny_tools: tuple[str, ...] = ()
    add_dirs: tuple[str, ...] = ()
    ephemeral: bool = False
    schema: JsonObject | None = field(default=None, hash=False)
    schema_retries: int | None = None
    keys: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @staticmethod
    def from_json(given: Any, where: str) -> TaskSpec:
        """Raises `UsageError` that names ``where`` and the key for anything that is not as it should be."""
        if not isinstance(given, dict):
            raise UsageError(f"{where}: a task is a JSON object, not {_kind(given)}")
        for key in given:
            if key not in _KNOWN:
                is_limit = key in LIMIT_NAMES
                hint = f'it stands in "limits": {{"{key}": …}}' if is_limit else nearest(key, _KNOWN)
                raise UsageError(f"{where}: unknown key {shorten(key, 60)!r}", hint=hint)
        # A null is as good as a key that is not there.
        values = {key: value for key, value in given.items() if value is not None}
        found: dict[str, Any] = {name: _text(values[name], name, where) for name in _TEXTS if name in values}
        for name in _LISTS:
            if name in values:
                found[name] = _texts(values[name], name, where)
        for name in ("session_id", "resume"):
            if name in found:
                chosen_session_id(found[name])
        _require_one_origin(found, where)
        return TaskSpec(
            name=_name(values.get("id"), where),
            ephemeral=_flag(values.get("ephemeral", False), "ephemeral", where),
            schema=_object(values["schema"], "schema", where) if "schema" in values else None,
            schema_retries=_count(values.get("schema_retries"), "schema_retries", where),
            keys=_config_keys(values, where),
            **found,
        )

    def options(self, config: Config, *, model: str | None = None) -> AgentOptions:
        """As options of an agent. ``config`` gives what the task does not, ``model`` overrides its model.

        ``cwd`` and ``add_dirs`` are taken from the directory of ``config`` where they are relative. An
        empty model, for a session that goes on, is the one that it used last. Raises `UsageError` for
        files that do not exist and `ConfigError` for a preset.
        """
        require_preset(config)

        def value(key: str, default: Any) -> Any:
            return self.keys.get(key, default)

        goes_on = self.resume is not None or self.fork is not None
        default_model = "" if goes_on else config.agent.model
        return AgentOptions(
            model=value("agent.model", default_model) if model is None else model,
            cwd=_below(config.cwd, self.cwd or "."),
            session_id=self.session_id,
            reasoning=value("agent.reasoning", config.agent.reasoning),
            max_output=value("agent.max_output", config.agent.max_output),
            system_prompt=self.system_prompt,
            append_system_prompt=self.append_system_prompt,
            tools=self.tools,
            deny_tools=self.deny_tools,
            add_dirs=tuple(_below(config.cwd, folder) for folder in self.add_dirs),
            policy=approval_policy(value("approval.policy", config.approval.policy), config.cwd),
            limits=_limits(config.limits, self.keys),
            sandbox=value("approval.sandbox", config.approval.sandbox),
            ephemeral=self.ephemeral,
            schema=self.schema,
            schema_retries=DEFAULT_SCHEMA_RETRIES if self.schema_retries is None else self.schema_retries,
        )


def require_preset(config: Config) -> None:
    """Raises `ConfigError` for a preset, as the program has none: only Python code makes them."""
    if config.agent.preset is not None:
        raise ConfigError(
            f"{config.origins['agent.preset']}: there is no preset {config.agent.preset!r} in dsh",
            hint="leave agent.preset out; presets are made in Python, with Harness.preset",
        )


def approval_policy(word: str, base: str | None = None) -> ApprovalPolicy:
    """The policy of a name, or of a rule file, which is looked for from ``base`` where it is relative."""
    if word in POLICY_NAMES:
        return ApprovalPolicy(word)  # type: ignore[arg-type]  # one of the literals, checked above
    path = os.path.expanduser(word)
    if base is not None:
        path = os.path.join(base, path)
    if not os.path.isfile(path):
        known = ", ".join(POLICY_NAMES)
        raise UsageError(f"--approve: {word!r} is neither a policy ({known}) nor a rule file")
    return ApprovalPolicy.from_toml(read_toml(path), path)


def chosen_session_id(text: str, hint: str | None = None) -> SessionId:
    """An id that somebody gave. Raises `UsageError` for one that could not be said or stored."""
    if not (text.isprintable() and text.strip() and len(text) <= MAX_ID_LENGTH):
        raise UsageError(f"{shorten(text, MAX_ID_LENGTH)!r} cannot be the id of a session", hint=hint)
    return SessionId(text)


def _require_one_origin(found: Mapping[str, Any], where: str) -> None:
    origins = [name for name in ("resume", "fork") if name in found]
    if len(origins) > 1:
        raise UsageError(f"{where}: give resume or fork, not both")
    if found.get("resume") not in (None, found.get("session_id", found.get("resume"))):
        raise UsageError(f"{where}: resume and session_id name different sessions")


def _config_keys(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    given = {key: values[name] for name, key in _KEYS.items() if name in values}
    keys = {key: KEYS_BY_NAME[key].parse(value, where) for key, value in given.items()}
    limits = _object(values.get("limits", {}), "limits", where)
    for name, value in limits.items():
        if name not in LIMIT_NAMES:
            raise UsageError(f"{where}: unknown limit {shorten(name, 60)!r}", hint=nearest(name, LIMIT_NAMES))
        key = "model.max_retries" if name == "max_retries" else f"limits.{name}"
        if value is not None:
            keys[key] = KEYS_BY_NAME[key].parse(value, where)
    return keys


def _limits(limits: Limits, keys: Mapping[str, Any]) -> Limits:
    changes = {}
    for name in LIMIT_NAMES:
        key = "model.max_retries" if name == "max_retries" else f"limits.{name}"
        if key in keys:
            changes["max_retries" if name == "max_retries" else KEYS_BY_NAME[key].field] = keys[key]
    return replace(limits, **changes)


def _below(base: str, path: str) -> str:
    return os.path.normpath(os.path.join(base, os.path.expanduser(path)))


def _name(value: Any, where: str) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None:
        return None
    text = _text(value, "id", where)
    if not (text.strip() and text.isprintable() and len(text) <= MAX_ID_LENGTH):
        raise UsageError(f"{where}: id is a line of 1 to {MAX_ID_LENGTH} characters")
    return text


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where}: {name} is a text, not {_kind(value)}")
    if not is_well_formed(value):
        raise UsageError(f"{where}: {name} is not well-formed Unicode")
    return value


def _texts(value: Any, name: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise UsageError(f"{where}: {name} is a list of texts, not {_kind(value)}")
    return tuple(_text(each, name, where) for each in value)


def _flag(value: Any, name: str, where: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{where}: {name} is true or false, not {_kind(value)}")
    return value


def _count(value: Any, name: str, where: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise UsageError(f"{where}: {name} is a whole number from 0 on")
    return value


def _object(value: Any, name: str, where: str) -> JsonObject:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {name} is a JSON object, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def session_exists(storage: SessionStorage, session_id: SessionId) -> bool:
    """Whether the id is taken; by a damaged session too. Raises `SessionError` where that cannot be told."""
    try:
        storage.header(session_id)
    except SessionNotFound:
        return False
    except (SessionCorrupt, SessionUnsupported):
        return True
    return True


def fork_point(storage: SessionStorage, text: str) -> tuple[SessionId, int | None]:
    """The session and the last event to copy of ``ID[@SEQ]``, None for all of it.

    An id that itself ends in ``@NUMBER`` goes before.
    """
    found = _FORK_POINT.fullmatch(text)
    if found is None or session_exists(storage, SessionId(text)):
        return SessionId(text), None
    return SessionId(found[1]), int(found[2])
