"""Certificates and proxies, as configured and as the usual environment variables say, over real sockets."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.core.chunks import Chunk, Finish
from dsh_actors.core.retry import CODES
from tests.adapters.llm.llm_kit import HI, KEY, Server, call, chunk, config, failure_of, head
from tests.adapters.llm.secure_kit import AUTHORITY, PROXY_NAMES, Greeting, Proxy, SecureServer

PASSWORD = "open-sesame-77"
BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*BUNDLES, *PROXY_NAMES, *map(str.lower, PROXY_NAMES)):
        monkeypatch.delenv(name, raising=False)


def answer(connection: socket.socket, request: bytes) -> None:
    connection.sendall(head() + chunk(HI) + chunk(b""))


def ask(url: str, **changes: object) -> list[Chunk]:
    return call(OpenAiCompatibleProvider(config(url, **changes)))


def works(chunks: list[Chunk]) -> bool:
    return chunks[-1] == Finish("stop")


# --- certificates -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUNDLES)
def test_a_private_authority_is_trusted_where_the_environment_names_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SecureServer(answer) as server:
        assert failure_of(ask(server.url)).code == "TLS"
        monkeypatch.setenv(name, AUTHORITY)
        assert works(ask(server.url))


def test_a_provider_may_have_an_authority_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "absent"))
    with SecureServer(answer) as server:
        assert works(ask(server.url, ca_file=AUTHORITY))


def test_secure_connections_are_used_again() -> None:
    with SecureServer(answer) as server:
        provider = OpenAiCompatibleProvider(config(server.url, ca_file=AUTHORITY))
        assert all(works(call(provider)) for _ in range(5))
        assert server.connections == 1


def test_a_certificate_for_another_host_is_refused_in_one_line_and_not_tried_again() -> None:
    with SecureServer(answer, "elsewhere") as server:
        failure = failure_of(ask(server.url, ca_file=AUTHORITY))
        assert server.requests == []
    assert failure.code == "TLS" and not CODES["TLS"].retryable
    assert "127.0.0.1" in failure.message and "\n" not in failure.message


@pytest.mark.parametrize("place", [*BUNDLES, "ca_file"])
@pytest.mark.parametrize("content", [None, "these are no certificates\n"])
def test_certificates_that_cannot_be_read_are_named_before_anything_is_sent(
    place: str, content: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "bundle.pem"
    if content is not None:
        file.write_text(content)
    changes = {"ca_file": str(file)} if place == "ca_file" else {}
    monkeypatch.setenv(place, str(file))
    with SecureServer(answer) as server:
        failure = failure_of(ask(server.url, **changes))
        assert server.requests == []
    assert failure.code == "TLS"
    assert str(file) in failure.message
    assert place in failure.message


def test_certificates_do_not_matter_where_nothing_is_secure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "absent"))
    with Server(answer) as server:
        assert works(ask(server.url))


def test_a_server_without_tls_at_a_secure_address_is_named() -> None:
    with Greeting(b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        failure = failure_of(ask(server.url.replace("http:", "https:")))
    assert failure.code == "TLS"


# --- proxies ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])
def test_a_proxy_gets_whole_requests_for_plain_addresses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(answer) as server, Server(answer) as proxy:
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert works(ask(server.url))
        assert (len(server.requests), len(proxy.requests)) == (0, 1)
        assert proxy.requests[0].startswith(f"POST {server.url}/chat/completions".encode())


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_a_proxy_opens_a_tunnel_to_secure_addresses_and_sees_no_secret(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SecureServer(answer) as server, Proxy() as proxy:
        monkeypatch.setenv(name, f"http://someone:{PASSWORD}@{proxy.address}")
        provider = OpenAiCompatibleProvider(config(server.url, ca_file=AUTHORITY))
        assert works(call(provider)) and works(call(provider))
        (head_of_tunnel,) = proxy.heads
        assert head_of_tunnel.startswith(f"CONNECT 127.0.0.1:{server.port} ")
        assert "Proxy-Authorization: Basic " in head_of_tunnel
        assert KEY not in head_of_tunnel
        assert len(server.requests) == 2
        assert all(b"Proxy-" not in request for request in server.requests)


def test_a_proxy_may_be_named_with_a_password_and_without_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    with SecureServer(answer) as server, Proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"someone:{PASSWORD}@{proxy.address}")
        assert works(ask(server.url, ca_file=AUTHORITY))
        assert "Proxy-Authorization: Basic " in proxy.heads[0]


@pytest.mark.parametrize("host", ["a..b", "a b", "x" * 64, " "])
def test_a_proxy_whose_name_cannot_be_looked_up_is_refused_unseen(
    host: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("http_proxy", f"http://someone:{PASSWORD}@{host}:9")
    failure = failure_of(ask("http://model.invalid/v1"))
    assert failure.code == "INVALID_REQUEST" and "does not look like http://host:port" in failure.message
    assert PASSWORD not in failure.message and capfd.readouterr().err == ""


def test_a_certificate_is_checked_behind_a_tunnel_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with SecureServer(answer, "elsewhere") as server, Proxy() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://{proxy.address}")
        assert failure_of(ask(server.url, ca_file=AUTHORITY)).code == "TLS"


@pytest.mark.parametrize("form", ["127.0.0.1", "127.0.0.0/8", "127.0.0.1:{port}", "*", "x.test, 127.0.0.1"])
@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_addresses_without_a_proxy_are_reached_directly(
    name: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(answer) as server, Proxy() as proxy:
        monkeypatch.setenv("ALL_PROXY", f"http://{proxy.address}")
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy.address}")
        monkeypatch.setenv(name, form.format(port=server.port))
        assert works(ask(server.url))
        assert proxy.heads == []


@pytest.mark.parametrize(
    ("proxy_url", "code"),
    [
        ("http://someone:{password}@127.0.0.1:9", "TRANSPORT"),
        ("http://someone:{password}@127.0.0.1:port", "INVALID_REQUEST"),
        ("http://someone:{password}@", "INVALID_REQUEST"),
        ("gopher://someone:{password}@127.0.0.1:9", "INVALID_REQUEST"),
        ("socks5://someone:{password}@127.0.0.1:9", "INVALID_REQUEST"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(
    proxy_url: str, code: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy_url.format(password=PASSWORD))
    failure = failure_of(ask(f"{scheme}://127.0.0.1:9/v1"))
    assert failure.code == code, failure
    assert PASSWORD not in failure.message and "someone" not in failure.message


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "AUTH"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "TRANSPORT"),
        (b"nonsense", "TRANSPORT"),
        (b"", "TRANSPORT"),
    ],
)
def test_a_tunnel_that_is_refused_is_named(
    refusal: bytes, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(refusal) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://someone:{PASSWORD}@{proxy.address}")
        failure = failure_of(ask("https://127.0.0.1:9/v1"))
    assert failure.code == code, failure
    assert "proxy" in failure.message
    assert PASSWORD not in failure.message
