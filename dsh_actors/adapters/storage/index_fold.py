"""What the index keeps of a session beyond its line in the list: totals and titles, folded piece by piece."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from dsh_actors.adapters.storage.summary import MAX_TITLE
from dsh_actors.core.chunks import Usage
from dsh_actors.core.events import Event
from dsh_actors.core.state import Counters
from dsh_actors.core.text import JsonObject, shorten
from dsh_actors.errors import EventRefused

__all__ = ["Projection"]

_SETTLING = frozenset({"assistant/message", "step/end", "turn/end", "llm/retry"})


@dataclass(slots=True)
class Projection:
    """A fold that can be put aside and gone on with. ``next_seq``: what it has taken in so far."""

    next_seq: int = 0
    is_open: bool = False
    title: str | None = None
    first_prompt: str | None = None
    unbilled: JsonObject | None = None
    counters: Counters = field(default_factory=Counters)

    @property
    def status(self) -> str:
        if self.next_seq == 0:
            return "empty"
        return "interrupted" if self.is_open else "ok"

    def observe(self, event: Event) -> None:
        """Take in the next event. Raises `EventRefused` for one that does not fit."""
        if event.seq != self.next_seq:
            raise EventRefused(f"event {event.seq} stands where event {self.next_seq} is due")
        try:
            self._fold(event.type, event.data)
        except (KeyError, TypeError, AttributeError) as error:
            raise EventRefused(f"{event.type} event {event.seq} has a wrong payload: {error!r}") from error
        self.next_seq += 1

    def _fold(self, kind: str, data: JsonObject) -> None:
        match kind:
            case "assistant/chunk":
                if data["chunk"]["type"] == "usage":
                    self.unbilled = data["chunk"]["usage"]
            case "assistant/message":
                self.unbilled = data.get("usage") or self.unbilled
            case "turn/start":
                self.counters.turns += 1
                self.is_open = True
            case "turn/end":
                self.is_open = False
            case "step/start":
                self.counters.steps += 1
            case "tool/call":
                self.counters.tool_calls += 1
            case "llm/retry":
                self.counters.retries += 1
            case "session/title":
                self.title = _one_line(data["title"])
            case "user/message" if self.first_prompt is None and data["source"]["kind"] == "user":
                texts = (block["text"] for block in data["content"] if block["type"] == "text")
                self.first_prompt = _one_line("".join(texts))
        if kind in _SETTLING and self.unbilled is not None:
            self.counters.add(Usage.from_json(self.unbilled))
            self.unbilled = None

    def dump(self) -> str:
        """For `load`."""
        totals = [getattr(self.counters, name) for name in Counters.__slots__]
        rest = [self.is_open, self.title, self.first_prompt, self.unbilled]
        return json.dumps([self.next_seq, totals, rest])

    @staticmethod
    def load(text: str) -> Projection:
        """Raises ValueError or TypeError for a text that `dump` did not make."""
        next_seq, totals, rest = json.loads(text)
        is_open, title, first_prompt, unbilled = rest
        return Projection(next_seq, is_open, title, first_prompt, unbilled, Counters(*totals))


def _one_line(text: str) -> str | None:
    return shorten(" ".join(text.split()), MAX_TITLE) or None
