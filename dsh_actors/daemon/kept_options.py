"""`AgentOptions` as JSON and back, for the row of an agent. Options hold no secrets; rows hold options."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any, get_type_hints

from dsh_actors.core.options import AgentOptions, LimitBase, Limits
from dsh_actors.core.policy import ApprovalPolicy, Rule

__all__ = ["options_from_json", "options_to_json"]

_TUPLES = frozenset(name for name, kind in get_type_hints(AgentOptions).items() if "tuple" in str(kind))
_PLAIN = frozenset({"limit_base", "limits", "policy"})


def options_to_json(options: AgentOptions) -> str:
    """All that makes the same agent again; what its limits count from is not a part of it."""
    data = asdict(options)
    del data["limit_base"]
    # Escaped: names of directories may be no UTF-8, and the table holds nothing else.
    return json.dumps(data, separators=(",", ":"))


def options_from_json(text: str, limit_base: LimitBase | None = None) -> AgentOptions:
    """Options that an earlier version kept may lack what is new: that has its default then."""
    data: dict[str, Any] = json.loads(text)
    known = {each.name for each in fields(AgentOptions)}
    values = {name: value for name, value in data.items() if name in known - _PLAIN}
    for name in _TUPLES & values.keys():
        if values[name] is not None:
            values[name] = tuple(values[name])
    return AgentOptions(
        **values,
        limits=Limits(**data.get("limits", {})),
        policy=_policy(data.get("policy", {})),
        limit_base=limit_base,
    )


def _policy(data: dict[str, Any]) -> ApprovalPolicy:
    rules = tuple(Rule(**rule) for rule in data.get("rules", ()))
    return ApprovalPolicy(**{**data, "rules": rules})
