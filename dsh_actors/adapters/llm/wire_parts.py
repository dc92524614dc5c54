"""What requests of all wires write alike: JSON bytes, arguments of calls, what stands for nothing. Pure."""

from __future__ import annotations

import json

from dsh_actors.core.messages import Block, OpaqueBlock, TextBlock
from dsh_actors.core.text import JsonObject

__all__ = ["NO_OUTPUT", "argument_object", "json_bytes", "shown_text"]

NO_OUTPUT = "(no output)"
"""Stands for an empty tool result, which some servers refuse."""


def json_bytes(value: JsonObject) -> bytes:
    """``value`` without blanks. Raises ValueError for numbers that JSON does not have."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Messages are well-formed by now; a tool's schema may still hold half a surrogate pair.
    return text.encode("utf-8", "replace")


def shown_text(block: Block) -> str:
    """A block as text; what has no text form is named, never dropped in silence."""
    match block:
        case TextBlock():
            return block.text
        case OpaqueBlock():
            return f"[{block.data.get('type', 'content')} not shown]"
    return ""


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_loads = json.JSONDecoder(parse_constant=_refuse_constant).decode


def argument_object(raw: str) -> tuple[str, JsonObject] | None:
    """The JSON object that a call's arguments are, or that the string in them holds, and its text.

    Blank arguments are an empty object. None where there is no object.
    """
    text = raw
    for _ in range(2):
        if not text.strip():
            return "{}", {}
        try:
            value = _loads(text)
        except (ValueError, RecursionError):
            return None
        if isinstance(value, dict):
            return text, value
        if not isinstance(value, str):
            return None
        text = value
    return None
