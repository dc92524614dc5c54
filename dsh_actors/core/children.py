"""What a log says of an agent's sub-agents: which there are, and what each of them used. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from dsh_actors.core.pricing import Tokens
from dsh_actors.core.text import JsonObject

__all__ = ["AGENT_TOOLS", "ChildUse", "fold_child", "started_fact"]

AGENT_TOOLS = frozenset({"agent", "agent_send", "agent_interrupt", "agent_list", "agent_wait"})
"""The tools with which an agent sets others to work."""

_COUNTS = tuple(Tokens.__dataclass_fields__)


def started_fact(
    child: str,
    label: str,
    mode: str,
    *,
    is_fork: bool = False,
    schema: JsonObject | None = None,
    via: str | None = None,
    bounds: JsonObject | None = None,
) -> JsonObject:
    """The data of ``subagent/started``; ``mode`` is ``one-shot`` or ``continuable``. ``via`` names the
    configured process that it is: nobody can speak to one. ``bounds`` is what it may less than its parent,
    also when it goes on.
    """
    fact: JsonObject = {"id": child, "label": label, "mode": mode}
    more = {"fork": is_fork or None, "schema": schema, "via": via, "bounds": bounds or None}
    return fact | {name: value for name, value in more.items() if value is not None}


def fold_child(children: dict[str, JsonObject], kind: str, data: JsonObject) -> None:
    """Take in a ``subagent/started`` or ``subagent/ended``. One that is over for good is forgotten.

    Raises `KeyError` for data without an id.
    """
    child = data["id"]
    if kind == "subagent/started":
        children[child] = {"label": str(data.get("label")), "mode": data.get("mode"), "open": True}
        more = (("fork", bool), ("schema", dict), ("via", str), ("bounds", dict))
        children[child] |= {name: data[name] for name, kind in more if type(data.get(name)) is kind}
    elif child in children:
        if children[child]["mode"] == "continuable":
            children[child] = children[child] | {"open": False, "reason": str(data.get("reason"))}
        else:
            del children[child]


@dataclass(frozen=True, slots=True)
class ChildUse:
    """What a sub-agent and those below it used and were refused, since they were last told to work.

    ``cost`` is None where it is not known.
    """

    tokens: Tokens
    cost: float | None = None
    currency: str | None = None
    denied: tuple[JsonObject, ...] = ()
    tool_errors: int = 0

    def to_json(self) -> JsonObject:
        usage = {name: getattr(self.tokens, name) for name in _COUNTS}
        data: JsonObject = {"usage": usage, "cost": self.cost, "currency": self.currency}
        return data | {"denied": list(self.denied), "toolErrors": self.tool_errors}

    @staticmethod
    def from_json(data: JsonObject) -> ChildUse:
        """Of a ``subagent/ended``."""
        usage = data.get("usage")
        counts = usage if type(usage) is dict else {}
        return ChildUse(
            Tokens(**{name: counts.get(name, 0) for name in _COUNTS}),
            data.get("cost"),
            data.get("currency"),
            tuple(data.get("denied", ())),
            data.get("toolErrors", 0),
        )
