"""What one agent is asked to be: options and limits, resolved and frozen."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from dsh_actors.core.events import SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.policy import ApprovalPolicy
from dsh_actors.core.text import JsonObject

__all__ = [
    "DEFAULT_CONCURRENCY",
    "DEFAULT_SCHEMA_RETRIES",
    "GRACE_S",
    "TITLE_MODES",
    "AgentOptions",
    "LimitBase",
    "Limits",
    "TitlePolicy",
]

DEFAULT_CONCURRENCY = 256
"""Requests at once to one provider, where nobody says otherwise."""

DEFAULT_SCHEMA_RETRIES = 2
"""How often an answer that does not fit its schema is sent back."""

GRACE_S = 5.5
"""From the wish to stop a run to its end: children have 5 s after TERM, the rest is for the last words."""

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
