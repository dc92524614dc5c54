"""Counts what happens in a session, event by event, for the metrics of its harness. Pure."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from dsh_actors.core.chunks import CallConfig, Usage
from dsh_actors.core.events import Event
from dsh_actors.core.pricing import PriceOf
from dsh_actors.core.text import JsonObject

__all__ = ["Counts", "SessionMeter", "add_counts"]

Counts = dict[tuple[str, ...], float]
"""Values by the name of the metric and the values of its labels, as `metrics.METRICS` names them."""

OTHER_TOOL = "(other)"
"""Stands for every name that a model made up, so that it cannot make up series without end."""


def add_counts(total: Counts, more: Mapping[tuple[str, ...], float]) -> None:
    """Add ``more`` to ``total``."""
    for series, value in more.items():
        total[series] = total.get(series, 0) + value


class SessionMeter:
    """Counts the events of one session into ``counts``; a chunk costs next to nothing.

    ``config`` is what the agent calls. ``tools`` knows the names of the
    agent's tools. ``on_step`` is called with the time of each event that ends a step or a turn.
    """

    __slots__ = (
        "_calls",
        "_counts",
        "_is_open",
        "_model",
        "_on_step",
        "_price_of",
        "_provider",
        "_request_at",
        "_tools",
        "_unbilled",
    )

    def __init__(
        self,
        counts: Counts,
        config: CallConfig,
        price_of: PriceOf,
        tools: Callable[[], Container[str]],
        on_step: Callable[[int], None],
    ) -> None:
        self._counts = counts
        self._price_of = price_of
        self._tools = tools
        self._on_step = on_step
        self._set_model(config.provider, config.model)
        self._request_at = 0
        self._is_open = False
        self._unbilled: Usage | None = None
        self._calls: dict[str, str] | None = None

    def apply(self, event: Event) -> None:
        """Take one event, in order."""
        handle = _HANDLERS.get(event.type)
        if handle is not None:
            handle(self, event.data, event.time)

    def _count(self, *series: str, by: float = 1) -> None:
        self._counts[series] = self._counts.get(series, 0) + by

    def _on_chunk(self, data: JsonObject, _time: int) -> None:
        chunk = data["chunk"]
        kind = chunk["type"]
        if kind == "usage":
            self._unbilled = Usage.from_json(chunk["usage"])
        elif kind == "finish":
            reason = chunk["reason"]
            failure = reason.get("failure")
            self._request_ended("ok" if failure is None else failure["code"])

    def _on_header(self, data: JsonObject, _time: int) -> None:
        config = data["header"]["config"]
        self._set_model(config["provider"], config["model"])

    def _on_request(self, _data: JsonObject, time: int) -> None:
        self._request_at = time
        self._is_open = True

    def _on_step_start(self, _data: JsonObject, time: int) -> None:
        self._request_at = time
        self._count("dsh_steps_total")

    def _on_reply(self, data: JsonObject, _time: int) -> None:
        source, usage = data["message"].get("source", {}), data.get("usage")
        if "provider" in source and "model" in source:
            self._set_model(source["provider"], source["model"])
        if usage:
            self._unbilled = Usage.from_json(usage)
        self._bill()

    def _on_retry(self, data: JsonObject, _time: int) -> None:
        self._bill()
        self._count("dsh_model_retries_total", data["provider"], data["failure"]["code"])

    def _on_call(self, data: JsonObject, _time: int) -> None:
        name = data["name"]
        label = name if name in self._tools() else OTHER_TOOL
        if self._calls is None:
            self._calls = {}
        self._calls[data["callId"]] = label
        self._count("dsh_tool_calls_total", label)

    def _on_result(self, data: JsonObject, _time: int) -> None:
        block = data["message"]["content"][0]
        label = (self._calls or {}).pop(block["toolCallId"], OTHER_TOOL)
        if (data.get("meta") or {}).get("denied") is not None:
            self._count("dsh_tool_denials_total", label)
        elif block.get("isError"):
            self._count("dsh_tool_errors_total", label)

    def _on_title(self, data: JsonObject, time: int) -> None:
        if data.get("usage"):
            self._charge(f"{data['provider']}/{data['model']}", Usage.from_json(data["usage"]), time)

    def _on_step_end(self, _data: JsonObject, time: int) -> None:
        self._bill()
        self._on_step(time)

    def _on_turn_end(self, data: JsonObject, time: int) -> None:
        self._bill()
        kind = data["reason"]["kind"]
        if self._is_open and kind in ("aborted", "interrupted"):
            self._request_ended(kind.upper())
        self._is_open, self._calls = False, None
        self._count("dsh_turns_total", kind)
        self._on_step(time)

    def _set_model(self, provider: str, model: str) -> None:
        self._provider, self._model = provider, f"{provider}/{model}"

    def _request_ended(self, outcome: str) -> None:
        self._is_open = False
        self._count("dsh_model_requests_total", self._provider, outcome)

    def _bill(self) -> None:
        if self._unbilled is not None:
            usage, self._unbilled = self._unbilled, None
            self._charge(self._model, usage, self._request_at)

    def _charge(self, model: str, usage: Usage, time: int) -> None:
        for kind in ("input", "cache_read", "cache_write", "output", "reasoning"):
            if tokens := getattr(usage, kind):
                self._count("dsh_tokens_total", kind, by=tokens)
        rates = self._price_of(model)
        price = None if rates is None else rates.at(time)
        if price is not None:
            self._count("dsh_cost_total", price.currency, by=price.cost(usage))


_Handler = Callable[[SessionMeter, JsonObject, int], None]

_HANDLERS: dict[str, _Handler] = {
    "assistant/chunk": SessionMeter._on_chunk,
    "request/header": SessionMeter._on_header,
    "request/digest": SessionMeter._on_request,
    "llm/retry-started": SessionMeter._on_request,
    "step/start": SessionMeter._on_step_start,
    "assistant/message": SessionMeter._on_reply,
    "llm/retry": SessionMeter._on_retry,
    "tool/call": SessionMeter._on_call,
    "tool/result": SessionMeter._on_result,
    "session/title-llm-result": SessionMeter._on_title,
    "step/end": SessionMeter._on_step_end,
    "turn/end": SessionMeter._on_turn_end,
}
