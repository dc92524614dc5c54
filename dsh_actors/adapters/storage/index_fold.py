"""What the index keeps of a session beyond its line in the list: totals and titles, folded piece by piece."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from dsh_actors.adapters.storage.summary import SessionSummary
from dsh_actors.core.chunks import Usage
from dsh_actors.core.events import Event, wrong_payload
from dsh_actors.core.state import Counters
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import EventRefused

__all__ = ["Projection"]

_SETTLING = frozenset({"assistant/message", "step/end", "turn/end", "llm/retry"})


@dataclass(slots=True)
class Projection:
    """A fold that can be put aside and gone on with. ``next_seq``: what it has taken in so far."""

    next_seq: int = 0
    summary: SessionSummary = field(default_factory=SessionSummary)
    unbilled: JsonObject | None = None
    counters: Counters = field(default_factory=Counters)

    def observe(self, event: Event) -> None:
        """Take in the next event. Raises `EventRefused` for one that does not fit."""
        if event.seq != self.next_seq:
            raise EventRefused(f"event {event.seq} stands where event {self.next_seq} is due")
        self.summary.observe(event)
        try:
            self._fold(event.type, event.data)
        except (KeyError, TypeError, AttributeError) as error:
            raise wrong_payload(event, error) from error
        self.next_seq += 1

    def _fold(self, kind: str, data: JsonObject) -> None:
        match kind:
            case "assistant/chunk":
                if data["chunk"]["type"] == "usage":
                    self.unbilled = data["chunk"]["usage"]
            case "assistant/message":
                self.unbilled = data.get("usage") or self.unbilled
            case "session/title-llm-result":
                if data.get("usage"):
                    self.counters.add(Usage.from_json(data["usage"]))
            case "turn/start":
                self.counters.turns += 1
            case "step/start":
                self.counters.steps += 1
            case "tool/call":
                self.counters.tool_calls += 1
            case "llm/retry":
                self.counters.retries += 1
        if kind in _SETTLING and self.unbilled is not None:
            self.counters.add(Usage.from_json(self.unbilled))
            self.unbilled = None

    def dump(self) -> str:
        """For `load`."""
        totals = [getattr(self.counters, name) for name in Counters.__slots__]
        told = self.summary
        rest = [told.is_open, told.given_title, told.first_prompt, self.unbilled]
        return json.dumps([self.next_seq, totals, rest])

    @staticmethod
    def load(text: str) -> Projection:
        """Raises ValueError or TypeError for a text that `dump` did not make."""
        next_seq, totals, rest = json.loads(text)
        counters, summary = Counters(*totals), SessionSummary()
        summary.is_open, summary.given_title, summary.first_prompt, unbilled = rest
        summary.turns, summary.is_empty = counters.turns, next_seq == 0
        return Projection(next_seq, summary, unbilled, counters)
