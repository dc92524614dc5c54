"""Agents of the daemon as text for people: the cells of a row, and all there is to say about one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dsh_actors.cli.failures import one_line
from dsh_actors.cli.printing import time_text
from dsh_actors.core.text import JsonObject

__all__ = ["age_text", "cost_text", "details", "doing_text", "row", "state_text", "tokens_text"]


def state_text(info: JsonObject) -> str:
    """The state, or ``asking`` where the agent waits for a decision."""
    return "asking" if info.get("approvals") else str(info.get("state") or "?")


def doing_text(info: JsonObject) -> str:
    """Turn and step with the tool that runs, and how much it has started goes on; ``-`` if not at work.

    Between turns it waits for what it has started.
    """
    if info.get("state") != "running":
        return "-"
    turn, step, work = info.get("turn") or 0, info.get("step"), len(info.get("work") or ())
    doing = f"{turn} waiting" if step is None else f"{turn}.{step} {info.get('tool') or 'model'}"
    return doing + (f" +{work}" if work else "")


def tokens_text(info: JsonObject) -> str:
    """The number of all tokens, short: ``12.3k``."""
    count = info.get("tokens")
    if isinstance(count, dict):
        count = sum(value for key, value in count.items() if key != "reasoning" and isinstance(value, int))
    if not isinstance(count, int | float) or not count:
        return "-"
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(int(count))


def cost_text(info: JsonObject) -> str:
    """The cost with its currency, ``-`` where it is not known."""
    cost = info.get("cost")
    if not isinstance(cost, int | float):
        return "-"
    return f"{cost:.4f} {info.get('currency') or ''}".rstrip()


def age_text(info: JsonObject, now_ms: int) -> str:
    """How long ago it was created."""
    created = info.get("created")
    if not isinstance(created, int | float):
        return "-"
    seconds = max(0, int(now_ms - created) // 1000)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def row(info: JsonObject, age: str | None = None) -> str:
    """One agent on one line, with its ``age`` if that is wanted."""
    columns = [f"{state_text(info):<8}", f"{doing_text(info):<14}", f"{tokens_text(info):>7}"]
    columns += [f"{cost_text(info):>10}", *([f"{age:>4}"] if age is not None else [])]
    return one_line("  ".join((str(info.get("id")), *columns, str(info.get("title") or "-"))))


def details(info: JsonObject) -> Iterator[str]:
    """Lines of ``name: value``, without those that have none."""
    known: Sequence[tuple[str, Any]] = (
        ("id", info.get("id")),
        ("state", state_text(info)),
        ("title", info.get("title")),
        ("parent", info.get("parent")),
        ("cwd", info.get("cwd")),
        ("model", info.get("model")),
        ("doing", doing_text(info)),
        *(("at work", _work(each)) for each in info.get("work") or ()),
        ("queued", f"{info.get('next_turn') or 0} for a turn, {info.get('next_step') or 0} for a step"),
        ("tokens", tokens_text(info)),
        ("cost", cost_text(info)),
        ("created", _time(info.get("created"))),
        ("updated", _time(info.get("updated"))),
        ("error", _error(info.get("error"))),
        ("last end", _end(info.get("last_end"))),
    )
    for name, value in known:
        if value not in (None, "", "-"):
            yield one_line(f"{name + ':':<10}{value}")


def _work(item: JsonObject) -> str:
    return f"{item.get('kind')} {item.get('id')}  {item.get('label') or ''}".rstrip()


def _time(value: Any) -> str | None:
    return time_text(int(value)) if isinstance(value, int | float) else None


def _error(value: Any) -> Any:
    return value.get("message") if isinstance(value, dict) else value


def _end(end: Any) -> str | None:
    if not isinstance(end, dict):
        return None
    said = end.get("answer") if end.get("exit_code") == 0 else end.get("message")
    return f"{end.get('status')}: {said}" if said else str(end.get("status"))
