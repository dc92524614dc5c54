"""Names of things: plain strings at run time, distinct for the type checker."""

from __future__ import annotations

from typing import NewType

__all__ = ["CallId", "MessageId", "SessionId", "Ticket", "derived_message_id"]

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
