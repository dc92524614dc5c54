"""The `bash` tool: runs one shell command to its end and reports what came of it.

Knows nothing of approval; the environment it is given is already free of secrets.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache

from dsh_actors.core.bounded_output import exit_words, visible
from dsh_actors.core.text import JsonObject, shorten
from dsh_actors.errors import ToolError
from dsh_actors.ports import ProcessResult, ToolContext, ToolOutput, ToolSpec

__all__ = ["BashTool"]

_NO_EDITOR = (
    "sh -c 'echo \"no editor can be opened here: give the text as an option, "
    "or set GIT_EDITOR=true to keep what is there\" >&2; exit 1'"
)
_UNATTENDED = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_EDITOR": _NO_EDITOR,
    "EDITOR": _NO_EDITOR,
    "VISUAL": _NO_EDITOR,
    "DEBIAN_FRONTEND": "noninteractive",
    "TERM": "dumb",
}
"""Nobody is there to answer: what would ask or page fails or prints at once."""

_SPEC = ToolSpec(
    name="bash",
    description=(
        "Run a shell command (bash -c) in the working directory and return its output, stdout and stderr "
        "in order. Each call is a new shell: cd and variables do not carry over. No terminal and no input: "
        "use non-interactive options. Long output is cut in the middle. A process started with & may go on "
        "after the call, until the end of the run; redirect its output to a file."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "The command line."},
            "timeout_s": {"type": "number", "description": "Seconds after which it is stopped."},
            "background": {"type": "boolean", "description": "Run it as a job and return at once."},
            "description": {"type": "string", "description": "What it does, in a few words, for people."},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
)


class BashTool:
    """Implements `ports.Tool`. A non-zero exit is a result with its code, marked as an error."""

    @property
    def spec(self) -> ToolSpec:
        return _SPEC

    def is_parallel(self, arguments: JsonObject) -> bool:
        return False

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        """Codes of error results: ``EXIT_STATUS``, ``TIMEOUT``, ``CANCELLED``. See `ports.Tool`."""
        asked = arguments.get("timeout_s")
        env = {**context.env, **_UNATTENDED}
        argv = context.wrap([_shell(env.get("PATH")), "-c", arguments["command"]], context.cwd)
        if arguments.get("background"):
            return _start_job(arguments["command"], argv, env, asked, context)
        timeout_s = _clamp(asked, context.timeout_s)
        result = context.processes.run(
            argv,
            cwd=context.cwd,
            env=env,
            timeout_s=timeout_s,
            cancel=context.cancel,
            output_limit_bytes=context.output_limit_bytes,
        )
        return _report(result, context.output_limit_bytes, _timeout_note(asked, timeout_s, context.timeout_s))


def _start_job(
    command: str, argv: Sequence[str], env: dict[str, str], asked: float | None, context: ToolContext
) -> ToolOutput:
    if context.jobs is None:
        raise ToolError(
            "background jobs are not available in this run; run it in the foreground", code="UNSUPPORTED"
        )
    job = context.jobs.start(
        command,
        argv,
        cwd=context.cwd,
        env=env,
        # Any job ends with the run; written so that NaN fails the comparison.
        timeout_s=asked if asked is not None and 0 < asked < float("inf") else None,
        output_limit_bytes=context.output_limit_bytes,
    )
    text = f"Started as background job {job.id}. You are told when it ends, also after your turn."
    return ToolOutput(text, meta={"job": job.id})


@cache
def _shell(search: str | None) -> str:
    return shutil.which("bash", path=search) or "sh"


def _clamp(asked: float | None, ceiling: float) -> float:
    # Written so that NaN fails the comparison.
    return asked if asked is not None and 0 < asked <= ceiling else ceiling


def _timeout_note(asked: float | None, used: float, ceiling: float) -> str:
    note = f"timed out after {used:g} s and was stopped"
    if used < ceiling:
        return f"{note}; set timeout_s to allow more time, at most {ceiling:g}"
    if asked is not None and asked != used:
        note += f" (a timeout_s of {shorten(str(asked), 20)} is not possible)"
    return f"{note}; {ceiling:g} s is the most for one call (--tool-timeout): do it in smaller parts"


def _report(result: ProcessResult, limit: int, timeout_note: str) -> ToolOutput:
    text, omitted = visible(result.output, result.omitted, limit)
    code = None
    notes: list[str] = []
    if result.ended_by == "timeout":
        code = "TIMEOUT"
        notes.append(timeout_note)
    elif result.ended_by is not None:
        code = "CANCELLED"
        notes.append(f"cancelled after {result.duration_s:.1f} s")
    elif result.exit_code:
        code = "EXIT_STATUS"
        notes.append(exit_words(result.exit_code))
    if result.left_running:
        notes.append(
            "a process it started is still running; it is ended with the run, and nothing reads its output "
            "any more unless it was redirected"
        )
    meta: JsonObject = {"exitCode": result.exit_code, "durationMs": round(result.duration_s * 1000)}
    if result.ended_by == "timeout":
        meta["timedOut"] = True
    if omitted:
        meta["omittedBytes"] = omitted
    if result.left_running:
        meta["leftRunning"] = True
    if text and not text.endswith("\n") and notes:
        text += "\n"
    text += "\n".join(f"[{note}]" for note in notes)
    return ToolOutput(text or "(no output)", is_error=code is not None, code=code, meta=meta)
