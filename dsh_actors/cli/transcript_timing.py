"""Where the time of a step went, and the bars that show it. Times are ms since the epoch. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from dsh_actors.cli.transcript_text import duration, escape

__all__ = ["Bar", "Lap", "Row", "Waterfall", "step_bar"]

MAX_ROWS = 120
"""A turn with more steps shows the longest ones."""

MAX_BARS = 48
"""A step with more calls draws its tools as one bar."""

_SCALE = 1_000
_ROW = 12
_FLAT = 'preserveAspectRatio="none" aria-hidden="true"'

BarKind = Literal["model", "tool", "wait"]


@dataclass(frozen=True, slots=True)
class Bar:
    kind: BarKind
    start: int
    end: int
    label: str
    failed: bool = False


@dataclass(slots=True)
class Lap:
    """Milliseconds by what they were spent on; time in which several tools ran counts once."""

    model: int = 0
    tool: int = 0
    wait: int = 0
    total: int = 0

    @staticmethod
    def of(bars: Iterable[Bar], start: int, end: int) -> Lap:
        lap = Lap(total=max(0, end - start))
        covered = None
        for bar in sorted(bars, key=lambda bar: bar.start):
            if bar.kind == "model":
                lap.model += max(0, bar.end - bar.start)
            elif bar.kind == "wait":
                lap.wait += max(0, bar.end - bar.start)
            else:
                begin = bar.start if covered is None else max(covered, bar.start)
                lap.tool += max(0, bar.end - begin)
                covered = max(begin, bar.end)
        return lap

    def add(self, other: Lap) -> None:
        self.model += other.model
        self.tool += other.tool
        self.wait += other.wait
        self.total += other.total

    def words(self) -> str:
        """``model 4.2 s · tools 310 ms``; what took no time is left out."""
        parts = [("model", self.model), ("tools", self.tool), ("waiting", self.wait)]
        shown = [
            f'<span class="key {css}"></span>{word} {duration(ms)}'
            for (word, ms), css in zip(parts, ("model", "tool", "wait"), strict=True)
            if ms
        ]
        return " · ".join(shown) or duration(self.total)


def step_bar(lap: Lap) -> str:
    """One line in the proportions of the lap."""
    whole = max(lap.total, lap.model + lap.tool + lap.wait)
    if not whole:
        return ""
    left, parts = 0, []
    for kind, ms in (("model", lap.model), ("wait", lap.wait), ("tool", lap.tool)):
        width = round(ms * _SCALE / whole)
        if width:
            parts.append(f'<rect class="{kind}" x="{left}" width="{width}" height="6"/>')
            left += width
    body = "".join(parts)
    return f'<svg class="bar" viewBox="0 0 {_SCALE} 6" {_FLAT}>{body}</svg>'


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """A step in a waterfall. Ordered by its length."""

    length: int
    number: int
    anchor: str = field(compare=False)
    bars: tuple[Bar, ...] = field(compare=False)


class Waterfall:
    """The steps of one turn on one time axis; keeps no more than `MAX_ROWS` of them."""

    def __init__(self) -> None:
        self._rows: list[Row] = []
        self._steps = 0

    def add(self, number: int, anchor: str, start: int, end: int, bars: list[Bar]) -> None:
        self._steps += 1
        if len(bars) > MAX_BARS:
            bars = _merged(bars)
        row = Row(max(0, end - start), number, anchor, tuple(bars))
        if len(self._rows) < MAX_ROWS:
            heapq.heappush(self._rows, row)
        else:
            heapq.heappushpop(self._rows, row)

    def render(self, start: int, end: int) -> str:
        """The waterfall of the turn that lasted from ``start`` to ``end``, folded where it is long."""
        rows = sorted(self._rows, key=lambda row: row.number)
        if not any(row.bars for row in rows):
            return ""
        lines = "".join(
            f'<li><a href="#{row.anchor}">Step {row.number}</a>{_svg(row.bars, start, max(1, end - start))}'
            f"<span>{duration(row.length)}</span></li>"
            for row in rows
        )
        scope = "" if self._steps <= MAX_ROWS else f", the {MAX_ROWS} longest of {self._steps:,} steps"
        is_open = " open" if len(rows) <= 12 else ""
        return (
            f'<details class="waterfall"{is_open}><summary>Time line{scope}</summary>'
            f'<ol class="rows">{lines}</ol></details>'
        )


def _merged(bars: list[Bar]) -> list[Bar]:
    tools = [bar for bar in bars if bar.kind == "tool"]
    rest = [bar for bar in bars if bar.kind != "tool"][:MAX_BARS]
    if not tools:
        return rest
    start, end = min(bar.start for bar in tools), max(bar.end for bar in tools)
    return [*rest, Bar("tool", start, end, f"{len(tools)} calls", any(bar.failed for bar in tools))]


def _svg(bars: tuple[Bar, ...], origin: int, span: int) -> str:
    lanes = _lanes(bars)
    depth = max(lanes, default=0) + 1
    parts = []
    for bar, lane in zip(bars, lanes, strict=True):
        # A clock that was set back must not draw outside of the axis.
        left = min(max(0, bar.start - origin), span) * _SCALE / span
        width = max(3, min(max(0, bar.end - bar.start) * _SCALE / span, _SCALE - left))
        left = min(left, _SCALE - width)
        top, height = (lane * _ROW / depth, _ROW / depth) if bar.kind == "tool" else (0, _ROW)
        css = f"{bar.kind} failed" if bar.failed else bar.kind
        parts.append(
            f'<rect class="{css}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}">'
            f"<title>{escape(bar.label)}: {duration(bar.end - bar.start)}</title></rect>"
        )
    body = "".join(parts)
    return f'<svg viewBox="0 0 {_SCALE} {_ROW}" {_FLAT}>{body}</svg>'


def _lanes(bars: tuple[Bar, ...]) -> list[int]:
    """A lane for each bar, so that tools that ran together do not cover each other."""
    ends: list[int] = []
    lanes = []
    for bar in bars:
        if bar.kind != "tool":
            lanes.append(0)
            continue
        lane = next((at for at, end in enumerate(ends) if end <= bar.start), len(ends))
        ends[lane : lane + 1] = [bar.end]
        lanes.append(lane)
    return lanes
