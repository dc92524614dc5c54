"""The `bash` tool: runs one shell command to its end and reports what came of it.

Knows nothing of approval; the environment it is given is already free of secrets.
"""

from __future__ import annotations

import shutil
import signal
from functools import cache

from dsh_actors.core.text import JsonObject, decode_output, shorten
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
        if arguments.get("background"):
            raise ToolError(
                "background jobs are not available in this run; run it in the foreground", code="UNSUPPORTED"
            )
        asked = arguments.get("timeout_s")
        timeout_s = _clamp(asked, context.timeout_s)
        env = {**context.env, **_UNATTENDED}
        result = context.processes.run(
            context.wrap([_shell(env.get("PATH")), "-c", arguments["command"]], context.cwd),
            cwd=context.cwd,
            env=env,
            timeout_s=timeout_s,
            cancel=context.cancel,
            output_limit_bytes=context.output_limit_bytes,
        )
        return _report(result, context.output_limit_bytes, _timeout_note(asked, timeout_s, context.timeout_s))


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
    text, omitted = _visible(result, limit)
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
        notes.append(_exit_note(result.exit_code))
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


def _exit_note(exit_code: int) -> str:
    if exit_code > 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:  # a real-time signal
        name = str(-exit_code)
    return f"ended by signal {name}"


def _visible(result: ProcessResult, limit: int) -> tuple[str, int]:
    """The output as text of about ``limit`` bytes, and how many bytes of output it leaves out."""
    whole = decode_output(result.output)
    if not result.omitted and len(whole.encode()) <= limit:
        return whole, 0
    middle = min(limit // 2, len(result.output))
    head, used_by_head = _fit(result.output[:middle], limit // 2, from_end=False)
    tail, used_by_tail = _fit(result.output[middle:], limit - limit // 2, from_end=True)
    omitted = result.omitted + len(result.output) - used_by_head - used_by_tail
    return f"{head}\n[{omitted} bytes omitted here]\n{tail}", omitted


def _fit(raw: bytes, budget: int, from_end: bool) -> tuple[str, int]:
    """The longest start or end of ``raw`` that fits as text, and its bytes. Binary data grows when shown."""
    low, high = 0, len(raw)
    size = high
    while True:
        part = _without_cut_start(raw[len(raw) - size :]) if from_end else _without_cut_end(raw[:size])
        text = decode_output(part)
        if len(text.encode()) <= budget:
            low = size
        else:
            high = size - 1
        if low >= high:
            if size == low:
                return text, len(part)
            size = low
        else:
            size = (low + high + 1) // 2


def _without_cut_end(raw: bytes) -> bytes:
    """``raw`` without the start of a UTF-8 character whose rest is cut off."""
    for back in range(1, min(3, len(raw)) + 1):
        byte = raw[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return raw[:-back] if length > back else raw
        if byte < 0x80:
            break
    return raw


def _without_cut_start(raw: bytes) -> bytes:
    """``raw`` without the rest of a UTF-8 character whose start is cut off."""
    skip = 0
    while skip < min(3, len(raw)) and 0x80 <= raw[skip] < 0xC0:
        skip += 1
    return raw[skip:]
