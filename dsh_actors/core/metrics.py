"""What a harness counts (see `session_meter`): the metrics, and the text that they are published as.

Pure. The text is the exposition format of Prometheus, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from dsh_actors.core.text import JsonObject

__all__ = ["METRICS", "Metric", "as_samples", "render"]


@dataclass(frozen=True, slots=True)
class Metric:
    """``labels`` are named in the order of their values in `session_meter.Counts`."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    labels: tuple[str, ...] = ()


METRICS = (
    Metric("dsh_agents_created_total", "counter", "Agents brought up: new, resumed and forked."),
    Metric("dsh_agents_disposed_total", "counter", "Agents disposed of, for whatever reason."),
    Metric("dsh_agent_crashes_total", "counter", "Agent actors that ended by an error."),
    Metric("dsh_agent_restarts_total", "counter", "Agents rebuilt from their log after a crash."),
    Metric("dsh_worker_restarts_total", "counter", "Shared workers started anew.", ("worker",)),
    Metric("dsh_turns_total", "counter", "Turns that ended, by how.", ("end",)),
    Metric("dsh_steps_total", "counter", "Steps that began."),
    Metric("dsh_tool_calls_total", "counter", "Tool calls that began.", ("tool",)),
    Metric("dsh_tool_errors_total", "counter", "Tool calls answered with an error.", ("tool",)),
    Metric("dsh_tool_denials_total", "counter", "Tool calls that were refused.", ("tool",)),
    Metric("dsh_model_requests_total", "counter", "Model requests that ended.", ("provider", "outcome")),
    Metric("dsh_model_retries_total", "counter", "Model requests made again.", ("provider", "code")),
    Metric(
        "dsh_tokens_total",
        "counter",
        "Tokens as reported; reasoning is a part of output.",
        ("kind",),
    ),
    Metric("dsh_cost_total", "counter", "Cost of what has a known price.", ("currency",)),
    Metric("dsh_agents_live", "gauge", "Agents that are up."),
    Metric("dsh_agents_running", "gauge", "Agents in a turn."),
    Metric("dsh_mailbox_depth", "gauge", "Messages that wait; those of all agents together.", ("actor",)),
)

def as_samples(counts: Mapping[tuple[str, ...], float]) -> dict[str, list[JsonObject]]:
    """By metric: ``{"labels": {…}, "value": …}`` each. What has no labels and was not counted is 0."""
    found: dict[str, list[JsonObject]] = {
        metric.name: [] if metric.labels else [{"labels": {}, "value": counts.get((metric.name,), 0)}]
        for metric in METRICS
    }
    for metric in METRICS:
        for series in sorted(key for key in counts if key[0] == metric.name and metric.labels):
            labels = dict(zip(metric.labels, series[1:], strict=True))
            found[metric.name].append({"labels": labels, "value": counts[series]})
    return found


def render(samples: Mapping[str, Iterable[JsonObject]]) -> str:
    """What `as_samples` gave, as Prometheus reads it."""
    lines: list[str] = []
    for metric in METRICS:
        lines.append(f"# HELP {metric.name} {_escaped(metric.help)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for sample in samples.get(metric.name, ()):
            pairs = ",".join(
                f'{name}="{_escaped(value, quote=True)}"' for name, value in sample["labels"].items()
            )
            labels = f"{{{pairs}}}" if pairs else ""
            lines.append(f"{metric.name}{labels} {_number(sample['value'])}")
    return "\n".join(lines) + "\n"


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
