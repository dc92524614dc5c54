"""The ``write`` tool: puts a whole file in place, exactly as given, inside the writable directories."""

from __future__ import annotations

from dsh_actors.adapters.tools.encodings import BOM, wide_encoding
from dsh_actors.adapters.tools.paths import check_cancel, open_target
from dsh_actors.core.text import JsonObject, clean_text
from dsh_actors.ports import ToolContext, ToolOutput, ToolSpec

__all__ = ["WriteTool"]

_SPEC = ToolSpec(
    name="write",
    description=(
        "Write a file: create it, with its directories, or replace all of it. For a change to a part of a "
        "file use edit."
    ),
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    },
    native=True,
    path_argument="path",
)


class WriteTool:
    """UTF-8, no newline translation, atomic. A file that is replaced keeps its mode and byte order mark."""

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def is_parallel(self, arguments: JsonObject) -> bool:
        return False

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        """Raises `ToolDenied` outside the writable directories, `ToolError` if it cannot be written."""
        data = clean_text(arguments["content"]).encode()
        with open_target(arguments["path"], context, create_parents=True) as target:
            check_cancel(context)
            start = target.beginning(4)
            wide = wide_encoding(start)
            if start.startswith(BOM) and not data.startswith(BOM):
                data = BOM + data
            target.replace(data)
        size = f"{len(data)} bytes, {_count_lines(data)} lines"
        if target.status is None:
            return ToolOutput(f"created {target.label} ({size})")
        was = "" if wide is None else f" of {wide}; now it is UTF-8"
        had = f"it had {target.status.st_size} bytes{was}"
        return ToolOutput(f"overwrote {target.label} ({size}; {had}){target.link_note()}")


def _count_lines(data: bytes) -> int:
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
