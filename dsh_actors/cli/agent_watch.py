"""`dsh agent ls --watch`: a live table on a terminal, elsewhere a line for each change."""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from typing import Any

from dsh_actors.cli.agent_text import age_text, cost_text, doing_text, row, state_text, tokens_text
from dsh_actors.cli.live_table import LiveScreen, fit, paint
from dsh_actors.cli.printing import flush, now_ms, time_text, write_json, write_text
from dsh_actors.cli.streams import STREAMS
from dsh_actors.core.exit_codes import exit_code_of
from dsh_actors.core.text import JsonObject
from dsh_actors.daemon.client import DaemonClient, ServerEvent
from dsh_actors.runtime.tasks import TaskEnd, start_task

__all__ = ["Overview", "table", "watch_agents"]

_TICK_S = 1.0
_REST_S = 0.1
"""Between two drawings: a busy daemon changes more often than anybody can read."""

_RANK = {"asking": 0, "running": 1, "failed": 2, "idle": 3, "asleep": 4}
_PAINT = {"asking": ("yellow",), "running": ("green",), "failed": ("red",), "asleep": ("dim",)}
_MIN_ID, _MIN_TITLE = 8, 12
_Cells = tuple[str, str, str, str, str, str, str]

# Name, width, on which side the blanks are, and how early the column goes when there is no room.
_COLUMNS = (
    ("AGENT", 26, False, 0),
    ("STATE", 7, False, 1),
    ("DOING", 16, False, 2),
    ("TOKENS", 7, True, 5),
    ("COST", 10, True, 6),
    ("AGE", 4, True, 4),
    ("TITLE", _MIN_TITLE, False, 3),
)


class Overview:
    """All agents as the daemon tells of them."""

    def __init__(self) -> None:
        self.agents: dict[str, JsonObject] = {}
        self.is_connected = False

    def reset(self, agents: Sequence[JsonObject]) -> list[str]:
        """A whole list; the ids of those that are new, other than before, or gone."""
        known, self.agents = self.agents, {str(each.get("id")): each for each in agents}
        self.is_connected = True
        changed = [each for each, info in self.agents.items() if known.get(each) != info]
        return changed + [each for each in known if each not in self.agents]

    def apply(self, event: ServerEvent) -> list[str]:
        """One notice; the id that it changed, if any."""
        if event.name == "lost":
            self.is_connected = False
        agent_id = str(event.data.get("id"))
        if event.name == "agent.disposed" or event.data.get("state") == "disposed":
            return [agent_id] if self.agents.pop(agent_id, None) is not None else []
        if event.name == "agent" and self.agents.get(agent_id) != event.data:
            self.agents[agent_id] = event.data
            return [agent_id]
        return []


def watch_agents(client: DaemonClient, *, as_json: bool) -> int:
    """Show what changes until a signal comes. Raises `HarnessError` where the daemon stays away."""
    notices: queue.SimpleQueue[Any] = queue.SimpleQueue()
    start_task(lambda _token: _listen(client, notices), notices.put, name="agent-ls/changes")
    is_live = STREAMS.stdout_is_terminal() and os.environ.get("TERM") != "dumb" and not as_json
    if not is_live:
        return _print_changes(notices, as_json=as_json)
    try:
        with LiveScreen() as screen:
            return _show(screen, notices)
    except KeyboardInterrupt as error:
        # Leaving a table that never ends by itself is no failure to be told of.
        return exit_code_of("interrupted", getattr(error, "signal", None))


def _listen(client: DaemonClient, notices: queue.SimpleQueue[Any]) -> None:
    """Beside the screen: a whole list after each connecting or gap, then every change."""
    for event in client.changes():
        notices.put(list(client.agents()) if event.name in ("connected", "gap") else event)


def _take(overview: Overview, notice: Any) -> list[str]:
    """What a notice changed. Raises what ended the listening."""
    match notice:
        case list():
            return overview.reset(notice)
        case ServerEvent():
            return overview.apply(notice)
        case TaskEnd(error=BaseException() as error):
            raise error
    return []


def _print_changes(notices: queue.SimpleQueue[Any], *, as_json: bool) -> int:
    overview, told = Overview(), dict[str, str]()
    while True:
        for agent_id in _take(overview, notices.get()):
            info = overview.agents.get(agent_id, {"id": agent_id, "state": "disposed"})
            line = row(info)
            if as_json:
                write_json(info)
            elif told.get(agent_id) != line:
                write_text(f"{time_text(now_ms())}  {line}")
            told[agent_id] = line
        flush()


def _show(screen: LiveScreen, notices: queue.SimpleQueue[Any]) -> int:
    overview = Overview()
    while True:
        try:
            _take(overview, notices.get(timeout=_TICK_S))
            while not notices.empty():
                _take(overview, notices.get())
        except queue.Empty:
            pass  # the ages go on, and the window may have another size
        screen.draw(table(overview, *screen.size, now_ms()))
        time.sleep(_REST_S)


def table(overview: Overview, columns: int, lines: int, now: int) -> list[str]:
    """The screen: a summary, the head and as many agents as there is room for, those at work first."""
    widths = _widths(columns)
    room = max(1, lines - 3)
    shown = nsmallest(room, overview.agents.values(), key=_order)
    found = [fit(_summary(overview), columns), _line([name for name, *_ in _COLUMNS], widths, ("bold",))]
    for info in shown:
        state = state_text(info)
        found.append(_line(_cells(info, state, now), widths, _PAINT.get(state, ())))
    if len(overview.agents) > len(shown):
        found.append(fit(f"… and {len(overview.agents) - len(shown):,} more", columns))
    return found[:lines]


def _summary(overview: Overview) -> str:
    counts = dict.fromkeys(_RANK, 0)
    for info in overview.agents.values():
        state = state_text(info)
        counts[state] = counts.get(state, 0) + 1
    parts = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    lost = "" if overview.is_connected else "no connection to the daemon, trying again; "
    noun = "agent" if len(overview.agents) == 1 else "agents"
    return f"{lost}{len(overview.agents):,} {noun}" + (f": {parts}" if parts else "")


def _order(info: JsonObject) -> tuple[int, int, str]:
    updated = info.get("updated")
    newest_first = -int(updated) if isinstance(updated, int | float) else 0
    return _RANK.get(state_text(info), 9), newest_first, str(info.get("id"))


def _cells(info: JsonObject, state: str, now: int) -> _Cells:
    return (
        str(info.get("id")),
        state,
        doing_text(info),
        tokens_text(info),
        cost_text(info),
        age_text(info, now),
        str(info.get("title") or "-"),
    )


def _widths(columns: int) -> list[int]:
    """The width of each column, 0 for one that has no room; the last one that stays takes what is left."""
    widths = [width for _, width, _, _ in _COLUMNS]
    for _, index in sorted(((early, i) for i, (*_, early) in enumerate(_COLUMNS)), reverse=True):
        spare = columns - _used(widths)
        if spare >= (0 if index > 1 else _MIN_ID - widths[0]) or index == 0:
            break
        widths[index] = 0
    widths[-1 if widths[-1] else 0] += columns - _used(widths)
    return widths


def _used(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (sum(map(bool, widths)) - 1)


def _line(cells: Sequence[str], widths: Sequence[int], names: Sequence[str]) -> str:
    return "  ".join(_painted(cells, widths, names))


def _painted(cells: Sequence[str], widths: Sequence[int], names: Sequence[str]) -> Iterator[str]:
    """In a line of the head every cell is painted, else only the state."""
    for (name, _, right, _), cell, width in zip(_COLUMNS, cells, widths, strict=True):
        if width:
            text = fit(cell, width, right=right)
            yield paint(text, *names) if name == "STATE" or "bold" in names else text
