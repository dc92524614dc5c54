"""What servers report as token counts, as disjoint `Usage` counts. Pure."""

from __future__ import annotations

from typing import Any

from dsh_actors.core.chunks import Usage

__all__ = ["merged_usage", "usage_of"]


def usage_of(raw: Any, warnings: set[str]) -> Usage | None:
    """Read the ``usage`` object of chat completions; None where it says nothing.

    Notes in ``warnings`` what is odd. The wire's prompt tokens include those read from and written
    to the cache.
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


def merged_usage(known: Usage | None, raw: Any) -> Usage | None:
    """``known`` with what a ``usage`` object of Anthropic's Messages says anew.

    Its counts are cumulative, and its input tokens do not include those of the cache.
    """
    if not isinstance(raw, dict):
        return known
    details = _object(raw.get("output_tokens_details"))
    counts = (
        _count(raw.get("input_tokens")),
        _count(raw.get("output_tokens")),
        _count(raw.get("cache_read_input_tokens")),
        _count(raw.get("cache_creation_input_tokens")),
        _count(details.get("thinking_tokens")),
    )
    if all(count is None for count in counts):
        return known
    old = known or Usage(0, 0)
    before = (old.input, old.output, old.cache_read, old.cache_write, old.reasoning)
    new = [b if a is None else a for a, b in zip(counts, before, strict=True)]
    return Usage(new[0] or 0, new[1] or 0, *new[2:])


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 2**53 and value == int(value) else None
