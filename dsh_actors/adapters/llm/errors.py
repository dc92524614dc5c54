"""What a failed model call means: HTTP errors and error objects inside a stream as `Failure`.

Exceptions of the network library are told apart in `transport`. Messages are one short line
without markup and without the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dsh_actors.adapters.llm.wording import is_context_overflow, is_quota, is_rate_limit
from dsh_actors.core.chunks import Failure
from dsh_actors.core.text import clean_text, shorten

__all__ = [
    "MAX_MESSAGE_CHARS",
    "ErrorBody",
    "body_failure",
    "clean_message",
    "error_of_payload",
    "error_of_text",
    "http_failure",
    "looks_like_events",
    "request_id",
    "retry_after_ms",
    "room_told",
    "should_retry",
]

MAX_MESSAGE_CHARS = 300

_SMALLEST_ANSWER = 1_024
"""An answer in fewer tokens than this is not worth a request."""

_NO_MEANINGS: Mapping[str, str] = MappingProxyType({})

_INVALID_STATUSES = frozenset({400, 404, 405, 409, 413, 415, 422})
_MARKUP = re.compile(r"<(script|style)\b.*?</\1\s*>|<[^<>]{0,1000}>", re.IGNORECASE | re.DOTALL)
_CUT_LINE = re.compile(rb"da?t?|ev?e?n?|i|re?t?r?")
_EVENT_LINE = re.compile(rb"\s*$|:|(data|event|id|retry)(:|$)")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_KEYS = re.compile(r"\b(sk-[\w\-]{6,}|Bearer\s+\S+)")


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The parts of an error object that classification looks at; ``status`` is its own, if any."""

    message: str = ""
    type: str = ""
    code: str = ""
    status: int | None = None
    has_moderation: bool = False

    @property
    def words(self) -> str:
        return f"{self.message} {self.type} {self.code}"


def error_of_text(body: bytes) -> ErrorBody | None:
    """The error that a body of JSON text carries, or None. Also where "error:" stands before it."""
    text = body.decode("utf-8", "replace").strip().removeprefix("error:")
    try:
        return error_of_payload(json.loads(text))
    except (ValueError, RecursionError):
        return None


def looks_like_events(prefix: bytes) -> bool:
    """Whether the start of a body is an event stream, judged by its lines."""
    lines = prefix.removeprefix(b"\xef\xbb\xbf").splitlines()
    if lines and not prefix.endswith((b"\n", b"\r")) and _CUT_LINE.fullmatch(lines[-1]):
        del lines[-1]  # the body ended inside the name of a field
    return all(_EVENT_LINE.match(line) for line in lines)


def error_of_payload(payload: Any) -> ErrorBody | None:
    """The error that a JSON value carries, or None: wrapped, bare, as a string, or in a list."""
    if isinstance(payload, list):
        payload = next((item for item in payload if isinstance(item, dict)), None)
    if not isinstance(payload, dict):
        return None
    error = payload.get("error")
    if isinstance(error, dict):
        return _error_object(error)
    base = payload.get("base_resp")
    if isinstance(base, dict) and base.get("status_code"):
        # MiniMax answers with status 200 and its own code here.
        return ErrorBody(message=str(base.get("status_msg") or ""), code=_word(base["status_code"]))
    if error:
        return ErrorBody(message=str(error), code=_word(payload.get("code")), status=_status(payload))
    has_text = "message" in payload or "detail" in payload
    if payload.get("object") == "error" or (has_text and "choices" not in payload):
        return _error_object(payload)
    return None


def _error_object(error: dict[str, Any]) -> ErrorBody:
    message = error.get("message", error.get("detail", error.get("msg")))
    if message is not None and not isinstance(message, str):
        message = json.dumps(message, ensure_ascii=False)
    metadata = error.get("metadata")
    moderated = isinstance(metadata, dict) and ("reasons" in metadata or "flagged_input" in metadata)
    kind = _word(error.get("type")) or _word(error.get("status"))
    return ErrorBody(message or "", kind, _word(error.get("code")), _status(error), moderated)


def _word(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _status(error: dict[str, Any]) -> int | None:
    for key in ("code", "status", "status_code", "http_status"):
        value = _word(error.get(key))
        if value.isascii() and value.isdigit() and len(value) == 3 and 400 <= int(value) <= 599:
            return int(value)
    return None


def http_failure(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    now_ms: int,
    secret: str | None = None,
    meanings: Mapping[str, str] = _NO_MEANINGS,
) -> Failure:
    """What a response with a status other than 200 stands for. ``meanings``: see `body_failure`."""
    if 300 <= status < 400:
        text = f"HTTP {status}: the server redirects; set base_url to the final address"
        return Failure(text, "INVALID_REQUEST", status, None, request_id(headers))
    error = error_of_text(body) or ErrorBody(message=body.decode("utf-8", "replace"))
    message = clean_message(error.message, secret) or "no message"
    code = _meant(error, status, meanings) or _code(error, status)
    return Failure(
        f"HTTP {status}: {message}",
        code,
        status,
        retry_after_ms(headers, now_ms),
        request_id(headers),
        should_retry(headers),
        room_told(error.message) if code == "CONTEXT_WINDOW_EXCEEDED" else None,
    )


def body_failure(
    error: ErrorBody,
    headers: Mapping[str, str],
    secret: str | None = None,
    meanings: Mapping[str, str] = _NO_MEANINGS,
) -> Failure:
    """The failure that an error object in a response with status 200 stands for.

    ``meanings``: codes of ours by the vendor's codes, types and statuses, lower case; they come before
    the common table.
    """
    message = clean_message(error.message, secret) or "the provider reported an error without a message"
    code = _meant(error, error.status, meanings) or _code(error, error.status, in_stream=True)
    return Failure(message, code, error.status, None, request_id(headers))


def _meant(error: ErrorBody, status: int | None, meanings: Mapping[str, str]) -> str | None:
    if not meanings:
        return None
    words = (error.code.lower(), error.type.lower(), str(status))
    return next((meanings[word] for word in words if word in meanings), None)


_WINDOW = re.compile(r"context (?:length|window) (?:is|of) (\d{1,9})\b", re.IGNORECASE)
_PROMPT = re.compile(
    r"\((\d{1,9}) (?:in the messages|of text input|input tokens)|has (\d{1,9}) input tokens", re.IGNORECASE
)


def room_told(message: str) -> int | None:
    """The output limit with which a refused request would fit, where the text gives window and prompt.

    DeepSeek and vLLM count the asked-for output against the window. None where too little would be left.
    """
    window, prompt = _WINDOW.search(message[:8_192]), _PROMPT.search(message[:8_192])
    if window is None or prompt is None:
        return None
    left = int(window[1]) - int(prompt[1] or prompt[2])
    left -= max(64, left // 100)  # servers count a little differently from one request to the next
    return left if left >= _SMALLEST_ANSWER else None


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """The server's own word on whether to try again; None where it says nothing."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


_ACCESS_CODES = frozenset(
    {"invalid_api_key", "incorrect_api_key", "authentication_error", "permission_error", "permission_denied"}
)


def _code(error: ErrorBody, status: int | None, in_stream: bool = False) -> str:
    """The status decides before type and code: some vendors use one code for everything."""
    words, kind = error.words, error.type.lower()
    filtered = "content_filter" in f"{kind} {error.code.lower()}"
    overflow = is_context_overflow(words) or error.code == "1261"
    is_access = "authentication" in kind or "permission" in kind or error.code.lower() in _ACCESS_CODES
    if status in (401, 403) or is_access:
        return _access_code(error, status, filtered)
    if status == 402 or "billing" in kind:
        return "QUOTA"
    if status == 400 and overflow:
        return "CONTEXT_WINDOW_EXCEEDED"
    if status != 413 and (is_quota(words) or error.code == "1113"):
        return "QUOTA"
    if status == 529 or "overloaded" in kind:
        return "OVERLOADED"
    if status == 429 or is_rate_limit(f"{error.type} {error.code}"):
        return "RATE_LIMIT"
    if overflow and status in (None, 413, 422, 500):
        return "CONTEXT_WINDOW_EXCEEDED"
    if filtered:
        return "CONTENT_FILTER"
    return _code_of_status(kind, status, in_stream)


def _access_code(error: ErrorBody, status: int | None, filtered: bool) -> str:
    if filtered:
        return "CONTENT_FILTER"
    if status == 403 and is_quota(error.words):
        return "QUOTA"
    if status == 403 and (error.has_moderation or "moderation" in error.words.lower()):
        return "CONTENT_FILTER"
    return "AUTH"


def _code_of_status(kind: str, status: int | None, in_stream: bool) -> str:
    if status == 503:
        return "OVERLOADED"
    if status in (408, 504) or kind == "timeout_error":
        return "TIMEOUT"
    if kind == "conflict_error":
        return "SERVER"  # Anthropic's 409 passes by itself
    is_client_kind = any(word in kind for word in ("invalid_request", "not_found", "request_too_large"))
    if status in _INVALID_STATUSES or (is_client_kind and (status is None or status < 500)):
        return "INVALID_REQUEST"
    if in_stream or (status is not None and status >= 500):
        return "SERVER"
    return f"HTTP_{status}"


def clean_message(text: str, secret: str | None = None) -> str:
    """One line of at most `MAX_MESSAGE_CHARS`, without markup, the key, or anything that looks like one.

    Addresses lose a user and a password.
    """
    # Cut first, generously: the patterns must not walk through megabytes.
    text = _MARKUP.sub(" ", text[:8_192])
    text = _USERINFO.sub("", text)
    if secret:
        text = text.replace(secret, "[key]")
    text = " ".join(_KEYS.sub("[key]", text).split())
    return shorten(clean_text(text), MAX_MESSAGE_CHARS)


def request_id(headers: Mapping[str, str]) -> str | None:
    """The provider's name for the request, for support."""
    for name in ("x-request-id", "x-deepseek-request-id", "request-id"):
        value = headers.get(name)
        if value:
            return shorten(clean_text(value), 200)
    return None


def retry_after_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """How long the provider wants to be left alone: seconds, milliseconds or an HTTP date.

    None for anything else, and for what is not in the future.
    """
    exact = headers.get("retry-after-ms", "").strip()
    if _is_count(exact):
        return int(exact) or None
    value = headers.get("retry-after", "").strip()
    if _is_count(value):
        return int(value) * 1000 or None
    if not value or value[0] in "+-.0123456789":
        return None
    from email.utils import parsedate_to_datetime  # rarely needed, slow to import

    try:
        when = parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None
    left = int(when * 1000) - now_ms
    return left if left > 0 else None


def _is_count(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) <= 9
