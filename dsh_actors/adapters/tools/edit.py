"""The ``edit`` tool: replaces one exact text in a file and leaves every other byte as it is.

Line ends, a byte order mark and bytes that are not UTF-8 survive; only the matched region is rewritten.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from dataclasses import dataclass

from dsh_actors.adapters.tools.encodings import BOM, is_utf8, wide_encoding
from dsh_actors.adapters.tools.paths import Target, check_cancel, open_target, suggest
from dsh_actors.core.text import JsonObject, clean_text, decode_output, shorten
from dsh_actors.errors import ToolError
from dsh_actors.ports import ToolContext, ToolOutput, ToolSpec

__all__ = ["EditTool"]

MAX_BYTES = 64 << 20
_REPLACEMENT = "\ufffd".encode()
_SUMMARY_LINES = 12
_HINT_LINES = 4000

_SPEC = ToolSpec(
    name="edit",
    description=(
        "Replace the text old by new in a file. old must occur exactly once (add lines around it), or set "
        "all to replace every occurrence. Give old without line numbers. An empty old creates a new file."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "old": {"type": "string"},
            "new": {"type": "string"},
            "all": {"type": "boolean"},
        },
        "required": ["path", "old", "new"],
    },
    native=True,
    path_argument="path",
)


class EditTool:
    """Matches exact bytes first, then without regard to CRLF or LF; new text gets the region's line ends."""

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def is_parallel(self, arguments: JsonObject) -> bool:
        return False

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        """Raises `ToolError` if the text is missing, ambiguous or the edit would destroy bytes."""
        old, new = (clean_text(arguments[key]).encode() for key in ("old", "new"))
        if old == new:
            raise ToolError("old and new are the same: nothing to change", code="INVALID_ARGS")
        with open_target(arguments["path"], context, create_parents=not old) as target:
            if target.status is None or not old:
                return _create(target, old, new, context)
            whole = target.read(MAX_BYTES)
            check_cancel(context)
            _require_ascii_compatible(whole, target.label)
            bom = BOM if whole.startswith(BOM) else b""
            old, new = old.removeprefix(bom), new.removeprefix(bom)
            if not old:
                raise ToolError("old holds nothing but a byte order mark", code="INVALID_ARGS")
            edit = _Edit(whole[len(bom) :], old, new, target.label)
            done = edit.already_applied()
            if done is not None:
                return ToolOutput(done)
            changed = edit.apply(every=bool(arguments.get("all", False)))
            target.replace(bom + changed)
        return ToolOutput(edit.summary() + target.link_note())


def _require_ascii_compatible(data: bytes, label: str) -> None:
    """Raise `ToolError` where a match of bytes says nothing: UTF-16, UTF-32 and binary data."""
    wide = wide_encoding(data)
    if wide is not None:
        raise ToolError(f"{label} is {wide}, which edit cannot change; convert it first", code="ENCODING")
    if b"\0" in data:
        message = f"{label} is binary, or UTF-16: it has NUL bytes, and edit changes text only"
        raise ToolError(message, code="ENCODING")


def _create(target: Target, old: bytes, new: bytes, context: ToolContext) -> ToolOutput:
    if old:
        near = suggest(target.path, context) or "; an empty old creates it"
        raise ToolError(f"{target.label} does not exist{near}", code="NOT_FOUND")
    if target.status is not None and target.status.st_size:
        raise ToolError(f"old is empty, but {target.label} is not: say what to replace", code="INVALID_ARGS")
    target.replace(new)
    return ToolOutput(f"created {target.label} ({len(new)} bytes)")


@dataclass(slots=True)
class _Edit:
    """One edit of ``data``: where ``old`` occurs, and what is put there."""

    data: bytes
    old: bytes
    new: bytes
    label: str
    spans: tuple[tuple[int, int], ...] = ()
    replaced: int = 0

    def __post_init__(self) -> None:
        self.spans = _exact(self.data, self.old) or _any_line_end(self.data, self.old)

    def already_applied(self) -> str | None:
        """What to tell the model if the file is as this edit would have made it; else None."""
        if not self.new.strip() or (self.spans and not _occurs(self.new, self.old)):
            return None
        present = _exact(self.data, self.new)
        if not present and b"\r\n" not in self.old + self.new:
            # Line ends that are spelled out are what the edit is about; others do not matter.
            present = _any_line_end(self.data, self.new)
        if not present or not all(_covered(span, present) for span in self.spans):
            return None
        at = _line(self.data, present[0][0])
        rest = "and the old text only as a part of it" if self.spans else "and not the old text"
        return f"already applied, nothing changed: {self.label} has the new text at line {at} {rest}"

    def apply(self, *, every: bool) -> bytes:
        """The new content. Raises `ToolError` if the place is missing, ambiguous or not safe to rewrite."""
        if not self.spans:
            raise ToolError(f"old was not found in {self.label}{self._nearest()}", code="NOT_FOUND")
        if len(self.spans) > 1 and not every:
            lines = [str(_line(self.data, start)) for start, _ in self.spans[:10]]
            more = ", …" if len(self.spans) > 10 else ""
            raise ToolError(
                f"old occurs {len(self.spans)} times in {self.label} (lines {', '.join(lines)}{more}): "
                "add lines around it to make it unique, or set all",
                code="AMBIGUOUS",
            )
        if _REPLACEMENT in self.new and self.new.count(_REPLACEMENT) > self.old.count(_REPLACEMENT):
            raise ToolError(
                "new contains \ufffd, which stands for bytes that cannot be shown: leave them out",
                code="INVALID_ARGS",
            )
        # Where the old text has such characters too, it was found, so there the file is UTF-8.
        if not self.new.isascii() and self.old.isascii() and not is_utf8(self.data):
            raise ToolError(
                f"{self.label} is not UTF-8 (latin-1, GBK or so), and new may hold ASCII only; convert the "
                "file first, or write such characters as its format escapes them",
                code="ENCODING",
            )
        parts: list[bytes] = []
        done = 0
        for start, end in self.spans:
            if start < done:
                continue  # overlaps the one before, which has been replaced
            parts += (self.data[done:start], self._fitted(start, end))
            done = end
            self.replaced += 1
        parts.append(self.data[done:])
        return b"".join(parts)

    def _fitted(self, start: int, end: int) -> bytes:
        """The new text with the line ends of the region that it replaces."""
        if b"\n" not in self.new or b"\r\n" in self.old or b"\r\n" in self.new:
            return self.new
        region = self.data[start:end]
        ends = re.findall(rb"\r?\n", region)
        if len(set(ends)) > 1 and len(ends) == self.new.count(b"\n"):
            pieces = self.new.split(b"\n")
            return b"".join(piece + end for piece, end in zip(pieces, [*ends, b""], strict=True))
        style = ends[0] if ends else _line_end_near(self.data, end)
        return self.new.replace(b"\n", style)

    def summary(self) -> str:
        """What was done, as a small diff of the first place."""
        first = self.spans[0][0]
        times = "" if self.replaced == 1 else f", {self.replaced} places"
        lines = [f"edited {self.label} at line {_line(self.data, first)}{times}"]
        return "\n".join((*lines, *_diff_lines("-", self.old), *_diff_lines("+", self.new)))

    def _nearest(self) -> str:
        """For a text that was not found: what in the file is closest to it."""
        if _REPLACEMENT in self.old and _REPLACEMENT not in self.data:
            return ": \ufffd stands for bytes that are not UTF-8; leave them out of old"
        if not self.old.isascii() and not is_utf8(self.data):
            return ": it is not UTF-8, so only its ASCII text can be found"
        wanted = [line.strip() for line in decode_output(self.old).splitlines() if line.strip()]
        if not wanted:
            return ""
        lines = decode_output(self.data).split("\n")
        stripped = [line.strip() for line in lines]
        for at in (index for index, line in enumerate(stripped) if line == wanted[0]):
            if [line for line in stripped[at : at + 2 * len(wanted)] if line][: len(wanted)] == wanted:
                return f"; line {at + 1} is the same but for blanks. There it is: {shorten(lines[at], 200)!r}"
        return _closest_line(wanted[0], stripped)


def _closest_line(wanted: str, lines: list[str]) -> str:
    import difflib  # only needed on the way to an error

    candidates = {line[:300]: None for line in lines[:_HINT_LINES] if line}
    close = difflib.get_close_matches(wanted[:300], candidates, 1, 0.6)
    if not close:
        return "; read the file again"
    at = next(index for index, line in enumerate(lines, 1) if line[:300] == close[0])
    return f"; the closest line is {at}: {shorten(close[0], 200)!r}"


def _exact(data: bytes, text: bytes) -> tuple[tuple[int, int], ...]:
    """Every place of ``text``, overlapping ones too: they make it ambiguous."""
    spans: list[tuple[int, int]] = []
    at = data.find(text)
    while at >= 0:
        spans.append((at, at + len(text)))
        at = data.find(text, at + 1)
    return tuple(spans)


def _occurs(data: bytes, text: bytes) -> bool:
    return text in data or bool(_any_line_end(data, text))


def _covered(span: tuple[int, int], present: tuple[tuple[int, int], ...]) -> bool:
    """Whether ``span`` lies inside one of ``present``, which are in order."""
    index = bisect_right(present, (span[0], sys.maxsize)) - 1
    return index >= 0 and span[1] <= present[index][1]


def _any_line_end(data: bytes, text: bytes) -> tuple[tuple[int, int], ...]:
    """Every place of ``text`` when CRLF and LF count as the same."""
    if b"\n" not in text or b"\r\n" not in data + text:
        return ()
    pieces = re.split(rb"\r?\n", text)
    pattern = rb"(?:\r\n|\n)".join(map(re.escape, pieces))
    return tuple(found.span() for found in re.finditer(pattern, data))


def _line_end_near(data: bytes, position: int) -> bytes:
    """The line end of the line at ``position``, or of the line before it, or LF."""
    at = data.find(b"\n", position)
    if at < 0:
        at = data.rfind(b"\n")
    return b"\r\n" if at > 0 and data[at - 1 : at] == b"\r" else b"\n"


def _line(data: bytes, position: int) -> int:
    return data.count(b"\n", 0, position) + 1


def _diff_lines(sign: str, text: bytes) -> list[str]:
    if not text:
        return []
    lines = decode_output(text).replace("\r\n", "\n").removesuffix("\n").split("\n")
    kept = [sign + shorten(line, 200) for line in lines[:_SUMMARY_LINES]]
    if len(lines) > _SUMMARY_LINES:
        kept.append(f"{sign}… {len(lines) - _SUMMARY_LINES} more lines")
    return kept
