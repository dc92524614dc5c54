"""The ``report`` tool: how an agent that works behind its parent tells it something before it is done."""

from __future__ import annotations

from typing import Protocol

from dsh_actors.core.ids import SessionId
from dsh_actors.core.text import JsonObject
from dsh_actors.ports import ToolContext, ToolOutput, ToolSpec

__all__ = ["Report", "ReportTool"]

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


class Report(Protocol):
    def __call__(self, child: SessionId, text: str, *, quiet: bool = False) -> None:
        """As `Subagents.report`."""


class ReportTool:
    def __init__(self, report: Report) -> None:
        self._report = report

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def is_parallel(self, arguments: JsonObject) -> bool:
        return False

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        """Raises `SubagentError` where nobody hears it."""
        self._report(context.session_id, arguments["message"])
        return ToolOutput("It was told.")
