"""Where a batch's result lines go: a file that is only ever appended to, or standard output.

A line in the file is durable when `ResultFile.put` returns; a torn end of it is put right when it is opened.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from dsh_actors.cli.lines import json_line
from dsh_actors.cli.streams import STREAMS
from dsh_actors.core.batch import Finished
from dsh_actors.core.text import JsonObject, is_well_formed
from dsh_actors.errors import SessionBusy, StorageError, StorageFull, UsageError, is_disk_full
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.output import MAX_QUEUED_BYTES, Writer

__all__ = ["Earlier", "ResultFile", "ResultSink", "StandardOutput"]

_PIECE = 1 << 20
_PATIENCE_S = 0.5
_BEGINNING = b'{"type":"batch.start"'


class ResultSink(Protocol):
    """Takes result lines as they come."""

    def put(self, line: JsonObject) -> None:
        """Deliver one line. Raises `StorageError` where that cannot be done."""
        ...

    def finish(self) -> bool:
        """Wait until all is delivered, or nobody is waited for any longer; whether it is."""
        ...


class StandardOutput:
    """Result lines for whoever reads them; ``on_broken`` hears that nobody does any more.

    A slow reader holds the tasks up, unless a signal says to stop: after ``give_up_at`` (monotonic) it is
    not waited for.
    """

    def __init__(self, on_broken: Callable[[], None], descriptor: int = 1) -> None:
        self._writer = Writer(descriptor, on_broken=on_broken)
        self.give_up_at: float | None = None

    @property
    def error(self) -> BaseException | None:
        """Why nothing more can be written, if so."""
        return self._writer.error

    def put(self, line: JsonObject) -> None:
        while self._writer.queued_bytes > MAX_QUEUED_BYTES and not self._is_given_up():
            self._writer.flush(_PATIENCE_S)
        self._writer.write(json_line(line))

    def finish(self) -> bool:
        while not self._writer.flush(_PATIENCE_S):
            if self._is_given_up():
                return False
        return STREAMS.has_stdout

    def _is_given_up(self) -> bool:
        is_late = self.give_up_at is not None and time.monotonic() > self.give_up_at
        return is_late or self._writer.broken


class Earlier:
    """What a results file has already. Of a task that is in it twice the last line counts."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.finished: dict[str, Finished] = {}
        self.refused: set[tuple[int, str]] = set()
        """Lines that were refused: number and digest."""

    def take(self, raw: bytes) -> None:
        """Take one line of the file; what is none of ours is passed over."""
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            return
        match line:
            case {"type": "batch.start", "name": str(name)}:
                self.name = name
            case {"type": "task.end", "status": "usage", "line": int(number), "digest": str(digest)}:
                self.refused.add((number, digest))
        found = Finished.of(line)
        if found is not None:
            self.finished[found[0]] = found[1]


class ResultFile:
    """The file of ``-o``, held by one batch at a time.

    Raises `UsageError` for a path that cannot be appended to, `SessionBusy` while another batch has it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._pending: list[bytes] = []
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"-o: cannot write {path}: {reason}") from error
        self.is_regular = stat.S_ISREG(os.fstat(self._fd).st_mode)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise UsageError(f"-o: cannot lock {path}: {error.strerror}") from error
            raise SessionBusy(f"-o: another batch is writing {path}") from error

    @property
    def is_empty(self) -> bool:
        return not self.is_regular or os.fstat(self._fd).st_size == 0

    def earlier(self) -> Earlier:
        """Read what is there. A line that a kill has cut is taken off.

        Raises `UsageError` for a file that no batch has written, OSError for one that cannot be read.
        """
        found = Earlier()
        if self.is_regular:
            run_native(self._scan, found.take)
        return found

    def put(self, line: JsonObject) -> None:
        self._pending.append(json_line(line))
        with self._lock:
            # Whoever had the lock before may have taken it along: one sync serves many lines.
            if self._pending:
                lines = self._pending[:]
                self._pending.clear()
                try:
                    run_native(self._append, b"".join(lines))
                except StorageError:
                    # Of others, too: each of them has to hear that its line is not there.
                    self._pending[:0] = lines
                    raise

    def finish(self) -> bool:
        return True

    def close(self) -> None:
        os.close(self._fd)

    def _append(self, data: bytes) -> None:
        size = os.fstat(self._fd).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            if self.is_regular:
                os.fsync(self._fd)
        except OSError as error:
            if self.is_regular:
                os.ftruncate(self._fd, size)  # no half line stays
            kind = StorageFull if is_disk_full(error) else StorageError
            raise kind(f"cannot write {self.path}: {error.strerror}") from error

    def _scan(self, take: Callable[[bytes], None]) -> None:
        end = 0
        for raw in self._lines():
            if end == 0 and not raw.startswith(_BEGINNING[: len(raw)]):
                raise UsageError(f"-o: {self.path} holds something else than results of a batch")
            if raw.endswith(b"\n"):
                end += len(raw)
                take(raw)
        if end < os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, end)

    def _lines(self) -> Iterator[bytes]:
        with open(self._fd, "rb", buffering=_PIECE, closefd=False) as file:
            file.seek(0)
            yield from file


def printable_name(name: str) -> str:
    """The name of a batch. Raises `UsageError` for one that no session's id could hold."""
    if not (name.strip() and name.isprintable() and is_well_formed(name) and len(name) <= 80):
        raise UsageError("--name is a line of 1 to 80 characters")
    return name
