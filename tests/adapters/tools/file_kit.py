"""A workspace with a real context for the file tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsh_actors.core.ids import CallId, SessionId
from dsh_actors.ports import Tool, ToolContext, ToolOutput


class Switch:
    """A cancel token that the test throws by setting ``reason``."""

    reason: object | None = None

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        raise AssertionError("a native tool asks for the reason, it registers nothing")


class NoProcesses:
    def run(self, argv: Sequence[str], **options: Any) -> Any:
        raise AssertionError("a file tool starts no process")


@dataclass
class Workspace:
    root: Path
    context: ToolContext
    cancel: Switch

    def run(self, tool: Tool, **arguments: Any) -> ToolOutput:
        return tool.execute(arguments, self.context)

    def text(self, tool: Tool, **arguments: Any) -> str:
        return self.run(tool, **arguments).text

    def file(self, name: str, content: str | bytes = "") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


def workspace_at(folder: Path, *, output_limit_bytes: int = 30_000) -> Workspace:
    root = folder / "place"
    root.mkdir(exist_ok=True)
    root = root.resolve()
    cancel = Switch()
    context = ToolContext(
        session_id=SessionId("s"),
        call_id=CallId("c"),
        cwd=str(root),
        roots=(str(root),),
        env={"HOME": str(root / "home")},
        cancel=cancel,
        timeout_s=60,
        output_limit_bytes=output_limit_bytes,
        processes=NoProcesses(),
        wrap=lambda argv, cwd: argv,
    )
    return Workspace(root, context, cancel)
