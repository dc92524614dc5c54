"""Events become counts, and counts the text that Prometheus reads."""

from __future__ import annotations

from typing import Any

from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.events import Event
from dsh_actors.core.metrics import METRICS, as_samples, render
from dsh_actors.core.pricing import Price, Rates
from dsh_actors.core.session_meter import Counts, SessionMeter, add_counts

PRICE = Price(1.0, 2.0, currency="EUR")


class Log:
    """Feeds a meter, numbering the events."""

    def __init__(self) -> None:
        self.counts: Counts = {}
        self.steps: list[int] = []
        self.meter = SessionMeter(
            self.counts, CallConfig("p", "m"), self.price_of, lambda: {"bash"}, self.steps.append
        )
        self.asked: list[str] = []
        self._time = 0

    def price_of(self, model: str) -> Rates | None:
        self.asked.append(model)
        return PRICE if model == "p/m" else None

    def add(self, kind: str, **data: Any) -> None:
        self._time += 1
        self.meter.apply(Event(kind, self._time, self._time, data))

    def chunk(self, **chunk: Any) -> None:
        self.add("assistant/chunk", turn=1, step=1, chunk=chunk)

    def result(self, call_id: str, *, is_error: bool = False, meta: Any = None) -> None:
        block = {"type": "tool-result", "toolCallId": call_id, "content": [], "isError": is_error}
        data: dict[str, Any] = {"message": {"content": [block]}}
        self.add("tool/result", **data, **({"meta": meta} if meta else {}))

    def of(self, name: str) -> dict[tuple[str, ...], float]:
        return {series[1:]: value for series, value in self.counts.items() if series[0] == name}


USAGE = {"inputTokens": 100, "outputTokens": 10, "reasoningTokens": 4}
REPLY = {"content": [], "source": {"kind": "model", "provider": "p", "model": "m"}}


def test_a_turn_is_counted_with_its_requests_tokens_and_cost() -> None:
    log = Log()
    log.add("turn/start", turn=1)
    log.add("step/start", turn=1, step=1)
    log.add("request/digest", turn=1, step=1)
    log.chunk(type="text-delta", index=0, text="x")
    log.chunk(type="usage", usage=USAGE)
    log.chunk(type="finish", reason={"kind": "stop"})
    log.add("assistant/message", message=REPLY, usage=USAGE)
    log.add("step/end", turn=1, step=1)
    log.add("turn/end", turn=1, reason={"kind": "completed"})
    assert log.of("dsh_turns_total") == {("completed",): 1}
    assert log.of("dsh_steps_total") == {(): 1}
    assert log.of("dsh_model_requests_total") == {("p", "ok"): 1}
    assert log.of("dsh_tokens_total") == {("input",): 100, ("output",): 10, ("reasoning",): 4}
    assert log.of("dsh_cost_total") == {("EUR",): (100 * 1.0 + 10 * 2.0) / 1e6}
    assert log.steps == [8, 9]


def test_an_attempt_that_failed_counts_with_what_it_used() -> None:
    log = Log()
    log.add("request/digest")
    log.chunk(type="usage", usage=USAGE)
    log.chunk(type="finish", reason={"kind": "error", "failure": {"message": "x", "code": "RATE_LIMIT"}})
    log.add("llm/retry", provider="p", failure={"message": "x", "code": "RATE_LIMIT"})
    log.add("llm/retry-started")
    log.add("turn/end", turn=1, reason={"kind": "aborted", "reason": {"kind": "user"}})
    assert log.of("dsh_model_requests_total") == {("p", "RATE_LIMIT"): 1, ("p", "ABORTED"): 1}
    assert log.of("dsh_model_retries_total") == {("p", "RATE_LIMIT"): 1}
    assert log.of("dsh_tokens_total")[("input",)] == 100
    assert log.asked == ["p/m"]


def test_a_request_that_was_never_sent_is_none() -> None:
    log = Log()
    log.add("request/digest")
    log.add("turn/end", turn=1, reason={"kind": "error", "error": {"message": "x", "code": "STORAGE_FULL"}})
    assert log.of("dsh_model_requests_total") == {}


def test_tool_calls_are_counted_by_tool_and_names_that_a_model_made_up_as_one() -> None:
    log = Log()
    for call_id, name in (("a", "bash"), ("b", "bash"), ("c", "shell\n2"), ("d", "shell 3")):
        log.add("tool/call", callId=call_id, name=name, arguments="{}")
    log.result("a")
    log.result("b", is_error=True, meta={"denied": {"rule": "x"}})
    log.result("c", is_error=True)
    assert log.of("dsh_tool_calls_total") == {("bash",): 2, ("(other)",): 2}
    assert log.of("dsh_tool_errors_total") == {("(other)",): 1}
    assert log.of("dsh_tool_denials_total") == {("bash",): 1}


def test_everything_that_is_counted_is_a_metric_with_its_labels() -> None:
    counts: Counts = {("dsh_turns_total", "completed"): 2}
    add_counts(counts, {("dsh_turns_total", "completed"): 1, ("dsh_steps_total",): 5})
    samples = as_samples(counts)
    assert samples.keys() == {metric.name for metric in METRICS}
    assert samples["dsh_turns_total"] == [{"labels": {"end": "completed"}, "value": 3}]
    assert samples["dsh_steps_total"] == [{"labels": {}, "value": 5}]
    assert samples["dsh_agent_crashes_total"] == [{"labels": {}, "value": 0}]
    assert samples["dsh_tool_calls_total"] == []


def test_the_text_has_a_help_and_a_type_for_each_metric_and_escapes_labels() -> None:
    counts = {("dsh_cost_total", 'E"U\\R\n'): 0.25, ("dsh_tokens_total", "input"): 10**12}
    lines = render(as_samples(counts)).splitlines()
    for metric in METRICS:
        place = lines.index(f"# TYPE {metric.name} {metric.kind}")
        assert lines[place - 1] == f"# HELP {metric.name} {metric.help}"
    assert 'dsh_cost_total{currency="E\\"U\\\\R\\n"} 0.25' in lines
    assert 'dsh_tokens_total{kind="input"} 1000000000000' in lines
    assert "dsh_steps_total 0" in lines
    assert render(as_samples(counts)).endswith("\n")
