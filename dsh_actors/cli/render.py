"""What a run writes: the answer or JSON lines on standard output, one line on standard error, files.

Nothing here waits but `RunOutput.finish`, which does not return before everything is delivered.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from dsh_actors.cli.options import RunArguments
from dsh_actors.cli.streams import STREAMS
from dsh_actors.core.exit_codes import exit_code_of
from dsh_actors.core.outcome import RunEnd
from dsh_actors.core.text import clean_text
from dsh_actors.errors import UsageError
from dsh_actors.runtime.output import Writer

__all__ = ["SCHEMA_VERSION", "RunOutput", "json_line", "write_atomically"]

SCHEMA_VERSION = 1
"""Version of the lines of ``--json``: raised when a member changes its meaning."""

_PATIENCE_S = 1.0


def json_line(value: Any) -> bytes:
    """One compact line of UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"


def write_atomically(path: str, data: bytes | Iterable[bytes]) -> None:
    """Put ``data`` in the place of the file at once: a reader sees the old or the new, never a part.

    A path that exists and is no regular file (``/dev/stderr``, a pipe) is written to. Raises OSError.
    """
    pieces = (data,) if isinstance(data, bytes) else data
    if os.path.lexists(path) and not os.path.isfile(path):
        with open(path, "wb") as target:
            target.writelines(pieces)
        return
    target_path = os.path.realpath(path)
    handle, temporary = tempfile.mkstemp(prefix=".dsh-", dir=os.path.dirname(target_path) or ".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        os.replace(temporary, target_path)
    except BaseException:
        # Also on a signal: no half-written file stays behind.
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class RunOutput:
    """The three ways out of a run. Built before anything else, so that every path can end through it."""

    def __init__(self, arguments: RunArguments) -> None:
        self._arguments = arguments
        self._is_started = False
        self._held: list[bytes] = []
        self._stdout = Writer(1)
        self._stderr = Writer(2)
        self.give_up_at: float | None = None
        """When to stop waiting for a reader (monotonic); set by a signal."""

    def check_files(self) -> None:
        """Raises `UsageError` while it is early, for files that could not be written at the end."""
        for option, path in self._files():
            folder = os.path.dirname(os.path.realpath(path))
            is_special = os.path.lexists(path) and not os.path.isfile(path)
            if os.path.isdir(path) or not os.access(path if is_special else folder, os.W_OK):
                raise UsageError(f"{option}: cannot write {path}")

    def _files(self) -> list[tuple[str, str]]:
        named = (
            ("--output-last-message", self._arguments.output_last_message),
            ("--result-file", self._arguments.result_file),
        )
        return [(option, path) for option, path in named if path is not None]

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Call back when the reader of standard output has gone."""
        self._stdout.on_broken = callback

    # --- while it runs -----------------------------------------------------------------------

    def start(self, session_id: str | None, **facts: Any) -> None:
        """The first line under ``--json``; events that came before it follow it."""
        self._is_started = True
        if self._arguments.json_lines:
            start = {"type": "run.start", "schema_version": SCHEMA_VERSION, "session_id": session_id}
            self._stdout.write(json_line(start | facts) + b"".join(self._held))
            self._held.clear()
        if self._arguments.print_session_id and session_id is not None:
            self.note(session_id)

    def line(self, value: Any) -> None:
        """One more JSON line; nothing in text mode."""
        if not self._arguments.json_lines:
            return
        data = json_line(value)
        if self._is_started:
            self._stdout.write(data)
        else:
            self._held.append(data)

    def note(self, text: str) -> None:
        """A line on standard error."""
        self._stderr.write(clean_text(text).encode() + b"\n")

    def show(self, text: str) -> None:
        """Text on standard error as it is, for a live line."""
        self._stderr.write(text.encode("utf-8", "replace"))

    # --- the end -----------------------------------------------------------------------------

    def finish(self, end: RunEnd) -> int:
        """Deliver everything; the exit code, which may still change where delivery fails."""
        end = self._write_files(end)
        if self._arguments.json_lines:
            if not self._is_started:
                self.start(end.session_id)
            self.line(end.to_json())
        else:
            answer = end.printed_answer(self._arguments.partial_ok)
            if answer is not None:
                self._stdout.write(answer.encode("utf-8", "replace") + b"\n")
        self._deliver(self._stdout)
        if self._stdout.broken or (not STREAMS.has_stdout and not self._files()):
            end = self._write_files(self._undelivered(end))
        error = end.error_line()
        if error is not None:
            self.note(error)
        self._deliver(self._stderr)
        return end.exit_code

    def _deliver(self, writer: Writer) -> None:
        """A slow reader is waited for as long as it takes, unless a signal said to stop."""
        while not writer.flush(_PATIENCE_S):
            if writer.broken or (self.give_up_at is not None and time.monotonic() > self.give_up_at):
                return

    def _write_files(self, end: RunEnd) -> RunEnd:
        answer = end.printed_answer(self._arguments.partial_ok)
        try:
            if self._arguments.output_last_message is not None and answer is not None:
                data = answer.encode("utf-8", "replace") + b"\n"
                write_atomically(self._arguments.output_last_message, data)
            if self._arguments.result_file is not None:
                write_atomically(self._arguments.result_file, json_line(end.to_json()))
        except OSError as error:
            return self._changed(end, _reason_of(error), f"cannot write {error.filename}: {error.strerror}")
        return end

    def _undelivered(self, end: RunEnd) -> RunEnd:
        error = self._stdout.error
        if isinstance(error, OSError) and error.errno not in (errno.EPIPE, errno.ECONNRESET):
            return self._changed(end, _reason_of(error), f"cannot write standard output: {error.strerror}")
        if not end.completed:
            return end  # why it failed says more than that nobody could read it
        return self._changed(end, "pipe", "the reader of standard output went away")

    def _changed(self, end: RunEnd, reason: str, message: str) -> RunEnd:
        code = exit_code_of(reason, simple=self._arguments.simple_exit)
        return replace(end, reason=reason, message=message, exit_code=code)


def _reason_of(error: OSError) -> str:
    return "storage_full" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "internal"
