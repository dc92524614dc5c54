"""The ``grep`` tool: searches text files line by line with a Python regular expression."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from dsh_actors.adapters.tools.glob import entry_matches
from dsh_actors.adapters.tools.paths import (
    absolute,
    check_cancel,
    decode_name,
    encode_name,
    file_error,
    open_file,
    shown,
)
from dsh_actors.adapters.tools.regex_guard import SafePattern, compile_safely
from dsh_actors.adapters.tools.walk import Walk
from dsh_actors.core.text import JsonObject, decode_output
from dsh_actors.errors import ToolError
from dsh_actors.ports import ToolContext, ToolOutput, ToolSpec

__all__ = ["GrepTool"]

DEFAULT_LIMIT = 100
MAX_CONTEXT = 20
SHOWN_CHARS = 300
_BUDGET_S = 30.0
_WHOLE_FILE = 4 << 20
_READ_LINE = 1 << 20
_BINARY_PROBE = 8192
_FOOTER_ROOM = 500
_CHECK_EVERY = 500

_SPEC = ToolSpec(
    name="grep",
    description=(
        "Search text files line by line for a Python regular expression. Gives path:line:text. path: file or "
        "directory; glob: only such files (*.py); context: lines around; limit: matches (default "
        f"{DEFAULT_LIMIT}). Skips what glob skips."
    ),
    parameters={
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": {"type": "string"},
            "glob": {"type": "string"},
            "ignore_case": {"type": "boolean"},
            "context": {"type": "integer"},
            "limit": {"type": "integer"},
        },
        "required": ["pattern"],
    },
    changes=False,
    native=True,
    path_argument="path",
)


class GrepTool:
    """Binary files, links and special files are not searched. Stops after 30 s and says so.

    Of a very long line only the beginning is searched; how much depends on the pattern, so that no
    match can take long (`regex_guard`). The result says when that happened.
    """

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def is_parallel(self, arguments: JsonObject) -> bool:
        return True

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        """Raises `ToolError` for a missing path and for a pattern that is wrong or may take for ever."""
        pattern = compile_safely(arguments["pattern"], ignore_case=bool(arguments.get("ignore_case", False)))
        around, limit = int(arguments.get("context", 0)), int(arguments.get("limit", DEFAULT_LIMIT))
        if limit < 1 or around < 0:
            raise ToolError("limit must be at least 1 and context at least 0", code="INVALID_ARGS")
        start = absolute(arguments.get("path") or ".", context)
        search = _Search(pattern, min(around, MAX_CONTEXT), limit, context)
        if os.path.isdir(start):
            walk = Walk(start, context)
            search.tree(walk, arguments.get("glob"))
            return ToolOutput(search.result(walk.notes()))
        if not os.path.lexists(start):
            raise file_error(FileNotFoundError(2, ""), start, context)
        search.file(start)
        return ToolOutput(search.result([]))


@dataclass(slots=True)
class _Search:
    """One search: its limits, what it has shown and what it has to say about the rest."""

    pattern: SafePattern
    around: int
    limit: int
    context: ToolContext
    lines: list[str] = field(default_factory=list)
    used: int = 0
    matches: int = 0
    matching_files: int = 0
    searched: int = 0
    binary: int = 0
    unreadable: int = 0
    cut_lines: int = 0
    stopped: str | None = None
    deadline: float = 0.0

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + min(_BUDGET_S, self.context.timeout_s * 0.8)

    def tree(self, walk: Walk, only: str | None) -> None:
        """Search the regular files below a directory until a limit is reached."""
        for entry in walk:
            if not entry.is_regular or (only is not None and not entry_matches(entry, only)):
                continue
            try:
                self.file(entry.path)
            except ToolError as error:
                if error.code == "ABORTED":
                    raise
                self.unreadable += 1
            if self.stopped is not None:
                return
            self._check_time()

    def file(self, path: bytes) -> None:
        """Search one file. Raises `ToolError` if it is no regular file or cannot be read."""
        with open_file(path, self.context) as fd, open(fd, "rb", closefd=False) as file:
            probe = file.peek(_BINARY_PROBE)[:_BINARY_PROBE]
            if b"\0" in probe:
                self.binary += 1
                return
            self.searched += 1
            if os.fstat(fd).st_size <= _WHOLE_FILE:
                data = file.read(_WHOLE_FILE + 1)
                needle = encode_name(self.pattern.needle)
                if needle and needle not in data:
                    return
                raw_lines: Iterator[bytes] = iter(data.removesuffix(b"\n").split(b"\n") if data else ())
            else:
                raw_lines = iter(lambda: file.readline(_READ_LINE), b"")
            self._lines(shown(os.path.normpath(path), self.context), raw_lines)

    def _lines(self, name: str, raw_lines: Iterator[bytes]) -> None:
        """Collect the matching lines of a file, with the lines around them."""
        search, needle = self.pattern.regex.search, self.pattern.needle
        before: deque[tuple[int, str]] = deque(maxlen=self.around)
        after = last_shown = 0
        found_here = False
        for number, line in self._numbered(raw_lines):
            found = search(line) if needle in line else None
            if found is None:
                if after > 0:
                    after -= 1
                    last_shown = self._show(name, number, "-", line, 0)
                else:
                    before.append((number, line))
                continue
            if self.matches == self.limit:
                self.stopped = f"stopped at {self.limit} matches, there are more"
                return
            self.matches += 1
            self.matching_files += not found_here
            found_here = True
            first = before[0][0] if before else number
            if self.around and self.lines and first != last_shown + 1:
                self.lines.append("--")
            for earlier, text in before:
                self._show(name, earlier, "-", text, 0)
            before.clear()
            after = self.around
            last_shown = self._show(name, number, ":", line, found.start())

    def _numbered(self, raw_lines: Iterator[bytes]) -> Iterator[tuple[int, str]]:
        """Lines to search, cut where they are very long, until the search is stopped."""
        number, continued = 0, False
        for raw in raw_lines:
            # A line longer than one read comes in pieces; only its first piece is searched.
            skip, continued = continued, len(raw) == _READ_LINE and not raw.endswith(b"\n")
            if skip:
                self._check_time()
                continue
            number += 1
            if number % _CHECK_EVERY == 0:
                self._check_time()
            line = decode_name(raw.rstrip(b"\r\n"))
            if continued or len(line) > self.pattern.max_chars:
                self.cut_lines += 1
                line = line[: self.pattern.max_chars]
            yield number, line
            if self.stopped is not None:
                return

    def _show(self, name: str, number: int, sign: str, line: str, at: int) -> int:
        text = decode_output(encode_name(_window(line, at)))
        self.lines.append(f"{name}{sign}{number}{sign}{text}")
        self.used += len(self.lines[-1].encode()) + 1
        if self.used > self.context.output_limit_bytes - _FOOTER_ROOM and self.stopped is None:
            self.stopped = "stopped because the output is full, there may be more"
        return number

    def _check_time(self) -> None:
        check_cancel(self.context)
        if time.monotonic() > self.deadline and self.stopped is None:
            self.stopped = "stopped because it took too long: search a smaller part"

    def result(self, notes: list[str]) -> str:
        """The lines and one footer."""
        found = f"{self.matches} matches in {self.matching_files} of {self.searched} files"
        facts = [found if self.matches else f"no match in {self.searched} files"]
        if self.stopped is not None:
            facts.append(self.stopped)
        if self.binary:
            facts.append(f"{self.binary} binary files skipped")
        if self.unreadable:
            facts.append(f"{self.unreadable} files could not be read")
        if self.cut_lines:
            chars = self.pattern.max_chars
            facts.append(f"{self.cut_lines} long lines searched in their first {chars} characters only")
        return "\n".join([*self.lines, f"[{'; '.join(facts + notes)}]"])


def _window(line: str, at: int) -> str:
    """At most `SHOWN_CHARS` of a line around a position."""
    if len(line) <= SHOWN_CHARS:
        return line
    start = max(0, min(at - SHOWN_CHARS // 3, len(line) - SHOWN_CHARS))
    end = start + SHOWN_CHARS
    return ("…" if start else "") + line[start:end] + ("…" if end < len(line) else "")
