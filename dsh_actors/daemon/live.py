"""One live agent of the daemon: what its events come to, and the run that it is at."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from dsh_actors.core.end_texts import warning_before
from dsh_actors.core.events import Event
from dsh_actors.core.options import LimitBase, Limits
from dsh_actors.core.outcome import Circumstances, OutcomeFold, RunEnd, Tokens
from dsh_actors.core.pricing import PriceOf
from dsh_actors.core.scope import Scope
from dsh_actors.core.text import JsonObject
from dsh_actors.daemon.info import AgentInfo
from dsh_actors.daemon.registry import AgentRow
from dsh_actors.runtime.log import LOGGER
from dsh_actors.runtime.timers import Timer, after

if TYPE_CHECKING:
    from dsh_actors.handle import AgentHandle

__all__ = ["LiveAgent", "LiveBooks", "Subscriber", "info_of", "limit_base_of"]

Subscriber = Callable[[Event], None]


class LiveBooks(Protocol):
    """What a live agent tells its host. Everything returns at once."""

    @property
    def price_of(self) -> PriceOf: ...
    @property
    def sandbox(self) -> str | None: ...
    def now_ms(self) -> int: ...
    def changed(self, live: LiveAgent) -> None: ...
    def stop_run(self, live: LiveAgent, why: str) -> None: ...
    def warn_of_deadline(self, live: LiveAgent, left_s: float) -> None: ...


class LiveAgent:
    """``row`` is what stays when it sleeps. ``fold`` is there while a run is not over.

    ``pins`` counts who needs it awake. ``going`` is set by whoever puts it to sleep or disposes of it,
    ``is_watched`` while a task waits for what it has started. ``out_of_time`` names the limit that passed
    while something that it has started went on.
    """

    __slots__ = (
        "base",
        "began",
        "books",
        "fold",
        "going",
        "handle",
        "is_running",
        "is_watched",
        "limits",
        "next_seq",
        "out_of_time",
        "pins",
        "row",
        "step",
        "subscribers",
        "timers",
        "tool",
    )

    def __init__(self, books: LiveBooks, row: AgentRow, limits: Limits) -> None:
        self.books = books
        self.row = row
        self.limits = limits
        self.handle: AgentHandle = None  # type: ignore[assignment]  # set before anybody sees it
        self.base: LimitBase | None = None
        self.out_of_time: str | None = None
        self.fold: OutcomeFold | None = None
        self.subscribers: list[Subscriber] | None = None
        self.timers: tuple[Timer, ...] = ()
        self.step: int | None = None
        self.tool: str | None = None
        self.began = 0.0
        self.next_seq = 0
        self.pins = 0
        self.going = self.is_running = self.is_watched = False

    def setup(self, scope: Scope) -> None:
        """For `Harness.create` and its like."""
        scope.observe("session/event", self.on_event)

    def on_event(self, event: Event) -> None:
        self.next_seq = event.seq + 1
        if self.fold is not None:
            self.fold.apply(event)
        if self.subscribers:
            for subscriber in tuple(self.subscribers):
                _contained(subscriber, event)
        change = _CHANGES.get(event.type)
        if change is not None:
            change(self, event.data)
            self.books.changed(self)

    # --- runs --------------------------------------------------------------------------------

    def begin_run(self) -> None:
        """From here to when nothing is owed any more: one run."""
        self.row.run_ms = 0
        self.take_up_run(OutcomeFold(self.books.price_of))
        self.row.run_from = self.next_seq

    def take_up_run(self, fold: OutcomeFold) -> None:
        """Go on with a run that had taken ``row.run_ms`` when it was cut."""
        self.fold, self.row.state, self.row.error = fold, "running", None
        self.began = time.monotonic() - self.row.run_ms / 1000
        self.timers = tuple(self._limits_of_time(self.row.run_ms / 1000))

    def end_run(self, reason: str | None = None, message: str | None = None) -> RunEnd | None:
        """The run is over; a ``reason`` that the log does not hold comes with its ``message``."""
        fold = self.fold
        if fold is None:
            return None
        row, facts = self.row, self._circumstances(reason, message)
        end = fold.end(facts)
        self.stop_timers()
        row.tokens += _total(fold.tokens)
        row.cost = self._cost_with(fold)
        row.currency = fold.currency or row.currency
        row.last_end = json.dumps(end.to_json(), ensure_ascii=False, separators=(",", ":"))
        self.fold = row.run_from = self.step = self.tool = None
        row.run_ms = 0
        return end

    def drop_run(self) -> None:
        """The run never began: its message was not taken."""
        self.stop_timers()
        self.fold = self.row.run_from = None
        self.row.state = "idle"

    def stop_timers(self) -> None:
        timers, self.timers = self.timers, ()
        for timer in timers:
            timer.cancel()

    def _circumstances(self, reason: str | None, message: str | None) -> Circumstances:
        return Circumstances(
            session_id=self.row.id,
            reason=reason,
            message=message,
            duration_ms=self._run_ms(),
            sandbox=self.books.sandbox,
        )

    def _run_ms(self) -> int:
        return round((time.monotonic() - self.began) * 1000)

    def _limits_of_time(self, spent_s: float) -> list[Timer]:
        timers, limits = [], self.limits
        if limits.timeout_s is not None:
            timers.append(after(limits.timeout_s - spent_s, lambda: self.books.stop_run(self, "timeout")))
        if limits.deadline_s is not None:
            end = limits.deadline_s
            warn = warning_before(end)
            if warn > spent_s:
                timers.append(after(warn - spent_s, lambda: self.books.warn_of_deadline(self, end - warn)))
            timers.append(after(end - spent_s, lambda: self.books.stop_run(self, "deadline")))
        return timers

    # --- looking -----------------------------------------------------------------------------

    def touch(self) -> None:
        """Bring the row up to date, to be written."""
        self.row.updated = self.books.now_ms()
        if self.handle is None:
            return  # it is just being woken
        base = self.handle.limit_base()
        if base != self.base:
            self.base, self.row.base = base, base_to_json(base)
        if self.fold is not None:
            self.row.run_ms = self._run_ms()

    def info(self, approvals: int = 0) -> AgentInfo:
        fold, row = self.fold, self.row
        return info_of(
            row,
            step=self.step,
            tool=self.tool,
            tokens=row.tokens if fold is None else row.tokens + _total(fold.tokens),
            cost=row.cost if fold is None else self._cost_with(fold),
            currency=row.currency if fold is None else fold.currency or row.currency,
            approvals=approvals,
        )

    def _cost_with(self, fold: OutcomeFold) -> float | None:
        return cost_with(self.row.cost, fold)


def cost_with(before: float | None, fold: OutcomeFold) -> float | None:
    """A total with that of a run, None where a part of it is not known."""
    if fold.cost is None:
        return None if _total(fold.tokens) else before
    return None if before is None else before + fold.cost


def limit_base_of(row: AgentRow, fold: OutcomeFold | None = None) -> LimitBase:
    """What the limits of an agent go on counting from; ``fold`` is of a run that was cut.

    The log knows what such a run cost, and the row may be older. What it cost is not known where the log does
    not say, as everywhere.
    """
    base = LimitBase(*json.loads(row.base))
    if fold is None or base.cost is None:
        return base
    if cost_with(0.0, fold) is None:
        return replace(base, cost=None)
    spent = cost_with(row.cost, fold)
    return replace(base, cost=base.cost if spent is None else max(base.cost, spent))


def base_to_json(base: LimitBase) -> str:
    return json.dumps([base.steps, base.tool_calls, base.tokens, base.cost, base.agents])


_INFO_NAMES = frozenset(each.name for each in fields(AgentInfo))
_ROW_NAMES = tuple(each.name for each in fields(AgentRow) if each.name in _INFO_NAMES)


def info_of(row: AgentRow, **live: Any) -> AgentInfo:
    """What a row tells; ``live`` are the members that only a live agent has, or has newer."""
    values = {name: getattr(row, name) for name in _ROW_NAMES}
    values |= {"step": None, "tool": None, "approvals": 0, **live}
    return AgentInfo(**values, end_text=row.last_end)


def _total(tokens: Tokens) -> int:
    return tokens.input + tokens.cache_read + tokens.cache_write + tokens.output


def _contained(subscriber: Subscriber, event: Event) -> None:
    try:
        subscriber(event)
    except Exception:
        # It is the subscriber's fault, and the agent's work goes on.
        LOGGER.exception("a subscriber of events failed")


def _on_turn(live: LiveAgent, data: JsonObject) -> None:
    live.row.turn = data["turn"]


def _on_step(live: LiveAgent, data: JsonObject) -> None:
    live.step = data["step"]


def _on_step_end(live: LiveAgent, _data: JsonObject) -> None:
    live.step = live.tool = None


def _on_call(live: LiveAgent, data: JsonObject) -> None:
    live.tool = data["name"]


def _on_result(live: LiveAgent, _data: JsonObject) -> None:
    live.tool = None


def _on_title(live: LiveAgent, data: JsonObject) -> None:
    live.row.title = data["title"]


def _on_splice(live: LiveAgent, data: JsonObject) -> None:
    change = len(data["inserted"]) - data.get("removedCount", 0)
    if data["target"] == "next-turn":
        live.row.next_turn += change
    else:
        live.row.next_step += change


_CHANGES: dict[str, Callable[[LiveAgent, JsonObject], None]] = {
    "turn/start": _on_turn,
    "step/start": _on_step,
    "step/end": _on_step_end,
    "tool/call": _on_call,
    "tool/result": _on_result,
    "session/title": _on_title,
    "agent/inbox/spliced": _on_splice,
}
