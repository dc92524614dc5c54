"""Token counts of chat-completions servers as disjoint `Usage` counts. Pure."""

from __future__ import annotations

from typing import Any

from dsh_actors.core.chunks import Usage

__all__ = ["usage_of"]


def usage_of(raw: Any, warnings: set[str]) -> Usage | None:
    """Read a ``usage`` object; None where it says nothing. Notes in ``warnings`` what is odd.

    The wire's prompt tokens include those read from and written to the cache.
    """
    if not isinstance(raw, dict):
        return None
    prompt, completion = _count(raw.get("prompt_tokens")), _count(raw.get("completion_tokens"))
    if prompt is None and completion is None:
        return None
    details = _object(raw.get("prompt_tokens_details"))
    cache_read = _count(details.get("cached_tokens"))
    for key in ("prompt_cache_hit_tokens", "cached_tokens"):
        if cache_read is None:
            cache_read = _count(raw.get(key))
    cache_write = _count(details.get("cache_write_tokens"))
    fresh = (prompt or 0) - (cache_read or 0) - (cache_write or 0)
    if fresh < 0:
        warnings.add("usage_clamped")
    reasoning = _count(_object(raw.get("completion_tokens_details")).get("reasoning_tokens"))
    return Usage(max(0, fresh), completion or 0, cache_read, cache_write, reasoning)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 2**53 and value == int(value) else None
