"""What the environment says about the way to a provider: certificates to trust, and proxies."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from requests.utils import select_proxy

from dsh_actors.adapters.llm.settings import ProviderConfig
from dsh_actors.config.addresses import is_web_address, shown_address, with_scheme

__all__ = ["UnusableCertificates", "UnusableProxy", "certificates", "proxies_for"]


class UnusableCertificates(OSError):
    """The file of certificates to trust cannot be read. Connecting without it would trust others."""


class UnusableProxy(ValueError, OSError):
    """The proxy that the environment names is none. Connecting without it is not what was asked for."""


def certificates(config: ProviderConfig) -> str | None:
    """The file of certificates that was asked for, if any."""
    if urlsplit(config.base_url).scheme != "https":
        return None
    where, path = f"ca_file of {config.name}", config.ca_file
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        if not path:
            where, path = name, os.environ.get(name)
    if not path:
        return None
    try:
        if not os.path.isdir(path):
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError as error:
        text = f"{where}: cannot read the certificates in {path}: {error.strerror or error}"
        raise UnusableCertificates(text) from error
    return path


def proxies_for(url: str, proxies: Mapping[str, str]) -> tuple[Mapping[str, str], str]:
    """The proxies to use for ``url`` by scheme, and the one that is, for people."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    excepted = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    proxy = select_proxy(url, dict(proxies))
    # The library looks at ports of names only, not of addresses.
    if not proxy or f"{parts.hostname}:{port}" in excepted.replace(" ", "").split(","):
        return {}, ""
    address = with_scheme(proxy)
    if not is_web_address(address):
        raise UnusableProxy(
            "the proxy cannot be used: the one of the environment does not look like http://host:port"
        )
    return {parts.scheme: address}, f" by the proxy {shown_address(address)}"
