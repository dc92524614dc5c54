"""The ``report`` tool: how an agent that works behind its parent tells it something before it is done."""

from __future__ import annotations

from typing import Any

from dsh_actors.core.text import JsonObject
from dsh_actors.ports import ToolContext, ToolOutput, ToolSpec

__all__ = ["ReportTool"]

_SPEC = ToolSpec(
    name="report",
    description="Tell the agent that started you something now. Your final answer reaches it by itself.",
    parameters={
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    },
    changes=False,
)


class ReportTool:
    """``service`` is the harness's `Subagents`."""

    def __init__(self, service: Any) -> None:
        self._service = service

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def is_parallel(self, arguments: JsonObject) -> bool:
        return False

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        """Raises `SubagentError` where nobody hears it."""
        self._service.report(context.session_id, arguments["message"])
        return ToolOutput("It was told.")
