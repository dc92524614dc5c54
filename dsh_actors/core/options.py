"""What one agent is asked to be: options and limits, resolved and frozen."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

from dsh_actors.core.events import SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.policy import POLICY_MODES, ApprovalPolicy
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import UsageError

__all__ = [
    "DEFAULT_CONCURRENCY",
    "DEFAULT_SCHEMA_RETRIES",
    "GRACE_S",
    "SANDBOX_MODES",
    "TITLE_MODES",
    "AgentOptions",
    "LimitBase",
    "Limits",
    "TitlePolicy",
    "require_sound",
]

DEFAULT_CONCURRENCY = 256
"""Requests at once to one provider, where nobody says otherwise."""

DEFAULT_SCHEMA_RETRIES = 2
"""How often an answer that does not fit its schema is sent back."""

GRACE_S = 5.5
"""From the wish to stop a run to its end: children have 5 s after TERM, the rest is for the last words."""

SANDBOX_MODES = ("auto", "require", "off")
"""Whether commands run in a sandbox: where one works, always, never."""

TITLE_MODES = ("fallback", "first-prompt", "all-prompts")
"""Where titles come from: the first words, a model asked once, or a model asked at each prompt."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Ends of a run; ``None`` is no limit. Tokens are as reported; cost is in the price's currency.

    What is spent counts for an agent and everything below it. ``max_agents``: sub-agents in all;
    ``max_concurrent_agents``: at work at once; ``max_depth``: how deep they may be nested, 0 forbids them.
    """

    max_steps: int | None = None
    max_tool_calls: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    timeout_s: float | None = None
    deadline_s: float | None = None
    tool_timeout_s: float = 120.0
    max_retries: int = 5
    max_agents: int = 100
    max_concurrent_agents: int = 8
    max_depth: int = 3

    def tightened(self, other: Limits) -> Limits:
        """Of each limit the one that is reached first; what ``other`` leaves at its default says nothing."""
        lowest = {}
        for each in fields(self):
            own, asked = getattr(self, each.name), getattr(other, each.name)
            lowest[each.name] = own
            if asked != each.default and (own is None or asked < own):
                lowest[each.name] = asked
        return Limits(**lowest)


@dataclass(frozen=True, slots=True)
class LimitBase:
    """Where the session stood when the limits began to count; cost (None is not known) and sub-agents since.

    An agent that is stopped and resumed under the same limits goes on with what it had left. What its
    sub-agents used counts as if it had used it earlier: numbers may be negative.
    """

    steps: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost: float | None = 0.0
    agents: int = 0


@dataclass(frozen=True, slots=True)
class TitlePolicy:
    """``mode`` is one of `TITLE_MODES`; ``route``: provider and model of titles, None for the session's."""

    mode: str = "fallback"
    route: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How an agent is created or resumed.

    ``model`` is ``PROVIDER/MODEL``. ``cwd`` is absolute. ``session_id`` None lets the harness choose.
    ``system_prompt`` replaces the built-in persona; ``append_system_prompt`` follows it.
    ``tools`` None means all built-in tools; ``deny_tools`` is taken away from them.
    ``schema`` is a JSON Schema that the final answer must fit; an answer that does not is sent back at most
    ``schema_retries`` times a turn. ``ephemeral`` keeps nothing on disk. ``sandbox`` is ``auto``,
    ``require`` or ``off``. ``depth`` is how many agents stand above this one, and
    ``parent`` the nearest of them where that is in another process. ``limit_base`` None lets the limits
    count from now on.
    """

    model: str
    cwd: str
    session_id: str | None = None
    reasoning: str | None = None
    max_output: int | None = None
    system_prompt: str | None = None
    append_system_prompt: str | None = None
    tools: tuple[str, ...] | None = None
    deny_tools: tuple[str, ...] = ()
    add_dirs: tuple[str, ...] = ()
    policy: ApprovalPolicy = field(default_factory=ApprovalPolicy)
    limits: Limits = field(default_factory=Limits)
    sandbox: str = "auto"
    ephemeral: bool = False
    preset: str | None = None
    depth: int = 0
    parent: SessionId | None = None
    schema: JsonObject | None = field(default=None, hash=False)
    schema_retries: int = DEFAULT_SCHEMA_RETRIES
    limit_base: LimitBase | None = None

    def header(self, session_id: SessionId, now_ms: int) -> SessionHeader:
        """Of a session that begins with these options."""
        return SessionHeader(
            session_id,
            now_ms,
            self.cwd,
            parent_session=self.parent,
            origin="subagent" if self.depth else None,
            delegation_depth=self.depth,
            agent_preset=self.preset,
        )


_TEXTS = ("model", "cwd")
_MAYBE_TEXTS = ("session_id", "reasoning", "system_prompt", "append_system_prompt", "preset", "parent")
_NAMES = ("tools", "deny_tools", "add_dirs")
_MAYBE_NONE = ("max_steps", "max_tool_calls", "max_tokens", "max_cost", "timeout_s", "deadline_s")
_SECONDS_OR_MONEY = ("max_cost", "timeout_s", "deadline_s", "tool_timeout_s")


def require_sound(options: AgentOptions) -> None:
    """Refuse values of a wrong kind, which a program may give: they would fail late, or mean too much.

    Raises `UsageError` that names the first one.
    """
    for problem in _faults(options):
        raise UsageError(problem)


def _faults(options: AgentOptions) -> Iterator[str]:
    for name in (*_TEXTS, *_MAYBE_TEXTS):
        value = getattr(options, name)
        if not isinstance(value, str) and (value is not None or name in _TEXTS):
            yield f"{name} is a text, not {value!r}"
    for name in _NAMES:
        names: Any = getattr(options, name)
        if names is None and name == "tools":
            continue
        if not isinstance(names, tuple | list | set | frozenset) or not all(type(n) is str for n in names):
            yield f"{name} is a list of texts, not {names!r}"
    if options.sandbox not in SANDBOX_MODES:
        yield f"sandbox is one of {', '.join(SANDBOX_MODES)}, not {options.sandbox!r}"
    if not isinstance(options.policy, ApprovalPolicy) or options.policy.mode not in POLICY_MODES:
        yield f"policy is an ApprovalPolicy, as ApprovalPolicy('read-only'), not {options.policy!r}"
    if type(options.ephemeral) is not bool:
        yield f"ephemeral is True or False, not {options.ephemeral!r}"
    if type(options.schema_retries) is not int or options.schema_retries < 0:
        yield f"schema_retries is a whole number from 0 on, not {options.schema_retries!r}"
    if options.max_output is not None and (type(options.max_output) is not int or options.max_output < 1):
        yield f"max_output is a whole number from 1 on, not {options.max_output!r}"
    if not isinstance(options.limits, Limits):
        yield f"limits are Limits, not {options.limits!r}"
        return
    yield from _limit_faults(options.limits)


def _limit_faults(limits: Limits) -> Iterator[str]:
    for each in fields(limits):
        value = getattr(limits, each.name)
        if value is None and each.name in _MAYBE_NONE:
            continue
        is_real = each.name in _SECONDS_OR_MONEY
        if type(value) is int or (is_real and type(value) is float and not math.isnan(value)):
            continue
        yield f"limits: {each.name} is {'a number' if is_real else 'a whole number'}, not {value!r}"
