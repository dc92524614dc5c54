"""The ``glob`` tool: finds files by the pattern of their path, in the order of paths."""

from __future__ import annotations

import os

from dsh_actors.adapters.tools.paths import absolute, encode_name, file_error, shown
from dsh_actors.adapters.tools.walk import Entry, Walk
from dsh_actors.core.globs import has_magic, path_glob
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import ToolError
from dsh_actors.ports import ToolContext, ToolOutput, ToolSpec

__all__ = ["GlobTool", "entry_matches"]

MAX_RESULTS = 200
_FOOTER_ROOM = 400

_SPEC = ToolSpec(
    name="glob",
    description=(
        "Find files by path pattern: * and ? within a name, ** across directories, {a,b}. Without ** also "
        "lists directories (dir/). Skips .git and what .gitignore ignores, unless named without wildcards."
    ),
    parameters={
        "type": "object",
        "properties": {
            "pattern": {"type": "string"},
            "path": {"type": "string", "description": "directory to start from"},
        },
        "required": ["pattern"],
    },
    changes=False,
    native=True,
    path_argument="path",
)


class GlobTool:
    """At most `MAX_RESULTS` paths; what is named literally is found whatever the ignore rules say."""

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def is_parallel(self, arguments: JsonObject) -> bool:
        return True

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        """Raises `ToolError` if the directory to start from is missing."""
        start = absolute(arguments.get("path") or ".", context)
        literal, rest = _split(arguments["pattern"])
        # join() gives an absolute or home pattern its own start.
        named = absolute(literal, context) if literal.startswith("~") else encode_name(literal)
        base = os.path.join(start, named) if named else start
        if not rest:
            return _exact_path(base, context)
        if not os.path.isdir(base):
            missing = start if not os.path.isdir(start) else base
            if missing is start or not os.path.lexists(base):
                raise file_error(FileNotFoundError(2, ""), missing, context)
            raise ToolError(f"{shown(base, context)} is not a directory", code="NOT_A_FILE")
        return _search(base, rest, context)


def _split(pattern: str) -> tuple[str, str]:
    """The leading names without wildcards, and the rest of the pattern."""
    if not pattern.strip() or "\0" in pattern:
        raise ToolError("the pattern is blank or holds a NUL character", code="INVALID_ARGS")
    names = pattern.split("/")
    count = next((index for index, name in enumerate(names) if has_magic(name)), len(names))
    # Braces may reach over a slash, but then they open in the first name that is not literal.
    literal = "/".join(names[:count])
    if count and not literal:
        literal = "/"
    return literal, "/".join(names[count:]).removesuffix("/")


def _exact_path(path: bytes, context: ToolContext) -> ToolOutput:
    if not os.path.lexists(path):
        raise file_error(FileNotFoundError(2, ""), path, context)
    suffix = "/" if os.path.isdir(path) else ""
    return ToolOutput(f"{shown(path.rstrip(b'/') or b'/', context)}{suffix}")


def _search(base: bytes, pattern: str, context: ToolContext) -> ToolOutput:
    deep = "**" in pattern
    walk = Walk(base, context, max_depth=None if deep else _depth(pattern))
    matches = path_glob(pattern).match
    found: list[str] = []
    used, more = 0, False
    for entry in walk:
        if (entry.is_directory and deep) or not matches(entry.relative):
            continue
        line = shown(os.path.normpath(entry.path), context) + ("/" if entry.is_directory else "")
        used += len(line.encode()) + 1
        if len(found) == MAX_RESULTS or (found and used > context.output_limit_bytes - _FOOTER_ROOM):
            more = True
            break
        found.append(line)
    notes = walk.notes()
    if more:
        notes.insert(0, f"the first {len(found)} matches, there are more: use a narrower pattern or path")
    elif not found:
        notes.insert(0, f"nothing below {shown(base, context)} matches")
    return ToolOutput("\n".join([*found, *([f"[{'; '.join(notes)}]"] if notes else [])]))


def _depth(pattern: str) -> int:
    """An upper bound on the names in a path that a pattern without ``**`` can match."""
    return pattern.count("/") + 1


def entry_matches(entry: Entry, pattern: str) -> bool:
    """Whether a ``glob`` filter takes an entry: by its name, or by its path if the filter has a slash."""
    text = entry.relative if "/" in pattern else entry.relative.rpartition("/")[2]
    return path_glob(pattern).match(text) is not None
