"""The phrases by which providers say that the money is gone or that the prompt is too long. Pure."""

from __future__ import annotations

import re

__all__ = ["is_context_overflow", "is_quota", "is_rate_limit"]

# A blank in a pattern also matches "_" and "-", since the same words appear as codes.
_QUOTA = (
    r"insufficient (account )?(quota|balance|credits?|funds)",
    r"(quota|usage limit) (has been |was |is )?(exceeded|exhausted|reached)",
    r"exceed(s|ed)?( your| the)?( current)? quota",
    r"(balance|credits?) (is |are |has been |have been )?(exhausted|depleted)",
    r"out of (credits?|budget)",
    r"billing hard limit",
    r"reached (your|the) (specified )?(api )?usage limits?",
    r"(credit )?balance is too low",
    r"quota limit reached",
    r"arrearage",
    r"余额不足",
    r"欠费",
)

_CONTEXT = (
    r"context (length|window|size) (is |was |has been )?(exceeded|overflow|exceeds limit|limit)",
    r"exceed context size",
    r"maximum (context|prompt|model) length",
    r"max context (length|window)",
    r"exceed(s|ed|ing)? the (model'?s? )?(available |maximum )?context",
    r"(greater|longer|larger) than the (model'?s? )?(maximum )?context",
    r"(prompt|输入) ?(is )?(too long|超长)",
    r"(request|prompt|input|messages?)( is| are)? too (large|long) for (this|the)? ?model",
    r"too large for model with \d+ maximum context",
    r"exceeded model token limit",
    r"input tokens?( count)?( \(?\d+\)?)? exceed(s|ed)?",
    r"prompt token count( of \d+)? exceeds the limit",
    r"input( token)? length too long",
    r"range of input length",
    r"inputs?`? tokens \+ `?max new tokens`? must be",
    r"reduce the length of the (messages|prompt|input)",
)

_RATE = (r"rate limit", r"too many requests", r"throttl")


def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(patterns).replace(" ", r"[\s_\-]"), re.IGNORECASE)


_QUOTA_PATTERN = _any_of(_QUOTA)
_CONTEXT_PATTERN = _any_of(_CONTEXT)
_RATE_PATTERN = _any_of(_RATE)


def is_quota(text: str) -> bool:
    """Whether the text says that the balance or a plan's quota is used up."""
    return _QUOTA_PATTERN.search(text) is not None


def is_rate_limit(text: str) -> bool:
    """Whether the text asks to slow down."""
    return _RATE_PATTERN.search(text) is not None


def is_context_overflow(text: str) -> bool:
    """Whether the text says that the prompt does not fit the model."""
    return _CONTEXT_PATTERN.search(text) is not None and not is_rate_limit(text)
