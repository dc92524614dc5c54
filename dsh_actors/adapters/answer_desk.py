"""Looks at an agent's answer when its turn is about to stop, and sends back what does not fit its schema."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Protocol

from dsh_actors.adapters.json_schema import AnswerSchema
from dsh_actors.core.answers import (
    REJECTED,
    STRUCTURED,
    AnswerRefused,
    FinalReply,
    parse_answer,
    rejection_message,
    rejection_summary,
    shown_errors,
)
from dsh_actors.core.events import Event
from dsh_actors.core.messages import Message, PluginSource, user_message
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.scope import Scope
from dsh_actors.core.text import JsonObject, JsonValue
from dsh_actors.errors import UsageError
from dsh_actors.runtime.files import run_native

__all__ = ["AnswerDesk", "hold_to_schema", "require_schema"]


class _Agent(Protocol):
    def steer(self, text: Message) -> Any: ...
    def record(self, kind: str, data: JsonObject, *, ignorable: bool = False) -> None: ...
    def record_value(self, kind: str, value: JsonValue) -> None: ...


def require_schema(options: AgentOptions) -> None:
    """Raises `UsageError` for options whose schema cannot be used."""
    if type(options.schema_retries) is not int or options.schema_retries < 0:
        raise UsageError(f"schema_retries is a number from 0 on, not {options.schema_retries!r}")
    AnswerSchema.of(options.schema)


def hold_to_schema(
    scope: Scope, options: AgentOptions, agent: _Agent, has_more_to_come: Callable[[], bool]
) -> None:
    """Let every final answer of an agent with this scope be looked at."""
    desk = AnswerDesk(AnswerSchema.of(options.schema), options.schema_retries, agent, has_more_to_come)
    scope.observe("session/event", desk.on_event)
    scope.listen("agent/turn-stopping", desk.on_stopping)


class AnswerDesk:
    """One agent's. ``retries`` is how often in one turn it is asked again.

    ``has_more_to_come``: something goes on that will wake the agent again, so this is no final answer.
    """

    def __init__(
        self, schema: AnswerSchema, retries: int, agent: _Agent, has_more_to_come: Callable[[], bool]
    ) -> None:
        self._schema = schema
        self._retries = retries
        self._agent = agent
        self._has_more_to_come = has_more_to_come
        self._reply = FinalReply()
        self._turn = 0
        self._rejected = 0

    def on_event(self, event: Event) -> None:
        """An observer of the session's events; quick."""
        if event.type != "assistant/chunk":
            self._reply.apply(event)

    def on_stopping(self, payload: JsonObject) -> None:
        """A listener of ``agent/turn-stopping``; may take a while, and the turn goes on if it steers."""
        if payload["reason"]["kind"] != "completed" or self._has_more_to_come():
            return  # an answer that was cut is no answer, and neither is one before the last
        if self._turn != payload["turn"]:
            self._turn, self._rejected = payload["turn"], 0
        try:
            value = run_native(parse_answer, self._reply.text)
            errors = self._schema.errors(value)
        except AnswerRefused as error:
            value, errors = None, [f"$: {error}"]
        if errors:
            self._reject(shown_errors(errors))
        else:
            self._accept(value)

    def _accept(self, value: JsonValue) -> None:
        self._agent.record_value(STRUCTURED, value)

    def _reject(self, errors: list[str]) -> None:
        self._rejected += 1
        self._agent.record(REJECTED, {"errors": errors, "attempt": self._rejected}, ignorable=True)
        if self._rejected <= self._retries:
            source = PluginSource("answer-schema", "notice", {"summary": rejection_summary(errors)})
            message_id = f"msg-{secrets.token_hex(12)}"
            self._agent.steer(user_message(message_id, rejection_message(errors), source))
