"""The retry decision: which failures, how often, after how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.chunks import Failure
from dsh_actors.core.retry import CODES, GiveUp, Retry, RetryPolicy, decide, facts_of, reason_of
from dsh_actors.errors import ConfigError

POLICY = RetryPolicy()
RUN_REASONS = frozenset(
    [
        "provider_error",
        "rate_limited",
        "overloaded",
        "network",
        "malformed_stream",
        "empty_response",
        "context_exhausted",
        "storage_full",
        "internal",
        "auth",
        "balance",
        "busy",
        "interrupted",
        "usage",
    ]
)


def failed(code: str, retry_after_ms: int | None = None) -> Failure:
    return Failure("it failed", code, retry_after_ms=retry_after_ms)


@pytest.mark.parametrize(
    "code",
    [
        "RATE_LIMIT",
        "OVERLOADED",
        "INSUFFICIENT_SYSTEM_RESOURCE",
        "SERVER",
        "TRANSPORT",
        "STREAM_CLOSED",
        "TIMEOUT",
        "MALFORMED_RESPONSE",
        "EMPTY_RESPONSE",
    ],
)
def test_a_passing_trouble_is_retried(code: str) -> None:
    assert isinstance(decide(POLICY, failed(code), 0, 0, 0.5), Retry)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("AUTH", "auth"),
        ("MISSING_CREDENTIAL", "auth"),
        ("INVALID_CREDENTIAL", "auth"),
        ("QUOTA", "balance"),
        ("INVALID_REQUEST", "provider_error"),
        ("CONTEXT_WINDOW_EXCEEDED", "context_exhausted"),
        ("CONTENT_FILTER", "provider_error"),
        ("TLS", "network"),
        ("ABORTED", "interrupted"),
        ("STORAGE_FULL", "storage_full"),
        ("UNKNOWN", "internal"),
        ("NO_ADAPTER", "usage"),
        ("WEIRD", "provider_error"),
        ("HTTP_418", "provider_error"),
    ],
)
def test_a_lasting_trouble_ends_the_step_with_its_reason(code: str, reason: str) -> None:
    assert decide(POLICY, failed(code), 0, 0, 0.5) == GiveUp(reason)


def test_every_code_has_a_reason_word_of_the_command_line() -> None:
    assert {reason_of(code) for code in CODES} <= RUN_REASONS


def test_a_timeout_of_the_provider_is_not_called_the_timeout_of_the_run() -> None:
    assert reason_of("TIMEOUT") == "network"


def test_delays_double_up_to_the_longest() -> None:
    delays = [decide(POLICY, failed("SERVER"), n, n, 0.5) for n in range(5)]
    assert delays == [Retry(500), Retry(1000), Retry(2000), Retry(4000), Retry(8000)]
    assert decide(RetryPolicy(max_retries=99), failed("SERVER"), 60, 60, 0.5) == Retry(10_000)


def test_an_overloaded_provider_is_left_alone_longer() -> None:
    patient = RetryPolicy(max_retries=9)
    delays = [decide(patient, failed("OVERLOADED"), n, n, 0.5) for n in range(6)]
    assert [d.delay_ms for d in delays] == [2000, 4000, 8000, 16_000, 30_000, 30_000]


def test_the_last_allowed_retry_is_the_policys_number() -> None:
    assert isinstance(decide(POLICY, failed("RATE_LIMIT"), 4, 4, 0.5), Retry)
    assert decide(POLICY, failed("RATE_LIMIT"), 5, 0, 0.5) == GiveUp("rate_limited")
    assert decide(RetryPolicy(max_retries=0), failed("SERVER"), 0, 0, 0.5) == GiveUp("provider_error")


def test_an_empty_answer_is_nudged_once() -> None:
    assert decide(POLICY, failed("EMPTY_RESPONSE"), 0, 0, 0.5) == Retry(500, nudge=True)
    assert decide(POLICY, failed("EMPTY_RESPONSE"), 1, 1, 0.5) == GiveUp("empty_response")


def test_a_malformed_answer_is_retried_twice() -> None:
    assert decide(POLICY, failed("MALFORMED_RESPONSE"), 1, 1, 0.5) == Retry(1000)
    assert decide(POLICY, failed("MALFORMED_RESPONSE"), 2, 2, 0.5) == GiveUp("malformed_stream")
    # Retries that followed other failures do not count against this cap.
    assert decide(POLICY, failed("MALFORMED_RESPONSE"), 3, 1, 0.5) == Retry(4000)


@given(rand=st.floats(0, 1))
def test_a_providers_waiting_time_is_never_shortened(rand: float) -> None:
    decision = decide(POLICY, failed("RATE_LIMIT", 3000), 0, 0, rand)
    assert isinstance(decision, Retry)
    assert 3000 <= decision.delay_ms <= 4500


def test_too_long_a_waiting_time_gives_up_at_once() -> None:
    assert decide(POLICY, failed("RATE_LIMIT", 60_001), 0, 0, 0.0) == GiveUp("rate_limited")
    assert decide(POLICY, failed("RATE_LIMIT", 60_000), 0, 0, 0.0) == Retry(60_000)
    assert decide(POLICY, failed("RATE_LIMIT", 5000), 0, 0, 0.0, remaining_ms=5000) == GiveUp("rate_limited")
    assert decide(POLICY, failed("RATE_LIMIT", 5000), 0, 0, 0.0, remaining_ms=5001) == Retry(5000)


@given(done=st.integers(0, 500), rand=st.floats(0, 1), code=st.sampled_from(sorted(CODES)))
def test_a_delay_stays_within_its_bounds(done: int, rand: float, code: str) -> None:
    policy = RetryPolicy(max_retries=1000, jitter_ratio=0.3)
    decision = decide(policy, failed(code), done, 0, rand)
    if isinstance(decision, Retry):
        assert 0 <= decision.delay_ms <= (facts_of(code).max_delay_ms or policy.max_delay_ms)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_retries", -1),
        ("initial_delay_ms", -1),
        ("initial_delay_ms", 20_000),
        ("max_delay_ms", 2**31),
        ("jitter_ratio", 1.5),
        ("jitter_ratio", float("nan")),
        ("max_retry_after_ms", -5),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=field):
        RetryPolicy(**{field: value})
