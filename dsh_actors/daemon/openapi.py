"""The OpenAPI 3.1 description of the HTTP interface, made of the table that the routes are made of."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsh_actors import __version__
from dsh_actors.core.text import JsonObject
from dsh_actors.daemon.routes import ERRORS, JSON, Parameter, Route
from dsh_actors.daemon.schemas import COMPONENTS, ref

__all__ = ["describe"]

_COMMON = (400, 401, 403, 500, 503)
_OF_BODIES = (408, 411, 413, 415)


def describe(routes: Sequence[Route]) -> JsonObject:
    """The whole document."""
    paths: dict[str, JsonObject] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dsh",
            "version": __version__,
            "description": "The daemon of dsh: agents to create, follow, steer and end. Its Unix socket "
            "needs no token; on TCP send `Authorization: Bearer TOKEN`.",
        },
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: Route) -> JsonObject:
    operation: JsonObject = {"operationId": route.name, "summary": route.summary}
    names = re.findall(r"{(\w+)}", route.path)
    parameters: list[JsonObject] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ]
    parameters += [_parameter(each) for each in route.query]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {
            "required": route.needs_body,
            "content": {JSON: {"schema": route.body}},
        }
    content: JsonObject = {"schema": route.answer} if route.answer is not None else {}
    responses: JsonObject = {
        str(route.status): {"description": "done", "content": {route.media: content}},
    }
    statuses = {*_COMMON, *route.errors, *(_OF_BODIES if route.body is not None else ())}
    for status in sorted(statuses):
        responses[str(status)] = {"description": ERRORS[status], "content": {JSON: {"schema": ref("Error")}}}
    operation["responses"] = responses
    if route.is_open:
        operation["security"] = []
    return operation


def _parameter(parameter: Parameter) -> JsonObject:
    return {
        "name": parameter.name,
        "in": parameter.where,
        "required": False,
        "description": parameter.description,
        "schema": parameter.schema,
    }
