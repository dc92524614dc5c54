"""What a run writes: the answer or JSON lines on standard output, one line on standard error, files.

Nothing here waits but `RunOutput.finish`, which does not return before everything is delivered.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dsh_actors.cli.lines import for_terminal, json_line, write_atomically
from dsh_actors.cli.options import RunArguments
from dsh_actors.cli.streams import STREAMS
from dsh_actors.core.exit_codes import exit_code_of
from dsh_actors.core.outcome import RunEnd
from dsh_actors.core.text import clean_text
from dsh_actors.errors import UsageError, is_disk_full
from dsh_actors.runtime.output import Writer
from dsh_actors.runtime.tasks import TaskEnd, start_task

__all__ = ["SCHEMA_VERSION", "RunOutput"]

SCHEMA_VERSION = 1
"""Version of the lines of ``--json``: raised when a member changes its meaning."""

_PATIENCE_S = 1.0
_ERROR_LINE_PATIENCE_S = 10.0
"""How long a reader of standard error may take: a parent may read the two streams one after the other."""

_FORCED_PATIENCE_S = 0.1


class RunOutput:
    """The three ways out of a run. Built before anything else, so that every path can end through it."""

    def __init__(self, arguments: RunArguments) -> None:
        self._arguments = arguments
        self._is_started = False
        self._held: list[bytes] = []
        self._stdout = Writer(1)
        self._stderr = Writer(2)
        self._notes_bytes = 0
        self._owed_bytes = 0
        self._is_ended = False
        self.give_up_at: float | None = None
        """When to stop waiting for a reader (monotonic); set by a signal."""
        self.stopped_by: str | None = None
        """The name of that signal."""

    def check_files(self) -> None:
        """Raises `UsageError` while it is early, for files that could not be written at the end."""
        for option, path in self._files():
            folder = os.path.dirname(os.path.realpath(path))
            is_special = os.path.lexists(path) and not os.path.isfile(path)
            if os.path.isdir(path) or (is_special and not os.access(path, os.W_OK)):
                raise UsageError(f"{option}: cannot write {path}")
            if not is_special:
                self._check_folder(option, path, folder)

    def _check_folder(self, option: str, path: str, folder: str) -> None:
        """Some folders refuse new files whatever their rights say."""
        try:
            handle, temporary = tempfile.mkstemp(prefix=".dsh-", dir=folder)
            os.close(handle)
            os.unlink(temporary)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"{option}: cannot write {path}: {reason}") from error

    def _files(self) -> list[tuple[str, str]]:
        named = (
            ("--output-last-message", self._arguments.output_last_message),
            ("--result-file", self._arguments.result_file),
        )
        return [(option, path) for option, path in named if path is not None]

    def on_broken(self, callback: Callable[[], None]) -> None:
        """Call back when the reader of standard output has gone; at once if it went before anybody asked."""
        self._stdout.on_broken = callback
        if self._stdout.broken:
            callback()

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
        """A line on standard error that must arrive."""
        self._to_stderr(clean_text(text).encode() + b"\n")
        self._owed_bytes = self._notes_bytes

    def pulse(self, text: str) -> None:
        """A line on standard error that says no more than that the run lives."""
        self.show(clean_text(text) + "\n")

    def show(self, text: str) -> None:
        """Text on standard error as it is, for a live line; left out while the stream takes nothing."""
        if not self._stderr.queued_bytes:
            self._to_stderr(text.encode("utf-8", "replace"))

    def passing_line(self, value: Any) -> None:
        """A JSON line that may be left out: it is, while the stream takes nothing."""
        if not self._stdout.queued_bytes:
            self.line(value)

    def _to_stderr(self, data: bytes) -> None:
        self._notes_bytes += len(data)
        self._stderr.write(data)

    # --- the end -----------------------------------------------------------------------------

    def finish(self, end: RunEnd) -> int:
        """Deliver everything; the exit code, which may still change where delivery fails."""
        end = self._write_files(end)
        self._print(end)
        is_delivered = self._deliver_stdout()
        if not is_delivered or (not STREAMS.has_stdout and not self._files()):
            end = self._write_files(self._undelivered(end))
        error = end.error_line()
        if error is not None:
            self.note(error)
        self._deliver_stderr()
        return end.exit_code

    def last_words(self, end: RunEnd) -> None:
        """What can be written of an end that is forced; waits for nobody."""
        self.give_up_at = time.monotonic()
        self._write_files(end)
        # A line in the middle of another one would be none: what waits in the queue is lost.
        if self._arguments.json_lines and not self._is_ended and not self._stdout.queued_bytes:
            self._print(end)
        error = end.error_line()
        if error is not None:
            self.note(error)
        self._stdout.flush(_FORCED_PATIENCE_S)
        self._stderr.flush(_FORCED_PATIENCE_S)

    def _print(self, end: RunEnd) -> None:
        self._is_ended = True
        if self._arguments.json_lines:
            if not self._is_started:
                self.start(end.session_id)
            self.line(end.to_json())
            return
        answer = end.printed_answer(self._arguments.partial_ok)
        if answer is not None:
            text = for_terminal(answer) if STREAMS.stdout_is_terminal() else answer
            self._stdout.write(text.encode("utf-8", "replace") + b"\n")

    def _deliver_stdout(self) -> bool:
        """Whether all is out. A reader is waited for as long as it takes, unless a signal said to stop."""
        while not self._stdout.flush(_PATIENCE_S):
            if self._stdout.broken or (self.give_up_at is not None and time.monotonic() > self.give_up_at):
                return False
        return True

    def _deliver_stderr(self) -> None:
        """Wait for the lines that must arrive; signs of life behind them are not waited for."""
        end = time.monotonic() + _ERROR_LINE_PATIENCE_S
        if self.give_up_at is not None:
            end = min(end, max(self.give_up_at, time.monotonic() + _PATIENCE_S))
        while self._notes_bytes - self._stderr.queued_bytes < self._owed_bytes:
            left = end - time.monotonic()
            if left <= 0 or self._stderr.broken:
                return
            self._stderr.flush(min(left, _PATIENCE_S))
        self._stderr.flush(_FORCED_PATIENCE_S)

    def _write_files(self, end: RunEnd) -> RunEnd:
        """Each file for itself: one that cannot be written keeps none of the others from being written."""
        answer = end.printed_answer(self._arguments.partial_ok)
        path = self._arguments.output_last_message
        if path is not None and answer is not None:
            end = self._write_file(end, path, answer.encode("utf-8", "replace") + b"\n")
        elif path is not None and end.status not in ("usage", "busy") and os.path.isfile(path):
            # The answer of an earlier run must not pass for one of this run.
            end = self._write_file(end, path, b"")
        if self._arguments.result_file is not None:
            end = self._write_file(end, self._arguments.result_file, json_line(end.to_json()))
        return end

    def _write_file(self, end: RunEnd, path: str, data: bytes) -> RunEnd:
        try:
            is_written = self._is_written(path, data)
        except OSError as error:
            return self._changed(end, _reason_of(error), f"cannot write {path}: {error.strerror}")
        if not is_written and self.stopped_by is not None:
            message = f"stopped by {self.stopped_by} before {path} was read"
            return replace(self._changed(end, "interrupted", message), signal=self.stopped_by)
        return end

    def _is_written(self, path: str, data: bytes) -> bool:
        """A pipe's reader is waited for like that of standard output. Raises OSError."""
        if not os.path.lexists(path) or os.path.isfile(path):
            write_atomically(path, data)
            return True
        ends: list[TaskEnd[None]] = []
        writing = start_task(lambda _token: write_atomically(path, data), ends.append, name="output/file")
        while not writing.join(_FORCED_PATIENCE_S):
            if self.give_up_at is not None and time.monotonic() > self.give_up_at:
                return False
        if ends[0].error is not None:
            raise ends.pop().error  # type: ignore[misc]  # it was looked at just before
        return True

    def cut_short(self, end: RunEnd) -> RunEnd:
        """The end of a run whose output is left behind because of a signal."""
        return self._undelivered(end)

    def _undelivered(self, end: RunEnd) -> RunEnd:
        error = self._stdout.error
        if error is not None and getattr(error, "errno", None) not in (errno.EPIPE, errno.ECONNRESET):
            reason = getattr(error, "strerror", None) or error
            return self._changed(end, _reason_of(error), f"cannot write standard output: {reason}")
        if not end.completed:
            return end  # why it failed says more than that nobody could read it
        if self.stopped_by is not None and not self._stdout.broken:
            message = f"stopped by {self.stopped_by} before all of the output was read"
            return replace(self._changed(end, "interrupted", message), signal=self.stopped_by)
        return self._changed(end, "pipe", "the reader of standard output went away")

    def _changed(self, end: RunEnd, reason: str, message: str) -> RunEnd:
        """Another end than the run's own. What made it fail before stays the reason."""
        if not end.completed:
            known = end.message if message in end.message else f"{end.message}; {message}"
            return replace(end, message=known)
        code = exit_code_of(reason, self.stopped_by, simple=self._arguments.simple_exit)
        return replace(end, reason=reason, message=message, exit_code=code)


def _reason_of(error: BaseException) -> str:
    return "storage_full" if is_disk_full(error) else "internal"
