"""Errors as users see them: one line on standard error, and an exit code from the one table."""

from __future__ import annotations

import os
import re
import sys

import click

from dsh_actors.core.exit_codes import (
    EXIT_CODES,
    describe_error,
    display,
    error_line,
    exit_code_of,
    reason_of_error,
)
from dsh_actors.errors import StorageFull, UsageError, is_disk_full

__all__ = ["as_known", "describe_error", "display", "one_line", "report", "show_traceback"]

# Line breaks of any kind, what a terminal obeys, and what turns the order of the characters around it.
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def report(error: BaseException) -> int:
    """Say on standard error, in one line, what went wrong; the exit code."""
    error = as_known(error)
    reason = reason_of_error(error)
    code = exit_code_of(reason, getattr(error, "signal", None))
    show_traceback(error)
    try:
        sys.stderr.write(error_line(EXIT_CODES[reason].name, describe_error(error)) + "\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        # Nobody reads standard error any more; the exit code still tells.
        return code
    return code


def as_known(error: BaseException) -> BaseException:
    """An error of the option parser, or of writing to standard output, as one of ours."""
    if isinstance(error, click.Abort):
        return KeyboardInterrupt()
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "dsh"
        return UsageError(error.format_message().rstrip("."), hint=f"see {command} --help")
    if type(error) is OSError and error.filename is None and is_disk_full(error):
        # What only a write can meet; an error of a file of ours would name it.
        return StorageFull(f"cannot write standard output: {error.strerror}")
    return error


def one_line(text: str) -> str:
    """``text`` as one line that a terminal shows and does not obey."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], display(text))


def show_traceback(error: BaseException) -> None:
    """Under ``DSH_DEBUG=1``, where an unexpected error came from."""
    if os.environ.get("DSH_DEBUG") == "1" and not isinstance(error, UsageError):
        import traceback

        traceback.print_exception(error)
