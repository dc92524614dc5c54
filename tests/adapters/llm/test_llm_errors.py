"""Error responses: what each status, body and header means."""

from __future__ import annotations

import json
from email.utils import formatdate

import pytest

from dsh_actors.adapters.llm.errors import retry_after_ms
from dsh_actors.adapters.llm.wording import is_context_overflow, is_quota
from tests.adapters.llm.llm_kit import KEY, answer, failure_of
from tests.cpu_kit import cpu_seconds

OVERFLOW = (
    "This model's maximum context length is 10 tokens. However, you requested 12 tokens "
    "(8 in the messages, 4 in the completion). Please reduce the length of the messages or completion."
)
DEEPSEEK_402 = {
    "error": {
        "message": "Insufficient Balance",
        "type": "unknown_error",
        "param": None,
        "code": "invalid_request_error",
    }
}


def error(message: str = "", **members: object) -> dict:
    return {"error": {"message": message, **members}}


def code_of(status: int, body: object) -> str:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return failure_of(answer([raw], status)).code


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (402, DEEPSEEK_402, "QUOTA"),
        (402, {}, "QUOTA"),
        (400, error(OVERFLOW, code="invalid_request_error"), "CONTEXT_WINDOW_EXCEEDED"),
        (400, error("temperature exceeds maximum allowed value"), "INVALID_REQUEST"),
        (400, error("context window size must be positive"), "INVALID_REQUEST"),
        (400, error("input tokens exceed the limit", code="quota_limit_reached"), "CONTEXT_WINDOW_EXCEEDED"),
        (400, error("refused", code="content_filter"), "CONTENT_FILTER"),
        (401, error("insufficient balance"), "AUTH"),
        (401, b"", "AUTH"),
        (400, {"error": {"message": "bad key", "code": "invalid_api_key"}}, "AUTH"),
        (400, {"error": {"message": "bad key", "code": "authentication_error"}}, "AUTH"),
        (403, error("your balance is exhausted"), "QUOTA"),
        (403, error("blocked", metadata={"reasons": ["violence"]}), "CONTENT_FILTER"),
        (403, error("not yours", type="permission_error"), "AUTH"),
        (404, error("no such model"), "INVALID_REQUEST"),
        (408, b"", "TIMEOUT"),
        (413, b"", "INVALID_REQUEST"),
        (413, error("reduce the length of the messages"), "CONTEXT_WINDOW_EXCEEDED"),
        (418, b"", "HTTP_418"),
        (422, error("messages[3]: missing field"), "INVALID_REQUEST"),
        (429, error("You exceeded your current quota", type="insufficient_quota"), "QUOTA"),
        (429, error("quota resets in one minute"), "RATE_LIMIT"),
        (429, error("余额不足", code="1113"), "QUOTA"),
        (429, error("engine busy", type="engine_overloaded_error"), "OVERLOADED"),
        (429, error("Rate limit: context length exceeded too often"), "RATE_LIMIT"),
        (500, error("oops", code="invalid_request_error"), "SERVER"),
        (500, error(OVERFLOW), "CONTEXT_WINDOW_EXCEEDED"),
        (502, b"<html><body><h1>502 Bad Gateway</h1></body></html>", "SERVER"),
        (503, error("busy", code="invalid_request_error"), "OVERLOADED"),
        (504, b"", "TIMEOUT"),
        (529, b"", "OVERLOADED"),
        (302, b"", "INVALID_REQUEST"),
        (200 + 4, b"", "HTTP_204"),
        (422, {"detail": [{"loc": ["body"], "msg": "wrong"}]}, "INVALID_REQUEST"),
        (400, {"code": "Arrearage", "message": "Access denied", "request_id": "r"}, "QUOTA"),
        (400, [error("bad argument")], "INVALID_REQUEST"),
        (400, {"error": "plain text"}, "INVALID_REQUEST"),
        (500, b"[" * 5000, "SERVER"),
    ],
)
def test_a_status_and_its_body_have_one_meaning(status: int, body: object, code: str) -> None:
    assert code_of(status, body) == code


@pytest.mark.parametrize(
    "text",
    [
        "prompt is too long: 2 tokens > 1 maximum",
        "Your input exceeds the context window of this model",
        "The input token count (2) exceeds the maximum number of tokens",
        "This model's maximum prompt length is 1 but the request contains 2 tokens",
        "Please reduce the length of the messages or completion.",
        OVERFLOW,
        "The input (2 tokens) is longer than the model's context length (1 tokens).",
        "the request exceeds the available context size, try increasing it",
        "number of tokens to keep is greater than the context length",
        "invalid params, context window exceeds limit (2013)",
        "Your request exceeded model token limit: 1 (requested: 2)",
        "Input token length too long",
        "Prompt contains 2 tokens, too large for model with 1 maximum context length",
        "prompt too long; exceeded max context length by 4 tokens",
        "Range of input length should be [1, 1]",
        "prompt token count of 2 exceeds the limit of 1",
        "Prompt 超长",
        "context_length_exceeded",
        "exceed_context_size_error",
    ],
)
def test_every_vendors_words_for_a_full_context_are_known(text: str) -> None:
    assert is_context_overflow(text)
    assert not is_quota(text)


@pytest.mark.parametrize(
    "text",
    [
        "temperature exceeds maximum allowed value",
        "context window size must be positive",
        "max_tokens must be at most 8192",
        "rate limit: maximum context length of requests per minute",
        "Too many requests: prompt is too long for your tier",
        "",
    ],
)
def test_other_limits_are_not_taken_for_a_full_context(text: str) -> None:
    assert not is_context_overflow(text)


@pytest.mark.parametrize(
    "text",
    [
        "insufficient_quota",
        "Insufficient Balance",
        "insufficient credits",
        "You exceeded your current quota",
        "usage limit reached",
        "quota exhausted",
        "Your credits are depleted",
        "out of credits",
        "exceeded_current_quota_error",
        "账户已欠费，请充值后重试",
    ],
)
def test_every_vendors_words_for_an_empty_account_are_known(text: str) -> None:
    assert is_quota(text)


def test_a_quota_that_comes_back_is_a_rate_limit() -> None:
    assert not is_quota("quota resets in one minute")


NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "3"}, 3000),
        ({"retry-after": " 120 "}, 120_000),
        ({"retry-after-ms": "250", "retry-after": "3"}, 250),
        ({"retry-after": formatdate(NOW_MS / 1000 + 90, usegmt=True)}, 90_000),
        ({"retry-after": formatdate(NOW_MS / 1000 - 90, usegmt=True)}, None),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "1.5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "Mon, 99 Foo 2020 99:99:99 GMT"}, None),
        ({}, None),
    ],
)
def test_a_waiting_time_is_seconds_milliseconds_or_a_date_to_come(
    headers: dict, expected: int | None
) -> None:
    assert retry_after_ms(headers, NOW_MS) == expected


def test_waiting_time_and_request_id_reach_the_failure() -> None:
    headers = {"Retry-After": "7", "X-Request-Id": "req-1"}
    failure = failure_of(answer([b"{}"], 429, headers))
    assert (failure.retry_after_ms, failure.request_id, failure.status) == (7000, "req-1", 429)


def test_a_message_is_one_short_line_without_markup_and_without_keys() -> None:
    page = (
        f"<html><style>b {{}}</style><h1>Bad\n\nkey</h1> {KEY} sk-other-123456 Bearer abc {'x' * 9000}</html>"
    )
    failure = failure_of(answer([page.encode()], 500))
    assert failure.message.startswith("HTTP 500: Bad key [key] [key] [key] xxx")
    assert len(failure.message) <= 320
    assert KEY not in failure.message


def test_a_page_of_angle_brackets_costs_no_time() -> None:
    for page in (b"<" * 60_000, b"<script" * 9_000):
        assert cpu_seconds(lambda page=page: failure_of(answer([page], 500))) < 0.5  # type: ignore[misc]
