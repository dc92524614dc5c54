"""The WSGI application: the table of routes behind bottle. Each request is checked, each error has one form.

Nothing that is raised below gets out as anything but ``{"error": …}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import bottle

from dsh_actors import errors
from dsh_actors.core.text import json_fault, read_json
from dsh_actors.daemon.access import Access
from dsh_actors.daemon.approvals_desk import ApprovalNotFound
from dsh_actors.daemon.page import page_policy
from dsh_actors.daemon.routes import HTML, JSON, PLAIN, Call, Parameter, Refusal, Reply, Route
from dsh_actors.daemon.schemas import ref, schema_faults
from dsh_actors.errors import HarnessError
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.tasks import DeadlinePassed, deadline
from dsh_actors.runtime.wsgi import CONNECTION_KEY, error_body

__all__ = ["MAX_BODY_BYTES", "build_app", "status_of"]

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Prompts of many megabytes are work; a body beyond this is refused unread."""

_BODY_S = 60.0
"""How long a whole body may take to come."""

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_CHARSETS = {PLAIN: "text/plain; version=0.0.4; charset=utf-8", HTML: "text/html; charset=utf-8"}
_STATUS_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 400: "BAD_REQUEST"}
_TASK = ref("TaskSpec")

Tally = Callable[[int], None]


def build_app(
    routes: Sequence[Route],
    access: Access,
    *,
    is_stopping: Callable[[], bool],
    tally: Tally,
) -> Callable[..., Iterable[bytes]]:
    """``tally`` counts answers by status. While it ``is_stopping`` only health is answered."""
    app = bottle.Bottle()
    app.default_error_handler = _own_error
    methods: dict[str, set[str]] = {}
    for route in routes:
        place = _bottle_path(route.path)
        methods.setdefault(place, {"OPTIONS"}).add(route.method)
        app.route(place, route.method, _handler(route, access, is_stopping, tally))
    for place, known in methods.items():
        allowed = ", ".join(sorted(known | ({"HEAD"} if "GET" in known else set())))
        app.route(place, "OPTIONS", lambda allowed=allowed, **_ids: _options(allowed))
    return app  # type: ignore[no-any-return]  # bottle is untyped


def _bottle_path(path: str) -> str:
    # The id of a question holds what a model chose, slashes too; nothing comes behind it.
    if path == "/v1/approvals/{id}":
        return "/v1/approvals/<id:path>"
    return re.sub(r"{(\w+)}", r"<\1>", path)


def _handler(
    route: Route, access: Access, is_stopping: Callable[[], bool], tally: Tally
) -> Callable[..., Any]:
    def handle(**ids: str) -> Any:
        environ = bottle.request.environ
        try:
            access.require(environ, is_open=route.is_open)
            if is_stopping() and not route.is_open:
                raise Refusal(503, "STOPPING", "the daemon is stopping", "try again when it has started anew")
            reply = route.handle(_checked(route, environ, ids))
        except Exception as error:  # whatever a handler meets becomes an answer
            reply = _refused(error)
        tally(reply.status)
        return _written(reply, environ["REQUEST_METHOD"])

    return handle


def _written(reply: Reply, method: str) -> Any:
    response = bottle.response
    response.status = reply.status
    response.content_type = _CHARSETS.get(reply.media, reply.media)
    for name, value in {**_HEADERS, **reply.headers}.items():
        response.set_header(name, value)
    if reply.stream is not None:
        return reply.stream if method != "HEAD" else b""
    if reply.media == HTML:
        response.set_header("Content-Security-Policy", page_policy())
    if isinstance(reply.body, bytes):
        return reply.body
    if reply.media != JSON:
        return str(reply.body).encode("utf-8", "replace")
    text = json.dumps(reply.body, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


# --- what is asked --------------------------------------------------------------------------------


def _checked(route: Route, environ: Mapping[str, Any], ids: Mapping[str, str]) -> Call:
    try:
        environ["bottle.raw_path"].encode("latin-1").decode()
    except UnicodeDecodeError as error:
        # bottle leaves out what it cannot decode, which would be the path of another thing.
        raise Refusal(400, "BAD_REQUEST", "the path is not UTF-8") from error
    in_query = {each.name: each for each in route.query if each.where == "query"}
    headers = {
        each.name: environ.get(f"HTTP_{each.name.upper().replace('-', '_')}", "")
        for each in route.query
        if each.where == "header"
    }
    return Call(
        ids,
        _query(in_query, environ.get("QUERY_STRING", "")),
        headers,
        _body(route, environ) if route.body is not None else None,
        environ[CONNECTION_KEY],
    )


def _query(known: Mapping[str, Parameter], text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError as error:
        raise Refusal(400, "BAD_REQUEST", "the query is malformed") from error
    for name, value in pairs:
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise Refusal(400, "BAD_REQUEST", f"unknown parameter {name!a}", f"known here: {names}")
        if name in found:
            raise Refusal(400, "BAD_REQUEST", f"{name} is given twice")
        found[name] = _parameter_value(known[name], value)
    return found


def _parameter_value(parameter: Parameter, text: str) -> Any:
    kind = parameter.schema["type"]
    value: Any = text
    if kind == "integer" and re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        value = int(text)
    elif kind == "number" and re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?(e[+-]?\d{1,2})?", text, re.ASCII | re.I):
        value = float(text)
    elif kind == "boolean":
        value = {"1": True, "true": True, "0": False, "false": False}.get(text, text)
    faults = schema_faults(parameter.schema, value)
    if faults:
        raise Refusal(400, "BAD_REQUEST", f"{parameter.name}{faults[0].removeprefix('$')}")
    return value


def _body(route: Route, environ: Mapping[str, Any]) -> Any:
    raw = _raw_body(environ)
    if raw is None:
        if route.needs_body:
            raise Refusal(411, "LENGTH_REQUIRED", "a JSON body is needed", "send Content-Length and a body")
        return None
    media = environ.get("CONTENT_TYPE", "").partition(";")[0].strip().lower()
    if media != JSON:
        raise Refusal(
            415, "NOT_JSON", f"a body is {JSON}, not {media or 'untyped'}", f"send Content-Type: {JSON}"
        )
    try:
        body = read_json(raw.decode())
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "BAD_JSON", f"the body is no JSON: {_reason(error)}") from error
    if route.body != _TASK:  # a task is checked, with better words, where it is read
        faults = schema_faults(route.body or {}, body)
        if faults:
            raise Refusal(400, "BAD_REQUEST", f"the body{faults[0].removeprefix('$')}")
    return body


def _raw_body(environ: Mapping[str, Any]) -> bytes | None:
    is_chunked = environ.get("HTTP_TRANSFER_ENCODING", "").lower() == "chunked"
    length = environ.get("CONTENT_LENGTH", "")
    if not is_chunked and not length:
        return None
    if length and int(length) > MAX_BODY_BYTES and not is_chunked:
        raise _too_large()
    parts, size = [], 0
    try:
        # A slow sender holds up nobody but itself, and that not for ever.
        with deadline(_BODY_S):
            while part := environ["wsgi.input"].read(65_536):
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise _too_large()
                parts.append(part)
    except (DeadlinePassed, TimeoutError) as error:
        raise Refusal(408, "TOO_SLOW", "the body did not come in time") from error
    except OSError as error:
        raise Refusal(400, "BAD_REQUEST", "the body is malformed, or was cut") from error
    if not is_chunked and size < int(length):
        raise Refusal(400, "BAD_REQUEST", "the body is shorter than its length")
    return b"".join(parts) or None


def _too_large() -> Refusal:
    return Refusal(413, "BODY_TOO_LARGE", f"a body has at most {MAX_BODY_BYTES} bytes")


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return json_fault(error)


# --- errors ---------------------------------------------------------------------------------------


def _refused(error: Exception) -> Reply:
    if isinstance(error, Refusal):
        return _error_reply(error.status, error.code, error.message, error.hint, error.headers)
    if isinstance(error, HarnessError):
        status = status_of(error)
        retry = {"Retry-After": str(getattr(error, "retry_after_s", 1))} if status == 503 else {}
        return _error_reply(status, error.code, error.message, error.hint, retry)
    LOGGER.error("a request failed", exc_info=error)
    return _error_reply(500, "INTERNAL", f"internal error: {type(error).__name__}")


def status_of(error: HarnessError) -> int:
    """The HTTP status of an error of ours."""
    match error:
        case errors.AgentNotFound() | errors.SessionNotFound() | ApprovalNotFound():
            return 404
        case errors.HostFull():
            return 503
        case errors.CredentialError():
            return 422
        case errors.UsageError() | errors.EventRefused():
            return 400
        case errors.SessionExists() | errors.SessionBusy():
            return 409
        case errors.SessionCorrupt() | errors.SessionUnsupported():
            return 409
        case errors.StorageFull():
            return 507
        case errors.ActorGone():
            return 503
    return 500


def _error_reply(
    status: int, code: str, message: str, hint: str | None = None, headers: Mapping[str, str] | None = None
) -> Reply:
    return Reply(error_body(code, message, hint), status, headers=headers or {})


def _own_error(error: Any) -> bytes:
    """What bottle refuses by itself: a path or a method that is not there, a path that is not UTF-8."""
    status = error.status_code
    # It leads to the frame of bottle that keeps it: the connection would wait for a collection.
    error.__traceback__ = None
    bottle.response.content_type = JSON
    words = {404: "there is no such path", 405: "this path has other methods", 400: "the path is malformed"}
    if status >= 500:
        LOGGER.error("a request failed: %s", error.body)
    hint = "GET /v1/openapi.json describes every path" if status in words else None
    return error_body(_STATUS_CODES.get(status, "INTERNAL"), words.get(status, "internal error"), hint)


def _options(allowed: str) -> Any:
    bottle.response.status = 204
    bottle.response.set_header("Allow", allowed)
    return b""
