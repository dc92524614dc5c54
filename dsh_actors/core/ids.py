"""Names of things: plain strings at run time, distinct for the type checker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NewType

__all__ = ["CallId", "MessageId", "SessionId", "Ticket", "dated_session_id", "derived_message_id"]

SessionId = NewType("SessionId", str)
"""Names both the live agent and its durable session."""

CallId = NewType("CallId", str)
"""A tool call's id, chosen by the provider."""

MessageId = NewType("MessageId", str)

Ticket = NewType("Ticket", int)
"""One piece of outside work of an agent. A reply whose ticket is over is dropped."""


def derived_message_id(session: str, seq: int) -> MessageId:
    """The id of a message that the harness itself writes at ``seq``: unique and the same on replay."""
    return MessageId(f"{session}:{seq}")


def dated_session_id(at_ms: int, unique: str) -> SessionId:
    """An id that sorts by time (ms since the epoch) and is easy to say: ``20261130-132400-3f9a1c7e``."""
    return SessionId(f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y%m%d-%H%M%S}-{unique}")
