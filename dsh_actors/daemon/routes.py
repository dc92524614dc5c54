"""What a route of the HTTP interface is: one table makes the routes and their OpenAPI description."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsh_actors.core.text import JsonObject, JsonValue
from dsh_actors.runtime.wsgi import Connection

__all__ = [
    "ERRORS",
    "EVENT_STREAM",
    "HTML",
    "JSON",
    "PLAIN",
    "Call",
    "Parameter",
    "Refusal",
    "Reply",
    "Route",
]

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
PLAIN = "text/plain"
HTML = "text/html"

ERRORS: Mapping[int, str] = {
    400: "the request is wrong; nothing was done",
    401: "the token is missing or wrong (TCP only)",
    403: "the request did not come from this machine (TCP only)",
    404: "there is no such thing",
    405: "the path has other methods",
    408: "the body did not come in time",
    409: "it is held by somebody else, taken, or not in a state for this",
    411: "a body is needed, and its length",
    413: "the body is too large",
    415: "the body is no application/json",
    422: "the request is right, and cannot be followed here: no key, for one",
    500: "a fault of the daemon",
    503: "not now: the daemon is full or stopping",
    507: "the disk is full",
}
"""The statuses of errors, all with the same body."""


class Refusal(Exception):
    """An answer that is an error by HTTP's own rules."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One of the query, or a header. ``schema`` is a string, an integer, a number or a boolean."""

    name: str
    schema: JsonObject = field(hash=False)
    description: str
    where: str = "query"


@dataclass(frozen=True, slots=True)
class Call:
    """One request, checked: ``ids`` of the path, ``query`` values by name, ``body`` decoded (None: none)."""

    ids: Mapping[str, str] = field(hash=False)
    query: Mapping[str, Any] = field(hash=False)
    headers: Mapping[str, str] = field(hash=False)
    body: Any
    connection: Connection


@dataclass(frozen=True, slots=True)
class Reply:
    """``body``: JSON, or text of another media type; ``stream``: bytes as they come."""

    body: JsonValue = None
    status: int = 200
    media: str = JSON
    stream: Iterator[bytes] | None = field(default=None, hash=False)
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Route:
    """``path`` has ``{id}``s. ``body`` and ``answer`` are schemas; ``answer`` None where it is no JSON.

    ``is_open``: answered without a token. ``errors``: those of `ERRORS` that are not common to all.
    """

    method: str
    path: str
    name: str
    summary: str
    handle: Callable[[Call], Reply] = field(hash=False)
    answer: JsonObject | None = field(default=None, hash=False)
    status: int = 200
    media: str = JSON
    query: tuple[Parameter, ...] = ()
    body: JsonObject | None = field(default=None, hash=False)
    needs_body: bool = False
    is_open: bool = False
    errors: tuple[int, ...] = ()
