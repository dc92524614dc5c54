"""A session as one HTML file for people: no network, nothing but this file, readable without JavaScript.

Style and script stand beside this module; the page's policy admits these two by digest and nothing
else. Memory is bounded by one step: the body waits in a spool while the head is still unknown.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files

from dsh_actors.cli.transcript_blocks import ending
from dsh_actors.cli.transcript_fold import Fold, PriceOf, Turn
from dsh_actors.cli.transcript_images import Pictures, ReadImage
from dsh_actors.cli.transcript_text import (
    count,
    duration,
    escape,
    money,
    one_line,
    plural,
    time_tag,
)
from dsh_actors.cli.transcript_timing import Lap, step_bar
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.errors import StorageError

__all__ = ["html"]

MAX_LISTED = 1_000
"""Turns that are listed in the navigation; the page holds all of them."""


def html(
    header: SessionHeader,
    events: Iterable[Event],
    *,
    price_of: PriceOf,
    read_image: ReadImage | None = None,
) -> Iterator[str]:
    """Pieces of the page. ``price_of`` gives the price of ``PROVIDER/MODEL``, None where it is not known.

    ``read_image`` gives the bytes of images, or raises `AttachmentError`; without it they are named only.

    Nothing is yielded before all events are read. Raises `StorageError` where there is no room to keep
    the body meanwhile.
    """
    fold = Fold(price_of, Pictures(read_image))
    try:
        try:
            for event in events:
                fold.apply(event)
            fold.finish()
        except OSError as error:
            raise StorageError(
                f"no room for the page while it is made: {error.strerror}",
                hint="name a directory with more room in TMPDIR",
            ) from error
        yield from _page(header, fold)
    finally:
        fold.spool.close()


def _page(header: SessionHeader, fold: Fold) -> Iterator[str]:
    title = one_line(fold.title or "", 120) or header.id
    yield _head(title)
    yield _masthead(header, fold, title)
    yield f'<div class="columns">{_navigation(fold.turns)}<main id="main">'
    at = 0
    for turn in fold.turns:
        start, end = turn.place
        yield from fold.spool.read(at, start)
        yield _turn_head(turn, fold.turns[-1] is turn)
        yield from fold.spool.read(start, end)
        yield "</section>\n"
        at = end
    yield from fold.spool.read(at, fold.spool.size)
    if not fold.spool.size and not fold.turns:
        yield '<p class="banner warn">Nothing has happened in this session yet.</p>'
    yield f"</main></div><footer>Session {escape(header.id)}, exported by dsh. Times are UTC.</footer>"
    yield f"<script>{_asset('transcript.js')}</script></body></html>\n"


@cache
def _asset(name: str) -> str:
    return (files("dsh_actors.cli") / name).read_text("utf-8")


def _digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def _head(title: str) -> str:
    style, script = _asset("transcript.css"), _asset("transcript.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)} – dsh session</title><style>{style}</style></head>\n"
        '<body><a class="skip" href="#main">Skip to the transcript</a>'
    )


def _status(turn: Turn | None, is_last: bool) -> str:
    """A word in a colour for how a turn ended."""
    if turn is None:
        css, word = "", "empty"
    elif turn.reason is None:
        css, word = "warn", "open" if is_last else "not closed"
    else:
        css, word, _ = ending(turn.reason)
    return f'<span class="chip {css}">{escape(word)}</span>'


def _lineage(header: SessionHeader) -> Iterator[tuple[str, str]]:
    above, origin = header.parent_session, header.agent_above
    if above is not None:
        yield "Forked from" if origin is None else "Sub-agent of", f"<code>{escape(above)}</code>"
    if header.origin is not None:
        yield "Origin", escape(header.origin)


def _masthead(header: SessionHeader, fold: Fold, title: str) -> str:
    last = fold.turns[-1] if fold.turns else None
    facts = [
        ("Session", f"<code>{escape(header.id)}</code>"),
        ("Directory", f"<code>{escape(header.cwd)}</code>" if header.cwd else ""),
        ("Model", ", ".join(f"<code>{escape(model)}</code>" for model in fold.models)),
        ("Preset", escape(header.agent_preset or "")),
        ("Started", time_tag(header.created_at)),
        ("Last event", time_tag(fold.last_time) if fold.last_time is not None else ""),
        *_lineage(header),
    ]
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts if value)
    return (
        f'<header class="masthead"><p class="eyebrow">dsh session {_status(last, True)}</p>'
        f'<h1 dir="auto">{escape(title)}</h1><dl class="facts-list">{rows}</dl>{_tiles(fold)}</header>'
        f"{_TOOLBAR}"
    )


def _tiles(fold: Fold) -> str:
    tokens, outcome = fold.outcome.tokens, fold.outcome
    calls = _with(
        count(outcome.tool_calls), plural(outcome.tool_errors, "error") if outcome.tool_errors else ""
    )
    cached = tokens.cache_read + tokens.cache_write
    tiles = [
        ("Turns", count(outcome.turns)),
        ("Steps", _with(count(outcome.steps), _retries(outcome.retries))),
        ("Tool calls", calls),
        ("Input tokens", _with(count(tokens.input), f"+ {count(cached)} cached" if cached else "")),
        (
            "Output tokens",
            _with(count(tokens.output), f"{count(tokens.reasoning)} reasoning" if tokens.reasoning else ""),
        ),
        ("Cost", _NOT_KNOWN if outcome.cost is None else money(outcome.cost, fold.currency)),
        ("Time at work", duration(fold.lap.total)),
    ]
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">{cells}</dl>{_split(fold.lap)}'


_NOT_KNOWN = '<span class="none">not known</span>'


def _retries(number: int) -> str:
    return "" if not number else "1 retry" if number == 1 else f"{count(number)} retries"


def _with(value: str, note: str) -> str:
    return f"{value} <small>{note}</small>" if note else value


def _split(lap: Lap) -> str:
    bar = step_bar(lap)
    return f'<div class="split">{bar}<p class="legend">{lap.words()}</p></div>' if bar else ""


_TOOLBAR = (
    '<div class="toolbar" id="toolbar" role="search" hidden>'
    '<input type="search" id="query" placeholder="Search  ( / )" aria-label="Search the transcript" '
    'autocomplete="off" spellcheck="false"><output id="found" for="query"></output>'
    '<button type="button" id="previous" aria-label="Previous match">↑</button>'
    '<button type="button" id="next" aria-label="Next match">↓</button>'
    '<button type="button" id="problems" aria-pressed="false">Problems</button>'
    '<button type="button" id="expand">Expand all</button>'
    '<button type="button" id="collapse">Collapse all</button></div>'
)


def _navigation(turns: list[Turn]) -> str:
    if not turns:
        return ""
    rows = "".join(
        f'<li><a href="#{turn.anchor}"><b>Turn {turn.number}</b> {_status(turn, turn is turns[-1])}'
        f'<span dir="auto">{escape(one_line(turn.prompt, 70))}</span></a></li>'
        for turn in turns[:MAX_LISTED]
    )
    more = f"<p>and {count(len(turns) - MAX_LISTED)} more</p>" if len(turns) > MAX_LISTED else ""
    return (
        '<nav aria-label="Turns"><details class="turns" open><summary>'
        f"{plural(len(turns), 'turn')}</summary><ol>{rows}</ol>{more}</details></nav>"
    )


def _turn_head(turn: Turn, is_last: bool) -> str:
    took = duration(max(0, turn.ended - turn.started))
    facts = f"{plural(turn.steps, 'step')} · {plural(turn.calls, 'tool call')} · {took}"
    return (
        f'<section class="turn" id="{turn.anchor}" aria-labelledby="{turn.anchor}-h"><header>'
        f'<h2 id="{turn.anchor}-h"><a href="#{turn.anchor}">Turn {turn.number}</a></h2> '
        f"{_status(turn, is_last)}"
        f'<p class="facts"><span>{facts}</span><span>{turn.spent}</span>'
        f"<span>{time_tag(turn.started)}</span></p></header>"
        f"{turn.waterfall.render(turn.started, turn.ended)}\n"
    )
