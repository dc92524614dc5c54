"""One command that runs: its process, its pipes and what ended it. Everything here happens in the hub."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from gevent import get_hub
from gevent.event import Event

from dsh_actors.ports import ProcessResult
from dsh_actors.runtime.log import LOGGER

__all__ = ["Command", "Pipe", "Sink"]

_DRAIN_BYTES = 1 << 20
"""How far a command's pipe is read after its exit while somebody else still holds it."""
_READ_BYTES = 65536

Sink = Callable[[bytes], None]
"""Hears what a command writes as it comes; in the hub, so that it must be quick and cannot wait."""


class Pipe:
    """The read end of what a command writes. ``fd`` does not block."""

    def __init__(self, fd: int, sink: Sink) -> None:
        self.ended = Event()
        """Set at the end, or once enough was read of a pipe that only strays hold."""
        self._fd = fd
        self._sink = sink
        self._drained: int | None = None
        self._reader = get_hub().loop.io(fd, 1)
        self._reader.start(self._readable)

    def drain(self) -> None:
        """The command has ended: from now on only so much more is read."""
        self._drained = 0

    def close(self) -> None:
        if self._fd >= 0:
            self._reader.stop()
            self._reader.close()
            os.close(self._fd)  # the patched one, made for a descriptor that had a watcher
            self._fd = -1

    def _readable(self) -> None:
        # One read for each turn of the hub: full speed, and nobody else has to wait.
        try:
            piece = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        if piece:
            self._hand_on(piece)
        if self._drained is not None:
            self._drained += len(piece)
        if not piece or (self._drained or 0) > _DRAIN_BYTES:
            self._reader.stop()
            self.ended.set()

    def _hand_on(self, piece: bytes) -> None:
        try:
            self._sink(piece)
        except Exception:
            # The sink is the caller's; gevent would print the error on stderr.
            LOGGER.exception("the output of a command could not be taken")


class Command:
    """``tag`` and ``needle`` are what it and its descendants are found by; ``on_exit`` hears of its exit."""

    def __init__(
        self,
        pid: int,
        needle: bytes,
        tag: int,
        pipes: tuple[Pipe, ...],
        on_exit: Callable[[Command], None],
    ) -> None:
        self._child = get_hub().loop.child(pid)
        self._child.start(self._exited)
        self.pid = pid
        self.needle = needle
        self.tag = tag
        self.pipes = pipes
        self.exit_status: int | None = None
        self.ended_by: str | None = None
        self.over = Event()
        self._on_exit = on_exit
        self._began = time.monotonic()
        self._duration_s: float | None = None

    def end(self, by: str, wake: bool = True) -> None:
        """Note why the command has to end, unless it already did, and wake who waits for it."""
        if self.exit_status is None and self.ended_by is None:
            self.ended_by = by
            if wake:
                self.over.set()

    def result(self, left_running: bool) -> ProcessResult:
        """How it ended; its output is with the sinks."""
        code = None
        if self.ended_by is None and self.exit_status is not None:
            code = os.waitstatus_to_exitcode(self.exit_status)
        duration = self._duration_s if self._duration_s is not None else time.monotonic() - self._began
        return ProcessResult(code, b"", 0, self.ended_by, left_running, duration)

    def drain(self, seconds: float) -> None:
        """Wait at most so long for the ends of its pipes, and close them."""
        ends = time.monotonic() + seconds
        for pipe in self.pipes:
            pipe.ended.wait(max(0.0, ends - time.monotonic()))
        self.close_pipes()

    def close_pipes(self) -> None:
        for pipe in self.pipes:
            pipe.close()

    def abandon(self) -> None:
        """Let go of everything; a process still there is killed. The watcher stays until it is reaped."""
        self.close_pipes()
        if self.exit_status is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:  # it ended meanwhile, or belongs to another user
                return

    def _exited(self) -> None:
        self.exit_status = self._child.rstatus
        self._duration_s = time.monotonic() - self._began
        for pipe in self.pipes:
            pipe.drain()
        self._child.stop()
        self._child.close()
        self._on_exit(self)
        self.over.set()
