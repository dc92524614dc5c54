"""Finds and ends what commands left behind; run as a script, it is the guard that outlives its harness.

Imports `os` and `time` only (`signal` alone would double the guard's start), and nothing of the package.
Linux only: it reads /proc.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

__all__ = ["MARKER_NAME", "Process", "end_processes", "find_processes", "pids_since", "read_process"]

MARKER_NAME = "DSH_PROCESS_MARKER"
"""The environment variable that every command and what it starts carry."""

_PREFIX = MARKER_NAME.encode() + b"="
_TAG_LINE = b"\nMax realtime timeout "
_NO_TAGS = range(0)
_TERM, _KILL = 15, 9
_CONT = 18
_GUARD_GRACE_S = 2.0
_KILL_PATIENCE_S = 1.0
"""How long to look again after KILL; what is still there then cannot be ended by us."""
_FEW_PIDS = 64
_PF_EXITING = 4
"""Of the flags in /proc/PID/stat (include/linux/sched.h): set before the process's descriptors are closed."""


class Process:
    """One live process as /proc shows it. ``started`` tells it from a later one with the same pid.

    ``ending``: it executes nothing any more, though the kernel is not done with it.
    """

    __slots__ = ("ending", "group", "marked", "parent", "pid", "session", "started")

    def __init__(
        self, pid: int, parent: int, group: int, session: int, started: int, marked: bool, ending: bool
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.group = group
        self.session = session
        self.started = started
        self.marked = marked
        self.ending = ending


def read_process(pid: int, needle: bytes, tags: range = _NO_TAGS) -> Process | None:
    """The process, or None if it is gone or a zombie. ``needle`` is ``/marker.n/`` or ``/marker.``.

    ``tags``: it is marked as well where its limit on real-time CPU time is one of these numbers. That
    limit means nothing to an ordinary process, and unlike the environment nothing clears it.
    """
    try:
        stat = _read(f"/proc/{pid}/stat")
    except OSError:
        return None
    # The name in parentheses may itself hold spaces and parentheses.
    fields = stat[stat.rfind(b")") + 2 :].split(b" ", 20)
    if len(fields) < 21 or fields[0] in b"ZX":
        return None
    parent, group, session = map(int, fields[1:4])
    marked = _is_marked(pid, needle) or _is_tagged(pid, tags)
    ending = bool(int(fields[6]) & _PF_EXITING)
    return Process(pid, parent, group, session, int(fields[19]), marked, ending)


def _is_marked(pid: int, needle: bytes) -> bool:
    try:
        environ = _read(f"/proc/{pid}/environ")
    except OSError:  # another user's process, or just gone
        return False
    if environ.startswith(_PREFIX):
        start = len(_PREFIX)
    else:
        start = environ.find(b"\0" + _PREFIX) + 1
        if not start:
            return False
        start += len(_PREFIX)
    return needle in b"/" + environ[start : environ.find(b"\0", start)] + b"/"


def _is_tagged(pid: int, tags: range) -> bool:
    if not tags:
        return False
    try:
        limits = _read(f"/proc/{pid}/limits")
    except OSError:  # just gone
        return False
    start = limits.find(_TAG_LINE)
    soft = limits[start + len(_TAG_LINE) :].split(None, 1)[0] if start >= 0 else b""
    return soft.isdigit() and int(soft) in tags


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        whole = piece = os.read(fd, 32768)
        while len(piece) == 32768:
            piece = os.read(fd, 32768)
            whole += piece
        return whole
    finally:
        os.close(fd)


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _leads_a_process(pid: int) -> bool:
    """Threads have numbers of the same kind and a directory too, but are not listed."""
    try:
        status = _read(f"/proc/{pid}/status")
    except OSError:
        return False
    return b"\nTgid:\t%d\n" % pid in status


def pids_since(pid: int) -> list[int]:
    """The live pids that were given out after ``pid`` was, by the kernel's counter, which wraps around."""
    last = int(_read("/proc/loadavg").split()[-1])
    if 0 <= last - pid <= _FEW_PIDS:
        # Asking for each is quicker than listing what may be thousands of others.
        return [other for other in range(pid + 1, last + 1) if _leads_a_process(other)]
    if last >= pid:
        return [other for other in _all_pids() if pid < other <= last]
    return [other for other in _all_pids() if other > pid or other <= last]


def find_processes(
    needle: bytes,
    groups: Collection[int],
    known: Mapping[int, int],
    pids: Iterable[int] | None = None,
    tags: range = _NO_TAGS,
) -> list[Process]:
    """What belongs to the commands: marked or tagged (`read_process`), of their ``groups`` or sessions, or
    ``known`` (pid → start).

    Descendants of those are found too. Only ``pids`` are looked at if given.
    """
    table: dict[int, Process] = {}
    for pid in _all_pids() if pids is None else pids:
        process = read_process(pid, needle, tags)
        if process is not None:
            table[pid] = process
    table.pop(os.getpid(), None)
    own_session = os.getsid(0)
    found = {
        process.pid: process
        for process in table.values()
        if process.marked
        or process.group in groups
        or process.session in groups
        or known.get(process.pid) == process.started
    }
    fresh = list(found.values())
    while fresh:
        # Every command has its own session, so a session of one holds nobody else; never our own, though.
        sessions = {process.session for process in fresh} - {own_session}
        parents = {process.pid for process in fresh}
        fresh = [
            process
            for process in table.values()
            if process.pid not in found and (process.parent in parents or process.session in sessions)
        ]
        for process in fresh:
            found[process.pid] = process
    return list(found.values())


def end_processes(
    find: Callable[[Mapping[int, int]], list[Process]], grace_s: float, pause: Callable[[float], object]
) -> list[Process]:
    """TERM, at most ``grace_s`` seconds, KILL; then look again, for at most a second, until nothing is left.

    ``find`` looks once more, given what was seen before (pid → start). ``pause`` sleeps. Returns what
    even KILL did not end.
    """
    seen: dict[int, int] = {}
    victims = find(seen)
    if victims:
        _signal_groups(victims, _TERM)
        _signal_groups(victims, _CONT)  # a stopped process acts on TERM only once it goes on
        _await_end(victims, grace_s, pause)
    deadline = time.monotonic() + _KILL_PATIENCE_S
    delay = 0.002
    while True:
        seen.update((process.pid, process.started) for process in victims)
        victims = find(seen)
        if not victims or time.monotonic() >= deadline:
            return victims
        _signal_groups(victims, _KILL)
        pause(delay)
        delay = min(2 * delay, 0.05)


def _await_end(processes: list[Process], limit_s: float, pause: Callable[[float], object]) -> None:
    deadline = time.monotonic() + limit_s
    delay = 0.001
    while processes:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        pause(min(delay, left))
        delay = min(2 * delay, 0.05)
        processes = [process for process in processes if _is_alive(process)]


def _is_alive(process: Process) -> bool:
    try:
        stat = _read(f"/proc/{process.pid}/stat")
    except OSError:
        return False
    fields = stat[stat.rfind(b")") + 2 :].split(b" ", 20)
    return fields[0] not in b"ZX" and int(fields[19]) == process.started


def _signal_groups(processes: list[Process], number: int) -> None:
    own = os.getpgrp()
    for group in {process.group for process in processes}:
        if group > 1 and group != own:
            try:
                os.killpg(group, number)
            except OSError:  # gone by itself, or another user's: the next look decides
                continue


def _follow(fd: int, needle: bytes, tags: range) -> None:
    """Keep book until the harness closes its end, then end what it left; after ``q`` just return.

    The other lines are ``+pid start`` and ``-pid start``; a start of 0 means the group of a running command.
    """
    groups: set[int] = set()
    known: dict[int, int] = {}
    rest = b""
    while piece := os.read(fd, 65536):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line == b"q":
                return
            pid, start = map(int, line[1:].split())
            if line.startswith(b"-"):
                groups.discard(pid)
                known.pop(pid, None)
            elif start:
                known[pid] = start
            else:
                groups.add(pid)

    def find(seen: Mapping[int, int]) -> list[Process]:
        return find_processes(needle, groups, {**known, **seen}, tags=tags)

    end_processes(find, _GUARD_GRACE_S, time.sleep)


if __name__ == "__main__":
    import sys

    os.chdir("/")  # hold no directory of the user's
    _follow(0, sys.argv[1].encode(), range(int(sys.argv[2]), int(sys.argv[3])))
