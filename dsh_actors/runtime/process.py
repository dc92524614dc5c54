"""Runs commands: each in its own session, with a pipe for its output, ended as a whole.

`posix_spawn` and a libev child watcher instead of a fork: libev reaps every child, so nothing here may
call `waitpid`. Commands are started and awaited in the main thread's hub only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gevent
from gevent import get_hub
from gevent.event import Event

from dsh_actors.core.bounded_output import BoundedOutput
from dsh_actors.errors import ToolError
from dsh_actors.ports import CancelToken, ProcessResult
from dsh_actors.runtime.process_command import Command, Pipe, Sink
from dsh_actors.runtime.process_guard import MARKER_NAME, Process, end_processes, find_processes, pids_since
from dsh_actors.runtime.process_spawn import (
    StandardEnds,
    close_now,
    command_line,
    prepare_world,
    spawn_command,
    spawn_guard,
    start_error,
    tags_of,
)

__all__ = ["MARKER_NAME", "Processes", "RunningCommand"]

_DRAIN_S = 0.2
"""How long a command's pipe is read after its exit while somebody else still holds it."""
_PARTING_S = 0.02
_REAP_S = 1.0
_MAX_WAIT_S = 2147483.0


class Processes:
    """Implements `ports.ProcessRunner` for one harness.

    ``marker`` names the harness among all on this machine. Every command carries
    ``DSH_PROCESS_MARKER=marker.n`` in its environment, and a resource limit of an odd value as its tag,
    so that what it starts can be found again, also with a cleared environment, a session of its own
    and a dead parent. A process that outlives its command (a stray) is ended by `close`, or by the
    guard process when the harness dies. ``grace_s`` is the time between TERM and KILL.
    """

    def __init__(self, marker: str, grace_s: float = 5.0) -> None:
        if not marker or set(marker) & set("/=\0\n "):
            raise ValueError(f"unusable process marker {marker!r}")
        self._marker = marker
        self._grace_s = grace_s
        self._started = 0
        self._running: dict[int, Command] = {}
        self._active: set[Command] = set()
        self._strays: dict[int, int] = {}
        self._tags = tags_of(marker)
        self._guard = _Guard(f"/{marker}.", self._tags)
        self._closed = False

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout_s: float,
        cancel: CancelToken,
        output_limit_bytes: int,
    ) -> ProcessResult:
        """See `ports.ProcessRunner.run`.

        Where ``omitted`` is not 0, the first ``output_limit_bytes // 2`` bytes of ``output`` are its head.
        Raises `ToolError` (code ``START_FAILED``) when the command cannot be started.
        """
        if cancel.reason is not None:
            return ProcessResult(None, b"", 0, "cancelled", False, 0.0)
        output = BoundedOutput(output_limit_bytes)
        command = self._start(argv, cwd, env, output.add)
        result = self._wait(command, timeout_s, cancel)
        kept, omitted = output.parts()
        return replace(result, output=kept, omitted=omitted)

    def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        on_output: Sink,
        on_errors: Sink | None = None,
        stdin: bytes | None = None,
    ) -> RunningCommand:
        """See `ports.ProcessRunner.start`; raises as `run` does."""
        command = self._start(argv, cwd, env, on_output, on_errors, stdin)
        return RunningCommand(lambda timeout_s, cancel: self._wait(command, timeout_s, cancel))

    def _wait(self, command: Command, timeout_s: float, cancel: CancelToken) -> ProcessResult:
        undo = cancel.on_cancel(lambda: command.end("cancelled"))
        try:
            if not command.over.wait(min(timeout_s, _MAX_WAIT_S)):
                command.end("timeout")
            left = self._end(command) if command.ended_by else []
            command.drain(_DRAIN_S)
            if not left and (left := self._find_live(command)):
                # What waited for a process that held the pipe ends a moment later than that.
                gevent.sleep(_PARTING_S)
                left = self._find_live(command)
            self._remember(left)
            if command.exit_status is not None and command.pid not in self._running:
                self._guard.remove(command.pid)
            return command.result(bool(left))
        finally:
            undo()
            self._active.discard(command)
            command.abandon()

    def close(self) -> None:
        """End all running commands and strays: TERM, the grace period, KILL. No command starts after this."""
        self._closed = True
        for command in self._active:
            command.end("cancelled", wake=False)  # its exit wakes it
        if self._started:
            end_processes(self._find_all, self._grace_s, gevent.sleep)
        deadline = time.monotonic() + _REAP_S
        while self._active and time.monotonic() < deadline:
            gevent.sleep(0.002)
        for command in list(self._active):
            command.over.set()
        self._strays.clear()
        self._guard.close()

    def _start(
        self,
        argv: Sequence[str],
        cwd: str,
        env: Mapping[str, str],
        on_output: Sink,
        on_errors: Sink | None = None,
        stdin: bytes | None = None,
    ) -> Command:
        if self._closed:
            raise ToolError("cannot run a command: the harness is stopping", code="START_FAILED")
        self._started += 1
        own = f"{self._marker}.{self._started}"
        # A harness inside a command of another keeps the outer mark, so that the outer one finds it all.
        outer = env.get(MARKER_NAME)
        environment = {**env, "PWD": cwd, MARKER_NAME: f"{outer}/{own}" if outer else own}
        path, arguments = command_line(argv, cwd, env)
        self._guard.ensure(self._running, self._strays)
        tag = self._tags[self._started % len(self._tags)]
        try:
            ends = StandardEnds(stdin, separate=on_errors is not None)
        except OSError as error:
            raise start_error(argv[0], error) from error
        try:
            # Nothing may yield between these lines: libev would reap the child unseen.
            pid = spawn_command(path, arguments, environment, ends, tag)
            sinks = (on_output,) if on_errors is None else (on_output, on_errors)
            pipes = tuple(map(Pipe, ends.take(), sinks))
            command = Command(pid, f"/{own}/".encode(), tag, pipes, self._on_exit)
        except (OSError, ValueError) as error:
            raise start_error(argv[0], error) from error
        finally:
            ends.close()
        self._running[pid] = command
        self._active.add(command)
        self._guard.add(pid)
        return command

    def _on_exit(self, command: Command) -> None:
        # From here on the kernel may give the pid to another command. The guard keeps the group until it
        # is known what the command left behind.
        del self._running[command.pid]

    def _end(self, command: Command) -> list[Process]:
        left = end_processes(lambda seen: self._find(command, seen), self._grace_s, gevent.sleep)
        if command.exit_status is None:
            command.over.clear()
            command.over.wait(_REAP_S)
        return left

    def _find(self, command: Command, seen: Mapping[int, int]) -> list[Process]:
        pids, tags = self._candidates(command), range(command.tag, command.tag + 1)
        return find_processes(command.needle, {command.pid}, seen, pids, tags)

    def _find_live(self, command: Command) -> list[Process]:
        """What goes on. The end of a pipe is seen before the process that held it is quite gone."""
        return [process for process in self._find(command, {}) if not process.ending]

    def _candidates(self, command: Command) -> list[int]:
        """Pids that may belong to ``command``; the leaders of the other running commands do not."""
        running = self._running
        candidates = [pid for pid in pids_since(command.pid) if pid not in running]
        if command.exit_status is None:
            candidates.append(command.pid)
        return candidates

    def _find_all(self, seen: Mapping[int, int]) -> list[Process]:
        known = {**self._strays, **seen}
        return find_processes(f"/{self._marker}.".encode(), set(self._running), known, tags=self._tags)

    def _remember(self, left: list[Process]) -> None:
        for process in left:
            self._strays[process.pid] = process.started
            self._guard.add(process.pid, process.started)


class RunningCommand:
    """Implements `ports.RunningProcess`."""

    def __init__(self, wait: Callable[[float, CancelToken], ProcessResult]) -> None:
        self._wait = wait

    def wait(self, *, timeout_s: float, cancel: CancelToken) -> ProcessResult:
        """See `ports.RunningProcess.wait`."""
        return self._wait(timeout_s, cancel)


class _Guard:
    """The harness's side of the guard process (`process_guard`)."""

    def __init__(self, needle: str, tags: range) -> None:
        self._needle = needle
        self._tags = tags
        self._pid = 0
        self._pipe = -1
        self._gone = Event()

    def ensure(self, running: Mapping[int, object], strays: Mapping[int, int]) -> None:
        """Start a guard unless one is there. Raises `ToolError` if that fails."""
        if self._pipe >= 0:
            return
        if not self._pid:
            prepare_world()
        read_end, self._pipe = os.pipe()
        try:
            os.set_blocking(self._pipe, False)
            self._pid = spawn_guard(self._needle, self._tags, read_end)
        except OSError as error:
            self._hang_up()
            raise start_error("the process guard", error) from error
        finally:
            close_now(read_end)
        self._gone = Event()
        watcher = get_hub().loop.child(self._pid)
        watcher.start(self._ended, watcher, self._gone)
        for pid in running:
            self.add(pid)
        for pid, started in strays.items():
            self.add(pid, started)

    def add(self, pid: int, started: int = 0) -> None:
        self._send(b"+%d %d\n" % (pid, started))

    def remove(self, pid: int) -> None:
        self._send(b"-%d 0\n" % pid)

    def close(self) -> None:
        """Send the guard home and wait for it."""
        if self._pipe < 0:
            return
        self._send(b"q\n")
        gone = self._gone
        self._hang_up()
        if not gone.wait(_REAP_S):
            os.kill(self._pid, signal.SIGKILL)
            gone.wait(_REAP_S)

    def _send(self, line: bytes) -> None:
        if self._pipe < 0:
            return
        try:
            os.write(self._pipe, line)
        except OSError:  # dead, or stuck with a full pipe: the next command starts another
            if not self._gone.is_set():
                os.kill(self._pid, signal.SIGKILL)  # or it would take the hang-up for the harness's death
            self._hang_up()

    def _hang_up(self) -> None:
        if self._pipe >= 0:
            close_now(self._pipe)
            self._pipe = -1

    def _ended(self, watcher: Any, gone: Event) -> None:
        watcher.stop()
        watcher.close()
        gone.set()
        if gone is self._gone:
            self._hang_up()
