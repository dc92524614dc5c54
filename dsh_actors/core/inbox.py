"""The inbox: an agent's durable queue of pending user messages, folded from its splices.

Two lists: ``next-turn`` (one message starts one turn) and ``next-step`` (all of it joins the next
step). Every change is one ``agent/inbox/spliced`` event; claiming is deleting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from dsh_actors.core.messages import Message
from dsh_actors.core.text import JsonObject, shape_fault
from dsh_actors.errors import EventRefused

__all__ = ["TARGETS", "Inbox", "Target", "splice"]

Target = Literal["next-turn", "next-step"]
TARGETS: tuple[Target, Target] = ("next-step", "next-turn")


class Inbox:
    """The fold. Changed only by `apply`."""

    def __init__(self) -> None:
        self._lists: dict[str, list[Message]] = {"next-turn": [], "next-step": []}

    def pending(self, target: Target) -> Sequence[Message]:
        return tuple(self._lists[target])

    def has_pending(self, target: Target | None = None) -> bool:
        lists = self._lists
        return bool(lists[target]) if target else bool(lists["next-step"] or lists["next-turn"])

    def find(self, message_id: str) -> tuple[Target, int] | None:
        """Where a message waits, as list and position."""
        for target in TARGETS:
            for index, message in enumerate(self._lists[target]):
                if message.id == message_id:
                    return target, index
        return None

    def apply(self, data: JsonObject, seq: int) -> None:
        """Fold one splice. Raises `EventRefused` naming ``seq`` and changes nothing if it does not fit."""
        try:
            pending = self._lists[data["target"]]
            start, removed = data["start"], data.get("removedCount", 0)
            inserted = [Message.from_json(raw) for raw in data["inserted"]]
        except (KeyError, TypeError) as error:
            raise EventRefused(f"event {seq}: not an inbox splice: {shape_fault(error)}") from error
        if not (
            type(start) is int and type(removed) is int and 0 <= start <= start + removed <= len(pending)
        ):
            raise EventRefused(f"event {seq}: inbox splice out of range")
        staying = {m.id for messages in self._lists.values() for m in messages}
        staying -= {m.id for m in pending[start : start + removed]}
        for message in inserted:
            if message.id in staying:
                raise EventRefused(f"event {seq}: message {message.id!r} is already pending")
            staying.add(message.id)
        pending[start : start + removed] = inserted

    @staticmethod
    def restore(snapshot: JsonObject) -> Inbox:
        """The inbox of a `snapshot`. Raises `EventRefused`, `KeyError` or `TypeError` for another shape."""
        inbox = Inbox()
        for target, pending in inbox._lists.items():
            pending.extend(map(Message.from_json, snapshot[target]))
        return inbox

    def snapshot(self) -> JsonObject:
        """Both lists as JSON, for checkpoints and comparisons."""
        return {name: [m.to_json() for m in messages] for name, messages in self._lists.items()}


def splice(
    target: Target, start: int, removed: int = 0, inserted: Sequence[Message] = (), *, claim: bool = False
) -> JsonObject:
    """The payload of one change. What a claim did not remove is recorded as canceled."""
    data: JsonObject = {"target": target, "start": start}
    if removed:
        data["removedCount"] = removed
    data["inserted"] = [message.to_json() for message in inserted]
    if removed and not claim:
        data["outcome"] = "canceled"
    return data
