"""The one table of exit codes: which reason ends a run with which code, and what that means.

The exit status of the program, `dsh help exit-codes` and the table in the README are made from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dsh_actors import errors
from dsh_actors.core.retry import reason_of
from dsh_actors.core.text import clean_text, decode_output, is_well_formed, shorten

__all__ = [
    "EXIT_CODES",
    "EXIT_TABLE",
    "SIGNAL_CODES",
    "ExitCode",
    "describe_error",
    "display",
    "error_line",
    "exit_code_of",
    "reason_of_error",
]

MAX_ERROR_LINE = 1_000
"""Code points of a message on standard error: long enough for any reason, short enough for one line."""


@dataclass(frozen=True, slots=True)
class ExitCode:
    """One row: ``reasons`` are the words of ``run.end.reason`` that lead to it."""

    code: int
    name: str
    meaning: str
    reasons: tuple[str, ...]


SIGNAL_CODES: Mapping[str, int] = MappingProxyType({"SIGHUP": 129, "SIGINT": 130, "SIGTERM": 143})

EXIT_TABLE: tuple[ExitCode, ...] = (
    ExitCode(0, "completed", "a final answer; nothing is left to do", ("completed",)),
    ExitCode(
        1,
        "failed",
        "the provider failed after all retries, the answer is empty or cut, the context or the disk is "
        "full, the session cannot be read, or an internal error",
        (
            "provider_error",
            "rate_limited",
            "overloaded",
            "network",
            "malformed_stream",
            "empty_response",
            "output_truncated",
            "context_exhausted",
            "storage_full",
            "corrupt",
            "unsupported_format",
            "blocked",
            "internal",
        ),
    ),
    ExitCode(
        2,
        "usage",
        "a wrong option, configuration, model, session or file, or a required sandbox that is missing; "
        "no request was made",
        ("usage",),
    ),
    ExitCode(3, "auth", "no valid credentials, or no quota or balance left", ("auth", "balance")),
    ExitCode(
        4,
        "limit",
        "a limit on steps, tool calls, tokens, cost or agents; or --no-wait with work left",
        ("max_steps", "max_tool_calls", "max_tokens", "max_cost", "max_agents", "abandoned"),
    ),
    ExitCode(5, "schema", "the answer never fitted the schema", ("schema",)),
    ExitCode(6, "denied", "a policy denied a call, and --fail-on-denied (the default) is on", ("denied",)),
    ExitCode(7, "stuck", "the loop guard stopped a call that kept giving the same result", ("stuck",)),
    ExitCode(8, "busy", "another run holds the session, the id is taken, --continue is unclear", ("busy",)),
    ExitCode(124, "timeout", "--timeout or --deadline passed", ("timeout", "deadline")),
    ExitCode(
        130,
        "signal",
        "stopped by a signal: HUP 129, INT 130, TERM 143; the session is kept and can be resumed",
        ("interrupted",),
    ),
    ExitCode(141, "pipe", "the reader of standard output went away", ("pipe",)),
)

EXIT_CODES: Mapping[str, ExitCode] = MappingProxyType(
    {reason: row for row in EXIT_TABLE for reason in row.reasons}
)
"""The row of every reason."""


def exit_code_of(reason: str, signal: str | None = None, *, simple: bool = False) -> int:
    """The exit status of a run. ``signal`` is a name such as ``SIGTERM``; ``simple`` knows 0 and 1 only."""
    code = EXIT_CODES[reason].code
    if reason == "interrupted":
        code = SIGNAL_CODES.get(signal or "", code)
    return min(code, 1) if simple else code


def reason_of_error(error: BaseException) -> str:
    """The reason word of an error that kept a run from starting or ended it from outside."""
    match error:
        case errors.CredentialError():
            return "auth"
        case errors.UsageError() | errors.SessionNotFound() | errors.AgentNotFound():
            return "usage"
        case errors.SessionBusy() | errors.SessionExists():
            return "busy"
        case errors.SessionCorrupt():
            return "corrupt"
        case errors.SessionUnsupported():
            return "unsupported_format"
        case errors.StorageFull():
            return "storage_full"
        case errors.SubagentError(code="AGENT_LIMIT"):
            return "max_agents"
        case errors.ProviderError():
            return reason_of(error.code)
        case KeyboardInterrupt():
            return "interrupted"
        case BrokenPipeError():
            return "pipe"
    return "internal"


def display(text: str) -> str:
    """Text of the operating system for people: what is not UTF-8 becomes visible escapes."""
    if is_well_formed(text):
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def describe_error(error: BaseException) -> str:
    """What a user can do something with: message and hint, or the kind of an unexpected error."""
    if isinstance(error, errors.HarnessError):
        return display(f"{error.message}; {error.hint}" if error.hint else error.message)
    if isinstance(error, KeyboardInterrupt):
        return f"stopped by {getattr(error, 'signal', None) or 'SIGINT'}"
    if isinstance(error, BrokenPipeError):
        return "the reader of standard output went away"
    return f"internal error: {type(error).__name__}: {error}; set DSH_DEBUG=1 for the details"


def error_line(name: str, message: str, session_id: str | None = None) -> str:
    """``dsh: NAME: reason (session ID)``, on one line whatever the message holds."""
    text = shorten(_plain(message), MAX_ERROR_LINE)
    return f"dsh: {name}: {text}" + (f" (session {_plain(session_id)})" if session_id else "")


def _plain(text: str) -> str:
    return " ".join(decode_output(clean_text(text).encode()).split())
