"""Which failures of a model call are worth another try, and when: the one table of failure codes.

Pure: randomness and the time left come in as arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from dsh_actors.core.chunks import Failure
from dsh_actors.errors import ConfigError

__all__ = [
    "CODES",
    "CodeFacts",
    "Decision",
    "GiveUp",
    "Retry",
    "RetryPolicy",
    "decide",
    "facts_of",
    "reason_of",
]

MAX_TIMER_MS = 2_147_483_647
"""Longest wait that a policy may ask for."""

DEFAULT_MAX_RETRIES = 5

MAX_RETRY_AFTER_JITTER_MS = 1_500
"""What may be added to a provider's own waiting time, so that many agents do not return at once."""

OVERLOADED_BASE_MS = 2_000
OVERLOADED_MAX_MS = 30_000


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how patiently one step repeats its request. Raises `ConfigError` on a bad value.

    The n-th delay is ``initial_delay_ms * 2**(n-1)``, at most ``max_delay_ms``, give or take
    ``jitter_ratio``. A provider's own waiting time is obeyed up to ``max_retry_after_ms``.
    ``max_retries`` None: as many as the run allows.
    """

    max_retries: int | None = None
    initial_delay_ms: int = 500
    max_delay_ms: int = 10_000
    jitter_ratio: float = 0.1
    max_retry_after_ms: int = 60_000

    def __post_init__(self) -> None:
        if self.max_retries is not None and self.max_retries < 0:
            raise ConfigError(f"max_retries must not be negative, but is {self.max_retries}")
        for name in ("initial_delay_ms", "max_delay_ms", "max_retry_after_ms"):
            value = getattr(self, name)
            if not 0 <= value <= MAX_TIMER_MS:
                raise ConfigError(f"{name} must be between 0 and {MAX_TIMER_MS}, but is {value}")
        if self.initial_delay_ms > self.max_delay_ms:
            raise ConfigError(
                f"initial_delay_ms ({self.initial_delay_ms}) exceeds max_delay_ms ({self.max_delay_ms})"
            )
        if not 0 <= self.jitter_ratio <= 1:
            raise ConfigError(f"jitter_ratio must be between 0 and 1, but is {self.jitter_ratio}")


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """What a failure code means. ``max_retries`` is a cap of its own beside the policy's.

    ``base_delay_ms`` and ``max_delay_ms`` stand for the policy's where they are set.
    """

    kind: str
    retryable: bool = False
    max_retries: int | None = None
    base_delay_ms: int | None = None
    max_delay_ms: int | None = None


_OVERLOADED = CodeFacts("overloaded", True, None, OVERLOADED_BASE_MS, OVERLOADED_MAX_MS)
_INTERNAL = CodeFacts("internal")
_INVALID = CodeFacts("invalid_request")
_USAGE = CodeFacts("usage")

CODES: Mapping[str, CodeFacts] = MappingProxyType(
    {
        "AUTH": CodeFacts("auth"),
        "MISSING_CREDENTIAL": CodeFacts("auth"),
        "INVALID_CREDENTIAL": CodeFacts("auth"),
        "QUOTA": CodeFacts("balance"),
        "INVALID_REQUEST": _INVALID,
        # The adapter has learnt from the refusal how else to write the request.
        "REFUSED_FORM": CodeFacts("invalid_request", True, 3, 0, 0),
        "UNSUPPORTED_CONTENT": _INVALID,
        "UNSUPPORTED_REASONING_EFFORT": _INVALID,
        "INVALID_PREPARED_CALL": _INTERNAL,
        "NO_ADAPTER": _USAGE,
        "UNKNOWN_MODEL": _USAGE,
        "USAGE": _USAGE,
        "CONFIG": _USAGE,
        "CONTEXT_WINDOW_EXCEEDED": CodeFacts("context_overflow"),
        "RATE_LIMIT": CodeFacts("rate_limit", True),
        "OVERLOADED": _OVERLOADED,
        "INSUFFICIENT_SYSTEM_RESOURCE": _OVERLOADED,
        "SERVER": CodeFacts("server", True),
        "TRANSPORT": CodeFacts("network", True),
        "STREAM_CLOSED": CodeFacts("network", True),
        "TLS": CodeFacts("network"),
        "TIMEOUT": CodeFacts("timeout", True),
        "MALFORMED_RESPONSE": CodeFacts("malformed_stream", True, 2),
        # The server threw away what the model wrote as a call.
        "TOOL_USE_FAILED": CodeFacts("malformed_stream", True, 1),
        "EMPTY_RESPONSE": CodeFacts("empty_response", True, 1),
        "CONTENT_FILTER": CodeFacts("content_filter"),
        "SCRIPT_EXHAUSTED": CodeFacts("script"),
        "ABORTED": CodeFacts("aborted"),
        "STORAGE_FULL": CodeFacts("storage_full"),
        "STORAGE_FAILED": _INTERNAL,
        "SESSION_BUSY": CodeFacts("busy"),
        "EVENT_REFUSED": _INTERNAL,
        "PROTOCOL": _INTERNAL,
        "ACTOR_GONE": _INTERNAL,
        "INTERNAL": _INTERNAL,
        "UNKNOWN": _INTERNAL,
    }
)
"""Every failure code with a meaning of its own. Any other is a provider's word: not retried."""

_FOREIGN = CodeFacts("other")

_REASONS: Mapping[str, str] = MappingProxyType(
    {
        "auth": "auth",
        "balance": "balance",
        "rate_limit": "rate_limited",
        "overloaded": "overloaded",
        "network": "network",
        # The reason word "timeout" belongs to the run's own time limit.
        "timeout": "network",
        "malformed_stream": "malformed_stream",
        "empty_response": "empty_response",
        "context_overflow": "context_exhausted",
        "storage_full": "storage_full",
        "busy": "busy",
        "aborted": "interrupted",
        "usage": "usage",
        "internal": "internal",
    }
)


@dataclass(frozen=True, slots=True)
class Retry:
    """Send the same messages again after ``delay_ms``; with ``nudge``, add a word to the model first.

    ``max_output`` is the output limit of this request in place of the configured one. ``max_retries`` is
    the limit that was counted against, for the log.
    """

    delay_ms: int
    nudge: bool = False
    max_output: int | None = None
    max_retries: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Report the failure; ``reason`` is the run's reason word."""

    reason: str


Decision = Retry | GiveUp


def facts_of(code: str) -> CodeFacts:
    """The row of ``code`` in `CODES`, or the row of an unknown provider word."""
    return CODES.get(code, _FOREIGN)


def reason_of(code: str) -> str:
    """The reason word of a run that ends with this failure code."""
    return _REASONS.get(facts_of(code).kind, "provider_error")


def decide(
    policy: RetryPolicy,
    failure: Failure,
    retries_done: int,
    retries_of_code: int,
    rand: float,
    remaining_ms: int | None = None,
) -> Decision:
    """What follows a failed attempt of a step.

    ``retries_done`` counts the step's retries so far, ``retries_of_code`` those that followed a
    failure of this code. ``rand`` is uniform in 0..1. ``remaining_ms`` is what is left of the run's
    time, None for no limit.
    """
    facts = facts_of(failure.code)
    cap = facts.max_retries
    most = DEFAULT_MAX_RETRIES if policy.max_retries is None else policy.max_retries
    spent = retries_done >= most or (cap is not None and retries_of_code >= cap)
    if failure.fitting_output is not None and not spent and retries_of_code == 0:
        return Retry(0, max_output=failure.fitting_output, max_retries=most)
    retryable = facts.retryable if failure.should_retry is None else failure.should_retry
    if not retryable or spent:
        return GiveUp(reason_of(failure.code))
    nudge = failure.code == "EMPTY_RESPONSE"
    asked = failure.retry_after_ms
    if asked is None:
        return Retry(_local_delay_ms(policy, facts, retries_done, rand), nudge, max_retries=most)
    if asked > policy.max_retry_after_ms or (remaining_ms is not None and asked >= remaining_ms):
        return GiveUp("rate_limited")
    # Never earlier than asked for.
    extra = min(asked * policy.jitter_ratio, MAX_RETRY_AFTER_JITTER_MS) * rand
    return Retry(asked + int(extra), nudge, max_retries=most)


def _local_delay_ms(policy: RetryPolicy, facts: CodeFacts, retries_done: int, rand: float) -> int:
    base = policy.initial_delay_ms if facts.base_delay_ms is None else facts.base_delay_ms
    longest = policy.max_delay_ms if facts.max_delay_ms is None else facts.max_delay_ms
    # 2**40 exceeds every allowed maximum; a bigger exponent would only make bigger integers.
    plain = min(base << min(retries_done, 40), longest)
    jittered = plain * (1 - policy.jitter_ratio + 2 * policy.jitter_ratio * rand)
    return int(min(jittered, longest))
