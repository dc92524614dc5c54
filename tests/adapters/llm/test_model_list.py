"""Lists of models as servers give them: their shapes, on a real socket, and what goes wrong."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from dsh_actors.adapters.llm import model_list, registry
from dsh_actors.adapters.llm.model_list import fetch_models, models_of
from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.adapters.llm.settings import ProviderConfig
from dsh_actors.config.models import ModelSettings
from dsh_actors.config.profiles import PROFILES
from dsh_actors.core.pricing import Price
from dsh_actors.errors import CredentialError, ProviderError
from tests.adapters.llm.llm_kit import KEY, Server, config

LLAMA = {
    "object": "list",
    "data": [{"id": "dir/SmolLM2.gguf", "object": "model", "owned_by": "me", "permissions": []}],
}
ROUTER = {
    "id": "lab/large",
    "context_length": 200_000,
    "architecture": {"input_modalities": ["text", "image"]},
    "supported_parameters": ["tools", "temperature"],
    "pricing": {
        "prompt": "0.000003",
        "completion": "0.000015",
        "input_cache_read": "0.0000003",
        "input_cache_write": "0.00000375",
    },
    "top_provider": {"context_length": 190_000, "max_completion_tokens": 64_000},
}


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({"object": "list", "data": [{"id": "a", "object": "model", "owned_by": "x"}]}, [ModelSettings("a")]),
        (LLAMA, [ModelSettings("dir/SmolLM2.gguf")]),
        ({"data": [{"id": "q", "max_model_len": 32_768}]}, [ModelSettings("q", 32_768)]),
        ({"data": [{"id": "l", "meta": {"n_ctx": 4096, "n_ctx_train": 8192}}]}, [ModelSettings("l", 4096)]),
        (
            {"data": [{"id": "g", "context_window": 131_072, "max_completion_tokens": 8192}]},
            [ModelSettings("g", 131_072, 8192)],
        ),
        ([{"id": "t", "context_length": 5}], [ModelSettings("t", 5)]),
        (
            {"data": [ROUTER]},
            [ModelSettings("lab/large", 200_000, 64_000, Price(3, 15, 0.3, 3.75), ("tools", "image"))],
        ),
        (
            {"data": [{"type": "model", "id": "claude", "display_name": "C", "created_at": "2026-01-01"}]},
            [ModelSettings("claude")],
        ),
        (
            {"data": [{"id": "v", "pricing": {"prompt": "-1", "completion": "-1"}, "context_length": True}]},
            [ModelSettings("v")],
        ),
        (
            {"data": [{"id": ""}, {"id": 5}, None, "x", {"name": "n"}, {"id": "ok\ud800"}]},
            [ModelSettings("ok\ufffd")],
        ),
        ({"data": [{"id": "o", "pricing": {"prompt": "nan", "completion": "x"}}]}, [ModelSettings("o")]),
        (
            {
                "data": [
                    {"id": "w", "pricing": {"prompt": 10**400, "completion": 1}, "context_length": 10**400},
                    {"id": "x", "architecture": {"input_modalities": ["image"]}, "supported_parameters": 5},
                    {"id": "y", "architecture": {"input_modalities": 5}, "supported_parameters": ["tools"]},
                ]
            },
            [
                ModelSettings("w"),
                ModelSettings("x", capabilities=("image",)),
                ModelSettings("y", capabilities=("tools",)),
            ],
        ),
        ({"data": []}, []),
        ({"object": "list", "data": None}, []),
        ({"data": None, "models": [{"id": "m"}]}, [ModelSettings("m")]),
        (
            {"data": [{"id": "o", "pricing": {"prompt": 9**999, "completion": 1}, "max_model_len": 9**999}]},
            [ModelSettings("o")],
        ),
    ],
)
def test_each_servers_list_is_read(payload: Any, expected: list[ModelSettings]) -> None:
    assert list(models_of(payload)) == expected


def test_a_byte_order_mark_before_the_list_is_none_of_it() -> None:
    with Server(answering("200 OK", b'\xef\xbb\xbf{"data":[{"id":"m"}]}')) as server:
        assert fetch_models(config(server.url)) == (ModelSettings("m"),)


def answering(status: str, body: bytes) -> Callable[[socket.socket, bytes], object]:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda connection, request: connection.sendall(head + body)


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()


def provider(server: Server, **changes: object) -> ProviderConfig:
    return config(server.url, **changes)


def test_the_list_is_asked_for_beside_the_other_calls_with_the_key() -> None:
    with Server(answering("200 OK", as_json(LLAMA))) as server:
        assert fetch_models(provider(server)) == (ModelSettings("dir/SmolLM2.gguf"),)
        fetch_models(provider(server, api_key=None, headers={"X-Extra": "1"}))
    first, second = (request.decode().lower() for request in server.requests)
    assert first.startswith("get /v1/models http/1.1\r\n") and f"authorization: bearer {KEY}\r\n" in first
    assert "authorization" not in second and "x-extra: 1\r\n" in second


def test_a_profile_says_in_which_header_the_key_goes_and_a_query_stays_at_the_end() -> None:
    with Server(answering("200 OK", as_json(LLAMA))) as server:
        fetch_models(config(f"{server.url}?api-version=7", profile=PROFILES["azure"]))
    text = server.requests[0].decode().lower()
    assert text.startswith("get /v1/models?api-version=7 http/1.1\r\n")
    assert f"api-key: {KEY}\r\n" in text and "authorization" not in text


@pytest.fixture
def anthropic(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[ModelSettings, ...]]:
    """Asks a server of this type. Which adapter the type has does not matter here."""
    monkeypatch.setitem(registry._TYPES, "anthropic", OpenAiCompatibleProvider)
    return lambda url: fetch_models(config(url, type="anthropic"))


@pytest.mark.parametrize("base", ["", "/v1"])
def test_anthropic_is_asked_in_its_own_way_page_by_page(
    base: str, anthropic: Callable[[str], tuple[ModelSettings, ...]]
) -> None:
    pages = [
        {"data": [{"id": "one"}, {"id": "two"}], "has_more": True, "last_id": "two&"},
        {"data": [{"id": "two"}, {"id": "three"}], "has_more": False, "last_id": "three"},
    ]

    def handle(connection: socket.socket, request: bytes) -> None:
        answering("200 OK", as_json(pages[b"after_id" in request.split(b"\r\n")[0]]))(connection, request)

    with Server(handle) as server:
        url = server.url.removesuffix("/v1") + base
        found = anthropic(url)
    assert [model.id for model in found] == ["one", "two", "three"]
    lines = [request.decode().lower() for request in server.requests]
    assert lines[0].startswith("get /v1/models?limit=1000 http")
    assert lines[1].startswith("get /v1/models?limit=1000&after_id=two%26 http")
    assert all(f"x-api-key: {KEY}\r\n" in text and "authorization" not in text for text in lines)
    assert all("anthropic-version: " in text for text in lines)


def test_a_server_that_always_promises_more_is_not_asked_for_ever(
    anthropic: Callable[[str], tuple[ModelSettings, ...]],
) -> None:
    page = as_json({"data": [{"id": "one"}], "has_more": True, "last_id": "one"})
    with Server(answering("200 OK", page)) as server:
        assert len(anthropic(server.url)) == 1
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        ("401 Unauthorized", as_json({"error": {"message": f"bad key {KEY}"}}), "AUTH", "bad key [key]"),
        ("404 Not Found", b"<html><h1>Not Found</h1></html>", "INVALID_REQUEST", "HTTP 404: Not Found"),
        ("302 Found", b"", "INVALID_REQUEST", "redirects"),
        ("503 Busy", b"", "OVERLOADED", "HTTP 503"),
        ("200 OK", b"<html>hello</html>", "MALFORMED_RESPONSE", "not a list of models"),
        ("200 OK", b"", "MALFORMED_RESPONSE", "not a list of models"),
        ("200 OK", b"[" * 100_000, "MALFORMED_RESPONSE", "not a list of models"),
        ("200 OK", as_json({"data": {"id": "x"}}), "MALFORMED_RESPONSE", "not a list of models"),
        ("200 OK", as_json({"error": {"message": f"no {KEY}"}}), "MALFORMED_RESPONSE", "no [key]"),
    ],
)
def test_what_is_no_list_is_one_clear_error(status: str, body: bytes, code: str, words: str) -> None:
    with Server(answering(status, body)) as server, pytest.raises(ProviderError) as caught:
        fetch_models(provider(server))
    assert caught.value.code == code and words in caught.value.message
    assert caught.value.message.startswith("test: GET /models: ")
    assert KEY not in caught.value.message and "\n" not in caught.value.message


def test_a_list_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_list, "MAX_LIST_BYTES", 200_000)

    def handle(connection: socket.socket, request: bytes) -> bool:
        connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b" " * 300_000)
        return False

    with Server(handle) as server, pytest.raises(ProviderError, match="too long"):
        fetch_models(provider(server))


def test_a_silent_server_and_one_that_is_not_there_are_errors_in_bounded_time() -> None:
    with Server(lambda connection, request: None) as server, pytest.raises(ProviderError) as silent:
        fetch_models(provider(server, first_event_timeout_s=0.2))
    assert silent.value.code == "TIMEOUT"
    with socket.socket() as taken, pytest.raises(ProviderError) as absent:
        taken.bind(("127.0.0.1", 0))  # and does not listen, nor can anybody else
        fetch_models(config(f"http://127.0.0.1:{taken.getsockname()[1]}/v1"))
    assert absent.value.code == "TRANSPORT"


@pytest.mark.parametrize("key", [None, "sk-sécret"])
def test_without_a_usable_key_nothing_is_sent(key: str | None) -> None:
    with Server(answering("200 OK", as_json(LLAMA))) as server, pytest.raises(CredentialError):
        fetch_models(provider(server, api_key=key, api_key_env="TEST_KEY"))
    assert server.requests == []


def test_a_proxy_that_is_not_there_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:canary@127.0.0.1:1")
    with pytest.raises(ProviderError) as caught:
        fetch_models(config("http://me:canary@inner.invalid/v1"))
    assert "(http://inner.invalid/v1 by the proxy http://127.0.0.1:1)" in caught.value.message
    assert "canary" not in caught.value.message


@pytest.mark.parametrize("amount", [pytest.param(10**400, id="huge"), "1e999", "-1", "nan", True, None, [1]])
def test_a_price_that_is_no_amount_is_not_known(amount: object) -> None:
    (model,) = models_of([{"id": "m", "pricing": {"prompt": amount, "completion": "1"}}])
    assert model == ModelSettings("m")
