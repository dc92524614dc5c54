"""What a sub-agent is asked for, and what it becomes from that: never more than its parent may."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from dsh_actors.core.ids import SessionId
from dsh_actors.core.messages import Message
from dsh_actors.core.options import AgentOptions, Limits
from dsh_actors.core.text import JsonObject, shorten
from dsh_actors.errors import UsageError

if TYPE_CHECKING:
    from dsh_actors.actors.lifecycle import AgentEntry

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "ChildRequest",
    "Mode",
    "child_limits",
    "child_options",
    "model_of",
    "resumed_request",
]

DEFAULT_TIMEOUT_S = 1_800.0
"""How long a model's sub-agent may work, where it does not say."""

MAX_LABEL = 80

Mode = Literal["one-shot", "continuable"]


@dataclass(frozen=True, slots=True)
class ChildRequest:
    """``prompt`` is the task. What is None is as the parent has it.

    ``schema``: a JSON Schema that the answer must fit, None for an answer in words. ``tools``: only these
    of the parent's. ``limits``: what is not left at its default, where it is below the parent's. ``fork``:
    it begins with what its parent knew at the end of its last whole turn.
    """

    prompt: str | Message
    label: str | None = None
    model: str | None = None
    schema: JsonObject | None = field(default=None, hash=False)
    tools: tuple[str, ...] | None = None
    system_prompt: str | None = None
    preset: str | None = None
    timeout_s: float | None = None
    fork: bool = False
    limits: Limits | None = None
    via: str | None = None

    @property
    def name(self) -> str:
        """The label, or the beginning of the task."""
        text = self.label or (self.prompt if isinstance(self.prompt, str) else "")
        return shorten(" ".join(text.split()), MAX_LABEL) or "sub-agent"

    def bounds(self) -> JsonObject:
        """What holds for the sub-agent beyond what holds for its parent, to be kept for when it goes on."""
        bounds: JsonObject = {}
        if self.tools is not None:
            bounds["tools"] = sorted(set(self.tools))
        if self.limits is not None:
            asked = {each.name: (getattr(self.limits, each.name), each.default) for each in fields(Limits)}
            bounds["limits"] = {name: own for name, (own, default) in asked.items() if own != default}
        if self.timeout_s is not None:
            bounds["timeout_s"] = self.timeout_s
        return bounds


def resumed_request(fact: JsonObject, tools: Collection[str]) -> ChildRequest:
    """What is asked for when a sub-agent goes on; ``fact`` is known of it, and its parent has ``tools``."""
    bounds = fact.get("bounds", {})
    limits, allowed = bounds.get("limits", {}), bounds.get("tools")
    known = {each.name for each in fields(Limits)}
    return ChildRequest(
        "",
        schema=fact.get("schema"),
        tools=None if allowed is None else tuple(name for name in allowed if name in tools),
        timeout_s=bounds.get("timeout_s"),
        fork=fact.get("fork") is True,
        limits=Limits(**{name: value for name, value in limits.items() if name in known}),
    )


def model_of(parent: AgentEntry) -> str:
    """``PROVIDER/MODEL`` that an agent calls."""
    config = parent.parts.env.config
    return f"{config.provider}/{config.model}"


def child_limits(parent: AgentEntry, request: ChildRequest) -> Limits:
    """The parent's limits with those of the request; its time ends with the parent's."""
    limits = parent.options.limits
    if request.limits is not None:
        limits = limits.tightened(request.limits)
    left_ms = parent.parts.remaining_ms()
    times = [t for t in (request.timeout_s, None if left_ms is None else left_ms / 1000) if t is not None]
    return replace(limits, timeout_s=min(times, default=None), deadline_s=None)


def child_options(
    parent: AgentEntry, request: ChildRequest, child: SessionId, shared_tools: Mapping[str, Any]
) -> AgentOptions:
    """``shared_tools`` are those that any agent of the parent's preset gets.

    Raises `UsageError` for a tool that the parent does not have itself.
    """
    own, model, call = parent.options, request.model or model_of(parent), parent.parts.env.config
    is_same = model == model_of(parent)
    options = replace(
        own,
        model=model,
        cwd=parent.header.cwd or own.cwd,
        session_id=child,
        reasoning=call.reasoning_effort if is_same else None,
        max_output=call.max_tokens if is_same else None,
        tools=_tools(parent, request.tools, shared_tools),
        deny_tools=(),
        limits=child_limits(parent, request),
        preset=request.preset or parent.header.agent_preset,
        depth=parent.header.delegation_depth + 1,
        schema=request.schema,
    )
    if request.fork:
        # Its words and tools are in the copy already, byte for byte.
        options = replace(options, preset=request.preset, append_system_prompt=None)
        return replace(options, system_prompt=request.system_prompt)
    return replace(options, system_prompt=request.system_prompt or own.system_prompt)


def _tools(
    parent: AgentEntry, wanted: tuple[str, ...] | None, shared: Mapping[str, Any]
) -> tuple[str, ...] | None:
    """The tools to allow; None where nothing has to be hidden."""
    has = parent.scope.visible_tools().keys() & shared.keys()
    if wanted is None:
        return None if has == shared.keys() else tuple(sorted(has))
    unknown = sorted(set(wanted) - has)
    if unknown:
        raise UsageError(
            f"there is no tool {unknown[0]!r} to hand on", hint=f"tools are: {', '.join(sorted(has))}"
        )
    return tuple(sorted(set(wanted)))
