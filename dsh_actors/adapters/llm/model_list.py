"""Asks a provider which models it offers: ``GET /models`` in the shapes that vendors answer with.

Known are the lists of OpenAI and DeepSeek (names alone), vLLM (``max_model_len``), llama.cpp, Groq,
Mistral, Kimi, Together (a bare list), OpenRouter (sizes, prices, modalities) and Anthropic (in pages).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import dsh_actors
from dsh_actors.adapters.llm.anthropic import VERSION
from dsh_actors.adapters.llm.errors import clean_message, error_of_payload, http_failure
from dsh_actors.adapters.llm.registry import build_provider
from dsh_actors.adapters.llm.settings import ProviderConfig, endpoint, messages_endpoint
from dsh_actors.config.addresses import shown_address
from dsh_actors.config.models import ModelSettings
from dsh_actors.core.chunks import CallConfig, Failure
from dsh_actors.core.pricing import Price
from dsh_actors.core.text import clean_text
from dsh_actors.errors import ProviderError

__all__ = ["LIST_TIMEOUT_S", "fetch_models", "models_of"]

LIST_TIMEOUT_S = 20.0
"""How long a provider may take for each read; whoever asks bounds the whole."""

MAX_LIST_BYTES = 16 * 1024 * 1024

MAX_TOKENS = 1_000_000_000_000
"""A size of this many tokens or more is no size."""

_MAX_PAGES = 50


class _Unwatched:
    """A stream control for a request that nobody aborts."""

    aborted: str | None = None

    def on_abort(self, callback: Callable[[], None]) -> None: ...

    def expect_within(self, seconds: float, otherwise: str | None = None) -> None: ...


def fetch_models(config: ProviderConfig) -> tuple[ModelSettings, ...]:
    """What the provider lists, in its order. Raises `CredentialError`, or `ProviderError` with its code."""
    # Preparing a call is what checks the key.
    known = config.models[0].id if config.models else "any"
    build_provider(config).prepare(CallConfig(config.name, known))
    found: dict[str, ModelSettings] = {}
    after: str | None = None
    for _ in range(_MAX_PAGES):
        payload = _get(config, after)
        for model in models_of(payload):
            found.setdefault(model.id, model)
        page = _object(payload)
        last = page.get("last_id")
        if page.get("has_more") is not True or not isinstance(last, str) or last == after:
            break
        after = last
    return tuple(found.values())


def _request(config: ProviderConfig, after: str | None) -> tuple[str, dict[str, str]]:
    key = (config.api_key or "").strip()
    headers = {
        "User-Agent": f"dsh-actors/{dsh_actors.__version__}",
        "Accept": "application/json",
        "Accept-Encoding": "identity",
    }
    if config.type == "anthropic":
        page = f"limit=1000&after_id={quote(after, safe='')}" if after else "limit=1000"
        url = messages_endpoint(config.base_url, "/v1/models", page)
        headers["anthropic-version"] = VERSION
        if key:
            headers["x-api-key"] = key
        return url, headers | dict(config.headers)
    if key:
        name = config.profile.auth_header
        headers[name] = f"Bearer {key}" if name == "Authorization" else key
    return endpoint(config.base_url, "/models"), headers | dict(config.headers)


def _get(config: ProviderConfig, after: str | None) -> Any:
    """One page of the list, known to be one."""
    body = _body(config, after)
    try:
        payload = json.loads(body.decode("utf-8-sig", "replace"))
    except (ValueError, RecursionError):
        payload = None
    if _entries(payload) is None:
        found = error_of_payload(payload)
        text = found.message if found is not None and found.message else "the answer is not a list of models"
        text = clean_message(text, config.api_key)
        raise _error(config, Failure(f"{text}; is base_url right?", "MALFORMED_RESPONSE"))
    return payload


def _body(config: ProviderConfig, after: str | None) -> bytes:
    from dsh_actors.adapters.llm.transport import NETWORK_ERRORS, Transport, network_failure

    url, wanted = _request(config, after)
    patience, exchange, via = min(LIST_TIMEOUT_S, config.first_event_timeout_s), None, ""
    try:
        transport = Transport(config, url, wanted, "GET", patience)
        via, exchange = transport.via, transport.exchange(_Unwatched())
        response = exchange.send(b"")
        status, headers = response.status, response.headers
        if status != 200:
            now_ms = int(time.time() * 1000)
            raise _error(config, http_failure(status, headers, exchange.error_body(), now_ms, config.api_key))
        pieces: list[bytes] = []
        size = 0
        while data := exchange.read(65_536):
            pieces.append(data)
            size += len(data)
            if size > MAX_LIST_BYTES:
                raise _error(config, Failure("the list of models is too long", "MALFORMED_RESPONSE"))
        return b"".join(pieces)
    except NETWORK_ERRORS as error:
        place = shown_address(config.base_url) + via
        raise _error(config, network_failure(error, place, config.api_key)) from error
    finally:
        if exchange is not None:
            exchange.close()


def _error(config: ProviderConfig, failure: Failure) -> ProviderError:
    return ProviderError(f"{config.name}: GET /models: {failure.message}", code=failure.code)


def _entries(payload: Any) -> list[Any] | None:
    if isinstance(payload, dict):
        found = [payload[key] for key in ("data", "models") if key in payload]
        # A server without any model may say null for its list.
        payload = next((each for each in found if each is not None), [] if found else None)
    return payload if isinstance(payload, list) else None


def models_of(payload: Any) -> tuple[ModelSettings, ...]:
    """The models of an answer; entries without a name are left out."""
    return tuple(
        _model(entry)
        for entry in _entries(payload) or ()
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and entry["id"].strip()
    )


def _model(entry: dict[str, Any]) -> ModelSettings:
    top, meta = _object(entry.get("top_provider")), _object(entry.get("meta"))
    return ModelSettings(
        clean_text(entry["id"]),
        _first_count(
            *(entry.get(key) for key in _CONTEXT_KEYS), top.get("context_length"), meta.get("n_ctx")
        ),
        _first_count(*(entry.get(key) for key in _OUTPUT_KEYS), top.get("max_completion_tokens")),
        _price(_object(entry.get("pricing"))),
        _capabilities(entry),
    )


_CONTEXT_KEYS = (
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "max_input_tokens",
)
_OUTPUT_KEYS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


def _capabilities(entry: dict[str, Any]) -> tuple[str, ...] | None:
    """What OpenRouter tells of modalities and parameters, in the catalogue's words."""
    modalities = _object(entry.get("architecture")).get("input_modalities")
    parameters = entry.get("supported_parameters")
    if not isinstance(modalities, list) and not isinstance(parameters, list):
        return None
    words = (*_list(modalities), *_list(parameters))
    return tuple(word for word in ("tools", "reasoning", "image") if word in words)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _price(pricing: dict[str, Any]) -> Price | None:
    """Dollars a token, as texts; a negative one is OpenRouter's for a price that varies."""
    amounts = [_amount(pricing.get(key)) for key in ("prompt", "completion")]
    if amounts[0] is None or amounts[1] is None:
        return None
    read, write = (_amount(pricing.get(key)) for key in ("input_cache_read", "input_cache_write"))
    return Price(amounts[0], amounts[1], read, write)


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        amount = float(value) * 1_000_000
    except (ValueError, OverflowError):  # digits without end are a number of JSON too
        return None
    return round(amount, 9) if 0 <= amount < 1e9 else None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first_count(*values: object) -> int | None:
    return next((value for value in values if type(value) is int and 0 < value < MAX_TOKENS), None)
