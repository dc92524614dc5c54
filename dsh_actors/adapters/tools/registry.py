"""Which tools there are, and which of them an agent gets."""

from __future__ import annotations

from collections.abc import Sequence

from dsh_actors.core.globs import nearest
from dsh_actors.errors import UsageError
from dsh_actors.ports import Tool

__all__ = ["builtin_tools", "select_tools"]


def builtin_tools() -> tuple[Tool, ...]:
    """A new instance of each built-in tool, sorted by name: the order is part of the cached prefix."""
    # Imported here so that commands without an agent do not pay for the tools.
    from dsh_actors.adapters.tools.bash import BashTool
    from dsh_actors.adapters.tools.edit import EditTool
    from dsh_actors.adapters.tools.glob import GlobTool
    from dsh_actors.adapters.tools.grep import GrepTool
    from dsh_actors.adapters.tools.job_tools import JobListTool, JobOutputTool, JobStopTool, JobWaitTool
    from dsh_actors.adapters.tools.read import ReadTool
    from dsh_actors.adapters.tools.todo import TodoWriteTool
    from dsh_actors.adapters.tools.write import WriteTool

    jobs = (JobListTool(), JobOutputTool(), JobStopTool(), JobWaitTool())
    return (BashTool(), EditTool(), GlobTool(), GrepTool(), *jobs, ReadTool(), TodoWriteTool(), WriteTool())


def select_tools(
    all_tools: Sequence[Tool], allow: Sequence[str] | None, deny: Sequence[str]
) -> tuple[Tool, ...]:
    """The tools named by ``allow`` (None: all) without those of ``deny``, in the order of ``all_tools``.

    Raises `UsageError` for a name that no tool has.
    """
    names = [tool.spec.name for tool in all_tools]
    for option, wanted in (("--tools", allow or ()), ("--deny-tools", deny)):
        for name in wanted:
            if name not in names:
                close = nearest(name, names)
                advice = f"did you mean {close!r}?" if close else f"there are {', '.join(names)}"
                raise UsageError(f"{option}: no tool is called {name!r}; {advice}")
    return tuple(
        tool
        for tool in all_tools
        if (allow is None or tool.spec.name in allow) and tool.spec.name not in deny
    )
