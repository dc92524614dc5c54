"""What the record of a title's end says about its reply. Pure."""

from __future__ import annotations

from dsh_actors.core.text import JsonObject

__all__ = ["TITLE_REJECTED", "is_uncounted"]

TITLE_REJECTED = "SESSION_TITLE_REJECTED"
"""The code of a whole reply that holds no title, and of prompts that were not sent."""


def is_uncounted(data: JsonObject) -> bool:
    """Whether a `session/title-llm-result` is of a whole reply that came without a count of tokens."""
    failure = data.get("failure")
    is_whole = failure is None or failure["code"] == TITLE_REJECTED
    return is_whole and data["requestSeq"] is not None and not data.get("usage")
