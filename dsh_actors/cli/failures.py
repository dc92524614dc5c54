"""Errors as users see them: one line on standard error, and an exit code from the one table."""

from __future__ import annotations

import os
import sys

import click

from dsh_actors.core.exit_codes import EXIT_CODES, exit_code_of, reason_of_error
from dsh_actors.core.outcome import error_line
from dsh_actors.errors import HarnessError, UsageError

__all__ = ["describe_error", "report", "show_traceback"]


def report(error: BaseException) -> int:
    """Say on standard error, in one line, what went wrong; the exit code."""
    if isinstance(error, click.Abort):
        error = KeyboardInterrupt()
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "dsh"
        error = UsageError(error.format_message().rstrip("."), hint=f"see {command} --help")
    reason = reason_of_error(error)
    show_traceback(error)
    try:
        sys.stderr.write(error_line(EXIT_CODES[reason].name, describe_error(error)) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        # Nobody reads standard error any more; the exit code still tells.
        return exit_code_of(reason)
    return exit_code_of(reason)


def describe_error(error: BaseException) -> str:
    """What a user can do something with: message and hint, or the kind of an unexpected error."""
    if isinstance(error, HarnessError):
        return f"{error.message}; {error.hint}" if error.hint else error.message
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, BrokenPipeError):
        return "the reader of standard output went away"
    return f"internal error: {type(error).__name__}: {error}; set DSH_DEBUG=1 for the details"


def show_traceback(error: BaseException) -> None:
    """Under ``DSH_DEBUG=1``, where an unexpected error came from."""
    if os.environ.get("DSH_DEBUG") == "1" and not isinstance(error, UsageError):
        import traceback

        traceback.print_exception(error)
