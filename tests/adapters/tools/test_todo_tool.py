"""The todo_write tool: its rules, its event and its counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsh_actors.adapters.tools.todo import TodoWriteTool
from dsh_actors.core.schema import violations
from dsh_actors.errors import ToolError
from dsh_actors.ports import ToolOutput
from tests.adapters.tools.file_kit import workspace_at


def write(tmp_path: Path, *items: tuple[str, str]) -> ToolOutput:
    todos = [{"content": content, "status": status} for content, status in items]
    return workspace_at(tmp_path).run(TodoWriteTool(), todos=todos)


def test_the_trimmed_list_becomes_an_event_and_is_counted(tmp_path: Path) -> None:
    output = write(tmp_path, (" a ", "completed"), ("b", "in_progress"), ("c", "in_progress"))
    assert output.text == "3 items: 0 pending, 2 in progress, 1 completed"
    todos = [
        {"content": "a", "status": "completed"},
        {"content": "b", "status": "in_progress"},
        {"content": "c", "status": "in_progress"},
    ]
    assert output.events == (("todo/write", {"todos": todos}),)


def test_an_empty_list_clears(tmp_path: Path) -> None:
    assert write(tmp_path).events == (("todo/write", {"todos": []}),)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ((("  ", "pending"),), "item 1 has no content"),
        ((("a", "pending"), (" a", "pending")), "item 2 repeats"),
    ],
)
def test_blank_and_repeated_items_are_refused(
    tmp_path: Path, items: tuple[tuple[str, str], ...], message: str
) -> None:
    with pytest.raises(ToolError, match=message):
        write(tmp_path, *items)


@pytest.mark.parametrize("todos", ["x", [{"content": "a", "status": "done"}], [{"content": "a"}], [1]])
def test_other_shapes_do_not_fit_the_schema(todos: Any) -> None:
    assert violations(TodoWriteTool().spec.parameters, {"todos": todos})
