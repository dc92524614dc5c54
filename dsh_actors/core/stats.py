"""What a session took: turns, steps, time in models and tools, tokens. A pure fold over its log.

Times are wall-clock differences between events, never below 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dsh_actors.core.chunks import Usage
from dsh_actors.core.events import Event, wrong_payload
from dsh_actors.core.pricing import Bill, PriceOf, Tokens
from dsh_actors.core.text import JsonObject
from dsh_actors.core.title_results import is_uncounted

__all__ = ["SessionStats", "StatsFold"]


@dataclass(slots=True)
class SessionStats:
    """Totals of one session or of many. ``usage`` is by ``PROVIDER/MODEL``; ``bill`` is what it cost.

    ``turns`` are those with a step that ended, ``steps`` those that ended. ``ttft_ms`` is the time to
    the first token of ``ttft_steps`` steps; ``decode_ms`` the time from there to the end of the reply,
    with ``decode_tokens``, where the provider reported tokens.
    """

    turns: int = 0
    steps: int = 0
    tool_calls: int = 0
    llm_ms: int = 0
    tool_ms: int = 0
    ttft_ms: int = 0
    ttft_steps: int = 0
    decode_ms: int = 0
    decode_tokens: int = 0
    usage: dict[str, Tokens] = field(default_factory=dict)
    bill: Bill = field(default_factory=Bill)

    def add(self, other: SessionStats) -> None:
        """Add another session's totals."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for model, tokens in other.usage.items():
            self.usage.setdefault(model, Tokens()).sum(tokens)
        self.bill.add(other.bill.total, other.bill.currency)

    def tokens(self) -> Tokens:
        """Over all models."""
        total = Tokens()
        for tokens in self.usage.values():
            total.sum(tokens)
        return total

    @property
    def cost(self) -> float | None:
        """None where a price is not known, or the prices are in different currencies."""
        return self.bill.total

    def to_json(self) -> JsonObject:
        data: JsonObject = {name: getattr(self, name) for name in _NUMBERS}
        tokens = self.tokens()
        data["usage"] = {name: getattr(tokens, name) for name in Tokens.__slots__}
        data |= {"cost": self.cost, "currency": self.bill.currency}
        return data


_NUMBERS = tuple(name for name in SessionStats.__slots__ if name not in ("usage", "bill"))


class StatsFold:
    """Feed it the events of one session in order; ``stats`` is right after each of them.

    ``price_of`` gives the rates of ``PROVIDER/MODEL``. The first ``seed_length`` events are a copy of
    another session's: what they took is that session's.
    """

    def __init__(self, price_of: PriceOf, seed_length: int = 0) -> None:
        self.stats = SessionStats()
        self._price_of = price_of
        self._seed_length = seed_length
        self._request_at = self._title_at = 0
        self._model = ""
        self._counted_turn: int | None = None
        self._step_start: int | None = None
        self._first_token: int | None = None
        self._calls: dict[str, int] = {}
        self._unbilled: Usage | None = None

    def observe(self, event: Event) -> None:
        """Raises `EventRefused` where a payload has the wrong shape."""
        try:
            self._observe(event)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise wrong_payload(event, error) from error

    def _observe(self, event: Event) -> None:
        data = event.data
        if event.seq < self._seed_length:
            if event.type == "request/context":
                self._model = f"{data['provider']}/{data['model']}"
            return
        match event.type:
            case "assistant/chunk":
                self._on_chunk(data["chunk"], event.time)
            case "step/start":
                self._step_start, self._first_token = event.time, None
                self._request_at = event.time
            case "request/digest" | "llm/retry-started":
                self._request_at = event.time
            case "assistant/message" if event.surface_op == "append":
                self._on_reply(data, event.time)
            case "request/context":
                self._model = f"{data['provider']}/{data['model']}"
            case "session/title-llm-request":
                self._title_at = event.time
            case "session/title-llm-result":
                self._on_title(data)
            case "llm/retry":
                self._bill()
            case "tool/call":
                self._calls[data["callId"]] = event.time
                self.stats.tool_calls += 1
            case "tool/result" if event.surface_op == "append":
                started = self._calls.pop(data["message"]["content"][0]["toolCallId"], None)
                if started is not None:
                    self.stats.tool_ms += max(0, event.time - started)
            case "step/end":
                self._on_step_end(data["turn"])
            case "turn/end":
                self._bill()
                self._step_start = None
                self._calls.clear()

    def _on_chunk(self, chunk: JsonObject, time: int) -> None:
        kind = chunk["type"]
        if kind == "usage":
            self._unbilled = Usage.from_json(chunk["usage"])
        elif self._first_token is None and kind in ("text-delta", "reasoning-delta", "tool-call-delta"):
            text = chunk["argumentsDelta" if kind == "tool-call-delta" else "text"]
            if text:
                self._first_token = time

    def _on_reply(self, data: JsonObject, time: int) -> None:
        source = data["message"]["source"]
        if source["kind"] == "model":
            self._model = f"{source['provider']}/{source['model']}"
        usage = Usage.from_json(data["usage"]) if data.get("usage") else None
        self._unbilled = usage or self._unbilled
        if self._unbilled is None and not data.get("interrupted"):
            self.stats.bill.add(None, None)  # a whole reply that nobody counted
        self._bill()
        if self._step_start is None:
            return  # the reply of this step was counted, or no step is open
        self.stats.llm_ms += max(0, time - self._step_start)
        if self._first_token is not None:
            self.stats.ttft_ms += max(0, self._first_token - self._step_start)
            self.stats.ttft_steps += 1
            if usage is not None:
                self.stats.decode_ms += max(0, time - self._first_token)
                self.stats.decode_tokens += usage.output
        self._step_start = None

    def _on_title(self, data: JsonObject) -> None:
        if data.get("usage"):
            model = f"{data['provider']}/{data['model']}"
            self._charge(model, Usage.from_json(data["usage"]), self._title_at)
        elif is_uncounted(data):
            self.stats.bill.add(None, None)

    def _on_step_end(self, turn: int) -> None:
        self._bill()
        self._step_start = None
        self.stats.steps += 1
        if turn != self._counted_turn:
            self._counted_turn = turn
            self.stats.turns += 1

    def _bill(self) -> None:
        if self._unbilled is not None:
            self._charge(self._model, self._unbilled, self._request_at)
            self._unbilled = None

    def _charge(self, model: str, usage: Usage, time_ms: int) -> None:
        self.stats.usage.setdefault(model, Tokens()).add(usage)
        self.stats.bill.charge(usage, self._price_of(model), time_ms)
