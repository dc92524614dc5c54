"""The ``read`` tool: numbered lines of a text file, streamed, a window of bytes of it, or an image."""

from __future__ import annotations

import os
import re
from io import BufferedReader

from dsh_actors.adapters.tools.encodings import BOM, is_utf8
from dsh_actors.adapters.tools.paths import absolute, check_cancel, open_file, shown
from dsh_actors.core.text import JsonObject, decode_output
from dsh_actors.errors import ToolError
from dsh_actors.ports import ToolContext, ToolOutput, ToolSpec

__all__ = ["ReadTool"]

DEFAULT_LIMIT = 2000
LINE_CHARS = 2000
_MAX_CHAR_BYTES = 4
_IMAGE_STARTS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")
_BLOCK = 1 << 18
_MAX_SKIP = 64 << 20
_FOOTER_ROOM = 400
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BYTE_PLACE = re.compile(r"(.+)#byte=(\d+)\Z", re.DOTALL)

_SPEC = ToolSpec(
    name="read",
    description=(
        "Read a text file as numbered lines. offset: first line, from 1; limit: how many lines (default "
        f"{DEFAULT_LIMIT}). path#byte=N goes on inside a very long line. An image is shown, if you can see "
        "images. Read a file before you edit it."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "file, relative to the working directory or absolute"},
            "offset": {"type": "integer"},
            "limit": {"type": "integer"},
        },
        "required": ["path"],
    },
    changes=False,
    native=True,
    path_argument="path",
)


class ReadTool:
    """Reads regular files, also outside the workspace. Memory grows with what is shown, not with the file."""

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def is_parallel(self, arguments: JsonObject) -> bool:
        return True

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        """Raises `ToolError` for what is no regular file, and for an offset past the end."""
        path, start_byte = _split_place(arguments["path"], context)
        offset = max(1, int(arguments.get("offset", 1)))
        limit = int(arguments.get("limit", DEFAULT_LIMIT))
        if limit < 1:
            raise ToolError("limit must be at least 1", code="INVALID_ARGS")
        with open_file(path, context) as fd, open(fd, "rb", closefd=False) as file:
            name = shown(path, context)
            if start_byte is None and file.peek(4).startswith(_IMAGE_STARTS):
                from dsh_actors.adapters.tools.read_image import read_image  # few runs meet any

                image = read_image(file, name, context)
                if image is not None:
                    return image
            if start_byte is None:
                return ToolOutput(_LineView(file, name, context).read(offset, limit))
            return ToolOutput(_byte_window(file, name, start_byte, limit, context))


def _split_place(path: str, context: ToolContext) -> tuple[bytes, int | None]:
    """The file and, after ``#byte=``, where to start; a file that really has such a name wins."""
    found = _BYTE_PLACE.match(path)
    if found is None or os.path.lexists(absolute(path, context)):
        return absolute(path, context), None
    return absolute(found[1], context), int(found[2])


class _LineView:
    """One reading by lines: what was collected, and what the footer has to say."""

    def __init__(self, file: BufferedReader, name: str, context: ToolContext) -> None:
        self._file, self._name, self._context = file, name, context
        self._budget = max(200, context.output_limit_bytes - _FOOTER_ROOM)
        self._line_chars = max(40, min(LINE_CHARS, self._budget // (2 * _MAX_CHAR_BYTES)))
        self._lines: list[str] = []
        self._used = 0
        self._notes: dict[str, None] = {}
        self._ends_in_newline = True

    def read(self, offset: int, limit: int) -> str:
        self._skip_lines(offset)
        number = offset
        while True:
            if number % 256 == 0:
                check_cancel(self._context)
            if len(self._lines) == limit and self._file.peek(1):
                return self._page(offset, f"to go on: offset={number}")
            raw = self._file.readline((self._line_chars + 1) * _MAX_CHAR_BYTES)
            if not raw:
                return self._at_the_end(offset, number - 1)
            text, cut_at = self._show(raw)
            line = f"{number:6}\t{text}"
            if cut_at is not None:
                line += f"… [the line goes on: {self._name}#byte={cut_at}]"
            size = (len(line) if line.isascii() else len(line.encode())) + 1
            if self._lines and self._used + size > self._budget:
                return self._page(offset, f"to go on: offset={number}")
            self._lines.append(line)
            self._used += size
            self._ends_in_newline = raw.endswith(b"\n")
            if cut_at is not None and not self._ends_in_newline:
                if len(self._lines) == limit:
                    return self._page(offset, f"to go on: offset={number + 1}")
                if not self._skip_rest_of_line():
                    return self._page(offset, f"line {number} goes on for more than {_MAX_SKIP >> 20} MB")
            number += 1

    def _show(self, raw: bytes) -> tuple[str, int | None]:
        """The text of the line that was just read, and at which byte of the file it was cut, if it was."""
        visible = raw.removesuffix(b"\n").removesuffix(b"\r")
        if len(visible) <= self._line_chars and visible.isascii() and not _CONTROLS.search(visible):
            return visible.decode("ascii"), None
        place = self._file.tell() - len(raw)
        if place == 0 and visible.startswith(BOM):
            visible, place = visible[len(BOM) :], len(BOM)
        cut_at = None
        chars = visible.decode("utf-8", "surrogateescape")
        if len(chars) > self._line_chars:
            visible = chars[: self._line_chars].encode("utf-8", "surrogateescape")
            cut_at = place + len(visible)
        if b"\0" in visible:
            self._notes["binary data, shown escaped"] = None
        elif not visible.isascii() and not is_utf8(visible):
            self._notes["\ufffd stands for bytes that are not UTF-8"] = None
        return decode_output(visible), cut_at

    def _skip_lines(self, offset: int) -> None:
        left = offset - 1
        partial = False
        while left > 0:
            check_cancel(self._context)
            block = self._file.read(_BLOCK)
            if not block:
                raise self._past_the_end(offset, offset - 1 - left + partial)
            partial = not block.endswith(b"\n")
            count = block.count(b"\n")
            if count < left:
                left -= count
                continue
            position = -1
            for _ in range(left):
                position = block.find(b"\n", position + 1)
            self._file.seek(position + 1 - len(block), os.SEEK_CUR)
            left = 0

    def _skip_rest_of_line(self) -> bool:
        """Go to the next line; False if that is too far."""
        for _ in range(_MAX_SKIP // _BLOCK):
            check_cancel(self._context)
            rest = self._file.readline(_BLOCK)
            self._ends_in_newline = rest.endswith(b"\n")
            if len(rest) < _BLOCK or self._ends_in_newline:
                return True
        return False

    def _at_the_end(self, offset: int, last: int) -> str:
        if not self._lines:
            if offset > 1:
                raise self._past_the_end(offset, last)
            return f"[{self._name} is empty]"
        missing = "" if self._ends_in_newline else ", no newline at the end"
        return self._page(offset, f"end of file{missing}")

    def _past_the_end(self, offset: int, lines: int) -> ToolError:
        message = f"{self._name} has {lines} lines; offset {offset} is past its end"
        return ToolError(message, code="INVALID_ARGS")

    def _page(self, offset: int, state: str) -> str:
        footer = "; ".join((f"lines {offset}-{offset + len(self._lines) - 1}", state, *self._notes))
        return "\n".join((*self._lines, f"[{footer}]"))


def _byte_window(file: BufferedReader, name: str, start: int, limit: int, context: ToolContext) -> str:
    """As much text from byte ``start`` as the output may hold, at most ``limit`` lines, without numbers."""
    budget = max(200, context.output_limit_bytes - _FOOTER_ROOM)
    size = os.fstat(file.fileno()).st_size
    file.seek(start)
    raw = file.read(budget)
    if not raw:
        raise ToolError(f"{name} ends before byte {start} (it has {size})", code="INVALID_ARGS")
    at_end = not file.peek(1)
    lead = next((index for index, byte in enumerate(raw[:4]) if byte & 0xC0 != 0x80), 0)
    raw, start = raw[lead:], start + lead
    if len(decode_output(raw).encode()) > budget:
        raw, at_end = raw[: budget // _MAX_CHAR_BYTES], False
    lines = raw.split(b"\n", limit)
    if len(lines) > limit and lines[limit]:
        raw, at_end = raw[: len(raw) - len(lines[limit])], False
    if not at_end:
        raw = _without_cut_character(raw)
    state = "end of file" if at_end else f"to go on: {name}#byte={start + len(raw)}"
    text = decode_output(raw).replace("\r\n", "\n")
    return f"{text.removesuffix(chr(10))}\n[bytes {start}-{start + len(raw) - 1}; {state}]"


def _without_cut_character(raw: bytes) -> bytes:
    """``raw`` without the first bytes of a character whose rest is missing."""
    for back in range(1, min(_MAX_CHAR_BYTES, len(raw))):
        byte = raw[-back]
        if byte >= 0xC0:
            needs = 2 + (byte >= 0xE0) + (byte >= 0xF0)
            return raw[:-back] if needs > back else raw
        if byte < 0x80:
            break
    return raw
