"""Addresses of servers and proxies: whether a text is one, how people may see it, what it hides. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import SplitResult, unquote, unquote_plus, urlsplit, urlunsplit

__all__ = ["address_secrets", "is_web_address", "proxy_secrets", "shown_address", "with_scheme"]

_NOT_IN_ADDRESSES = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]")
_HOST = re.compile(r"[A-Za-z0-9._~%:!$&'()*+,;=-]+")

_SECRET_MEMBER = re.compile(
    r"key|token|secret|pass|auth|cred|session|^(api[-_]?)?(code|sig|signature)$", re.IGNORECASE
)
"""Names of members of a query whose values are nobody's business."""

_HIDDEN = "***"
_PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def is_web_address(url: object) -> bool:
    """Whether a connection can be tried: http or https, a host that can be looked up, a port in range."""
    if not isinstance(url, str) or _NOT_IN_ADDRESSES.search(url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and parts.port != 0 and _is_host(parts.hostname or "")
    except ValueError:  # a port that is no number, a broken IPv6 address
        return False


def _is_host(host: str) -> bool:
    """Whether the name can be asked for: a resolver raises for labels that are empty or too long."""
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            return False
    labels = host.removesuffix(".").split(".")
    return _HOST.fullmatch(host) is not None and len(host) < 255 and all(0 < len(x) < 64 for x in labels)


def shown_address(url: str, user: str = "") -> str:
    """``url`` for people: ``user`` in place of a user and a password, nothing of the query's secrets."""
    parts = urlsplit(url)
    shown = parts
    if "@" in parts.netloc:
        shown = shown._replace(netloc=user + parts.netloc.rpartition("@")[2])
    if parts.query:
        shown = shown._replace(query="&".join(_shown_member(text) for text in parts.query.split("&")))
    return url if shown == parts else urlunsplit(shown)


def _shown_member(text: str) -> str:
    name, _, value = text.partition("=")
    return f"{name}={_HIDDEN}" if value and _SECRET_MEMBER.search(unquote_plus(name)) else text


def address_secrets(url: str) -> Iterator[tuple[str, str]]:
    """(place, value) of what an address holds that must not be seen: a password, members of its query."""
    parts = urlsplit(url)
    yield from _passwords(parts)
    for text in parts.query.split("&"):
        name, _, value = text.partition("=")
        if value and _SECRET_MEMBER.search(unquote_plus(name)):
            yield f"?{unquote_plus(name)}", unquote_plus(value)


def _passwords(parts: SplitResult) -> Iterator[tuple[str, str]]:
    if parts.password:
        yield "", parts.password
        if "%" in parts.password:
            yield "#", unquote(parts.password)


def with_scheme(address: str) -> str:
    """A proxy's address as variables write it; they may leave ``http://`` out."""
    return address if "://" in address else f"http://{address}"


def proxy_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """The passwords of the environment's proxies, by the variable."""
    found: dict[str, str] = {}
    for name in (*_PROXY_VARIABLES, *map(str.lower, _PROXY_VARIABLES)):
        value = env.get(name, "")
        if "@" not in value:
            continue
        try:
            secrets = list(_passwords(urlsplit(with_scheme(value.strip()))))
        except ValueError:
            continue
        found |= {f"{name}{place}": password for place, password in secrets}
    return found
