"""The system prompt and the context snapshot: sections, strict variables, tool schemas in a stable order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from dsh_actors.core.messages import Message, PluginSource, text_of
from dsh_actors.core.request import ToolSchema
from dsh_actors.core.scope import Scope, Section
from dsh_actors.errors import ConfigError

__all__ = [
    "NO_CONTEXT",
    "PERSONA",
    "context_snapshot",
    "has_computed_text",
    "is_context",
    "last_context",
    "system_prompt",
    "tool_schemas",
]

PERSONA = """\
You are an agent that works without a person in between: nobody reads along, and nobody answers
questions. Do the task you are given with the tools you have, on the files at hand, and then give
your final answer as text. The answer is all that the caller gets.

- Look before you act: read what you are going to change, and check what you changed.
- Change only what the task needs. Prefer `edit` to `write` for a file that exists.
- Call tools that do not depend on each other in one reply.
- A refused call stays refused: find another way or say what is missing.
- When you cannot finish, say plainly what you did, what is left and why.
- Never claim what you did not check."""

NO_CONTEXT = "There are no facts of the moment any more; the earlier ones no longer hold."
"""Sent once when the last registered fact has gone."""

_VARIABLE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")


def system_prompt(scope: Scope) -> str:
    """All sections in order, joined by blank lines, or what is kept in their place.

    Raises `ConfigError` for a bad ``{{variable}}``.
    """
    variables: Mapping[str, str | None] = scope.named("variables")
    texts = (_interpolate(section, variables) for section in _ordered(scope.named("sections")))
    composed = "\n\n".join(text for text in texts if text)
    return composed if scope.kept_prompt is None else scope.kept_prompt.or_changed(composed)


def has_computed_text(scope: Scope) -> bool:
    """Whether the system prompt may change while the registrations stay the same."""
    sections: Mapping[str, Section] = scope.named("sections")
    return any(not isinstance(section.text, str) for section in sections.values())


def context_snapshot(scope: Scope) -> str | None:
    """The facts of the moment as one text; None where nothing is registered."""
    texts = [text for text in (section.render() for section in _ordered(scope.named("contexts"))) if text]
    if not texts:
        return None
    return "\n\n".join(["Facts of this moment; they replace earlier ones.", *texts])


def is_context(message: Message) -> bool:
    """Whether a message is a context snapshot."""
    return isinstance(message.source, PluginSource) and message.source.plugin == "context"


def last_context(messages: Sequence[Message]) -> str | None:
    """The newest context snapshot among ``messages``."""
    return next((text_of(message) for message in reversed(messages) if is_context(message)), None)


def tool_schemas(scope: Scope) -> tuple[ToolSchema, ...]:
    """What the model sees of the visible tools, by name."""
    specs = (tool.spec for _, tool in sorted(scope.visible_tools().items()))
    return tuple(ToolSchema(spec.name, spec.description, spec.parameters) for spec in specs)


def _ordered(sections: Mapping[str, Section]) -> list[Section]:
    return sorted(sections.values(), key=lambda section: section.order)


def _interpolate(section: Section, variables: Mapping[str, str | None]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1]
        if not _NAME.match(name):
            raise ConfigError(f"prompt section {section.name!r}: malformed variable {match[0]!r}")
        text = variables.get(name)
        if text is None:
            known = ", ".join(sorted(k for k, v in variables.items() if v is not None)) or "(none)"
            raise ConfigError(
                f"prompt section {section.name!r}: no value for the variable {name!r}", hint=f"known: {known}"
            )
        return text

    return _VARIABLE.sub(value, section.render()).strip("\n")
