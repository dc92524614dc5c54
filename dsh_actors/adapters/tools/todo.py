"""The ``todo_write`` tool: the model's own list of work, kept in the log and nowhere else."""

from __future__ import annotations

from dsh_actors.core.text import JsonObject
from dsh_actors.errors import ToolError
from dsh_actors.ports import ToolContext, ToolOutput, ToolSpec

__all__ = ["TodoWriteTool"]

_STATUSES = ("pending", "in_progress", "completed")

_SPEC = ToolSpec(
    name="todo_write",
    description="Replace your list of work items. Use it for work of several steps and keep it up to date.",
    parameters={
        "type": "object",
        "properties": {
            "todos": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "content": {"type": "string"},
                        "status": {"type": "string", "enum": list(_STATUSES)},
                    },
                    "required": ["content", "status"],
                },
            }
        },
        "required": ["todos"],
    },
    changes=False,
)


class TodoWriteTool:
    """Each call replaces the whole list. Several items may be in progress."""

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def is_parallel(self, arguments: JsonObject) -> bool:
        return False

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        """Raises `ToolError` for an item without text and for two items with the same text."""
        todos: list[JsonObject] = []
        seen: set[str] = set()
        for number, item in enumerate(arguments["todos"], 1):
            content = item["content"].strip()
            if not content:
                raise ToolError(f"item {number} has no content", code="INVALID_ARGS")
            if content in seen:
                raise ToolError(f"item {number} repeats {content!r}", code="INVALID_ARGS")
            seen.add(content)
            todos.append({"content": content, "status": item["status"]})
        counts = {status: sum(todo["status"] == status for todo in todos) for status in _STATUSES}
        text = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in counts.items())
        return ToolOutput(f"{len(todos)} items: {text}", events=(("todo/write", {"todos": todos}),))
