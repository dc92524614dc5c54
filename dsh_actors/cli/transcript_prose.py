"""What a model writes, as HTML: the part of Markdown that models use, and no markup from the text itself.

Every piece of the text goes through `escape`; tags and attributes come from here alone. Input that is
too long or nested too deep for a mark to be looked for is shown as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsh_actors.cli.transcript_text import escape

__all__ = ["prose"]

MAX_INLINE = 4_000
"""The longest paragraph in which inline marks are looked for, so that the search stays cheap."""

MAX_DEPTH = 5

_FENCE = re.compile(r"^ {0,3}(?P<mark>`{3,}|~{3,})\s*(?P<lang>[^`]*)$")
_HEADING = re.compile(r"^ {0,3}(#{1,6})\s+(.*?)\s*#*$")
_RULE = re.compile(r"^ {0,3}([-*_])(?:\s*\1){2,}\s*$")
_ITEM = re.compile(r"^(?P<indent> {0,12})(?P<mark>[-*+]|\d{1,9}[.)])(?P<gap>\s+)(?P<text>.*)$")
_QUOTE = re.compile(r"^ {0,3}> ?(.*)$")
_DIVIDER = re.compile(r"^[\s:|-]*-[\s:|-]*$")
_INLINE = re.compile(
    r"(?P<tick>`+)(?P<code>[^\n]+?)(?<!`)(?P=tick)(?!`)"
    r"|\*\*(?=\S)(?P<bold>[^\n]+?)(?<=\S)\*\*"
    r"|(?<![\w*])\*(?=[^\s*])(?P<italic>[^*\n]+)(?<=\S)\*(?![\w*])"
    r"|\[(?P<label>[^\[\]\n]+)\]\((?P<target>https?://[^\s()<>\"]+)\)"
    r"|(?P<url>https?://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}*_])"
)


def prose(text: str) -> str:
    """``text`` as HTML blocks."""
    return "".join(_blocks(text.replace("\r\n", "\n").split("\n"), 0))


def _blocks(lines: list[str], depth: int) -> Iterator[str]:
    at = 0
    paragraph: list[str] = []
    while at < len(lines):
        end, block = _block(lines, at, depth) if depth < MAX_DEPTH else (at, "")
        if end == at and lines[at].strip():
            paragraph.append(lines[at])
            at += 1
            continue
        if paragraph:
            yield _paragraph(paragraph)
            paragraph = []
        yield block
        at = max(end, at + 1)
    if paragraph:
        yield _paragraph(paragraph)


def _block(lines: list[str], at: int, depth: int) -> tuple[int, str]:
    """The block that begins at a line, and where it ends; ``at`` where none begins."""
    line = lines[at]
    if fence := _FENCE.match(line):
        return _code(lines, at, fence)
    if heading := _HEADING.match(line):
        level = min(6, 3 + len(heading[1]))
        return at + 1, f"<h{level}>{_inline(heading[2])}</h{level}>"
    if _RULE.match(line):
        return at + 1, "<hr>"
    if _ITEM.match(line):
        return _list(lines, at, depth)
    if _QUOTE.match(line):
        end = at
        inner = []
        while end < len(lines) and (quoted := _QUOTE.match(lines[end])):
            inner.append(quoted[1])
            end += 1
        return end, f"<blockquote>{''.join(_blocks(inner, depth + 1))}</blockquote>"
    if "|" in line and at + 1 < len(lines) and "|" in lines[at + 1] and _DIVIDER.match(lines[at + 1]):
        return _table(lines, at)
    return at, ""


def _code(lines: list[str], at: int, fence: re.Match[str]) -> tuple[int, str]:
    mark = fence["mark"]
    end = at + 1
    while end < len(lines):
        closing = lines[end].strip()
        if len(closing) >= len(mark) and not closing.strip(mark[0]):
            break
        end += 1
    language = fence["lang"].strip()
    label = f' data-lang="{escape(language[:20])}"' if language else ""
    body = escape("\n".join(lines[at + 1 : end]))
    return min(end + 1, len(lines)), f'<pre dir="auto" class="code"{label}>\n{body}</pre>'


def _list(lines: list[str], at: int, depth: int) -> tuple[int, str]:
    first = _ITEM.match(lines[at])
    assert first is not None
    is_numbered = first["mark"][0].isdigit()
    base = len(first["indent"])
    items: list[list[str]] = []
    end = at
    while end < len(lines):
        line = lines[end].expandtabs(4)
        item = _ITEM.match(line)
        indent = len(line) - len(line.lstrip(" "))
        if item and indent <= base + 1:
            if item["mark"][0].isdigit() != is_numbered or indent < base:
                break
            items.append([item["text"]])
            width = indent + len(item["mark"]) + min(4, len(item["gap"]))
        elif not line.strip():
            following = lines[end + 1] if end + 1 < len(lines) else ""
            if not (following.startswith(" " * (base + 2)) or _ITEM.match(following)):
                break
            items[-1].append("")
        elif indent > base:
            items[-1].append(line[min(indent, width) :])
        else:
            break
        end += 1
    tag = "ol" if is_numbered else "ul"
    number = first["mark"][:-1] if is_numbered else "1"
    start = f' start="{int(number)}"' if number != "1" else ""
    body = "".join(f"<li>{''.join(_blocks(item, depth + 1))}</li>" for item in items)
    return end, f"<{tag}{start}>{body}</{tag}>"


def _table(lines: list[str], at: int) -> tuple[int, str]:
    end = at + 2
    while end < len(lines) and "|" in lines[end]:
        end += 1
    head = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in _cells(lines[at]))
    rows = "".join(
        "<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in _cells(line)) + "</tr>"
        for line in lines[at + 2 : end]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return end, f'<div class="wide" tabindex="0">{table}</div>'


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]


def _paragraph(lines: list[str]) -> str:
    return f'<p dir="auto">{_inline(chr(10).join(lines).strip())}</p>'


def _inline(text: str, depth: int = 0) -> str:
    if len(text) > MAX_INLINE or depth > 3:
        return escape(text).replace("\n", "<br>")
    parts = []
    at = 0
    for found in _INLINE.finditer(text):
        parts.append(escape(text[at : found.start()]).replace("\n", "<br>"))
        parts.append(_mark(found, depth))
        at = found.end()
    parts.append(escape(text[at:]).replace("\n", "<br>"))
    return "".join(parts)


def _mark(found: re.Match[str], depth: int) -> str:
    if (code := found["code"]) is not None:
        return f"<code>{escape(code.strip() or code)}</code>"
    if (bold := found["bold"]) is not None:
        return f"<strong>{_inline(bold, depth + 1)}</strong>"
    if (italic := found["italic"]) is not None:
        return f"<em>{_inline(italic, depth + 1)}</em>"
    target = found["target"] or found["url"]
    label = found["label"] or target
    return f'<a href="{escape(target)}" rel="noopener noreferrer">{escape(label)}</a>'
