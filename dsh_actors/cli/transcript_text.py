"""Words and numbers of an HTML transcript: escaping that nothing gets out of, cutting, units. No state."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime

from dsh_actors.core.messages import ImageRef
from dsh_actors.core.text import JsonObject, JsonValue, clean_text, shorten

__all__ = [
    "clock",
    "count",
    "duration",
    "escape",
    "money",
    "one_line",
    "plural",
    "pre",
    "text_of_blocks",
    "time_tag",
]

# Controls, line and paragraph separators, and what turns the direction of text around: shown, never obeyed.
_UNSAFE = re.compile("\r\n|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufdd0-\ufdef\ufffe\uffff]")


def _shown(match: re.Match[str]) -> str:
    found = match[0]
    if found == "\r\n":
        return "\n"
    code = ord(found)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def escape(text: str) -> str:
    """``text`` as HTML text or attribute value; controls and direction overrides become visible."""
    return html.escape(_UNSAFE.sub(_shown, clean_text(text)))


def one_line(text: str, limit: int) -> str:
    """The beginning of ``text`` on one line, not yet escaped."""
    return shorten(" ".join(text[: limit * 4].split()), limit)


def pre(text: str, limit: int, kind: str = "") -> str:
    """Preformatted text of at most ``limit`` characters; the middle is left out, with a note."""
    css = f' class="{kind}"' if kind else ""
    # The parser drops the first line feed, so one is given to it.
    if len(text) <= limit:
        return f'<pre dir="auto"{css}>\n{escape(text)}</pre>'
    head, tail = limit * 2 // 3, limit // 3
    note = f"{count(len(text) - head - tail)} characters are left out here; the log has them."
    return (
        f'<pre dir="auto"{css}>\n{escape(text[:head])}</pre><p class="cut">{note}</p>'
        f'<pre dir="auto"{css}>\n{escape(text[-tail:])}</pre>'
    )


def text_of_blocks(blocks: list[JsonObject]) -> str:
    """The text of blocks; what is no text is named in brackets."""
    parts = []
    for block in blocks:
        kind = block.get("type")
        ref = ImageRef.from_json(block.get("attachment"))
        if kind in ("text", "reasoning"):
            parts.append(str(block["text"]))
        else:
            parts.append(f"[{kind}]" if ref is None else f"\n[image {ref.words()}]")
    return "".join(parts).removeprefix("\n")


def count(number: int) -> str:
    return f"{number:,}"


def plural(number: int, word: str) -> str:
    return f"{count(number)} {word}" if number == 1 else f"{count(number)} {word}s"


def duration(milliseconds: int) -> str:
    """A duration as people say it: ``340 ms``, ``4.2 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if milliseconds < 1_000:
        return f"{max(0, milliseconds)} ms"
    if milliseconds < 59_950:
        return f"{milliseconds / 1000:.1f} s"
    seconds = (milliseconds + 500) // 1000
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    minutes = (seconds + 30) // 60
    return f"{count(minutes // 60)} h {minutes % 60:02d} min"


def money(cost: float, currency: str) -> str:
    digits = 2 if cost >= 100 else 4
    return f"${cost:,.{digits}f}" if currency == "USD" else f"{cost:,.{digits}f} {escape(currency)}"


def _moment(milliseconds: JsonValue) -> datetime | None:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def clock(milliseconds: int) -> str:
    """The time of day, in UTC."""
    moment = _moment(milliseconds)
    return moment.strftime("%H:%M:%S") if moment else "?"


def time_tag(milliseconds: int) -> str:
    """A moment as a ``<time>`` element, in UTC."""
    moment = _moment(milliseconds)
    if moment is None:
        return "?"
    return f'<time datetime="{moment:%Y-%m-%dT%H:%M:%SZ}">{moment:%Y-%m-%d %H:%M:%S} UTC</time>'
