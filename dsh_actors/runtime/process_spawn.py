"""Starts commands and the guard with `posix_spawn`, which unlike a fork does not copy the harness.

Blocking only for the few hundred microseconds until the program runs. Waits for nothing.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence

from gevent import get_hub
from gevent.monkey import get_original

from dsh_actors.errors import ToolError
from dsh_actors.runtime import process_guard

__all__ = [
    "StandardEnds",
    "close_now",
    "command_line",
    "prepare_world",
    "spawn_command",
    "spawn_guard",
    "start_error",
    "tags_of",
]

# The patched one watches the child too, in a table that every further call walks through.
_posix_spawn: Callable[..., int] = get_original("os", "posix_spawn")
close_now: Callable[[int], None] = get_original("os", "close")
"""Close a descriptor that never had a watcher; the patched `os.close` waits for the hub's next turn."""
_CHDIR = b'cd -- "$1" && shift && exec "$@"'
# Python ignores PIPE and XFSZ, and nohup HUP: a command must start with none of that.
_DEFAULT_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}

_TAG_BITS = 24
_TAG_BASE = 1 << 60
"""In microseconds, so the least of all tags is a limit of more than 30,000 years."""


def tags_of(marker: str) -> range:
    """The tags (`process_guard.read_process`) of a harness's commands, one after the other."""
    first = _TAG_BASE + (zlib.crc32(marker.encode()) << _TAG_BITS)
    return range(first, first + (1 << _TAG_BITS))


def prepare_world() -> None:
    """Once a harness: what this process inherited must neither reach commands nor hide their end."""
    get_hub().loop.install_sigchld()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for name in os.listdir("/proc/self/fd"):
        try:
            if int(name) > 2:
                os.set_inheritable(int(name), False)
        except OSError:  # the descriptor that listed the directory
            continue


def command_line(argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> tuple[bytes, list[bytes]]:
    """The program to start and its arguments, so that it works in ``cwd`` though we cannot change to it.

    The shell that changes to it is left out where the harness is there already. Raises `ToolError`.
    """
    if not os.path.isdir(cwd) or not os.access(cwd, os.X_OK):
        raise ToolError(
            f"cannot run a command in {cwd}: no such directory, or no access",
            code="START_FAILED",
            hint="create the directory again",
        )
    try:
        arguments = [part.encode("utf-8", "surrogateescape") for part in argv]
        path = _find_program(arguments[0], os.fsencode(cwd), os.fsencode(env.get("PATH", os.defpath)))
    except UnicodeEncodeError as error:
        raise ToolError("cannot run the command: it is not valid text", code="START_FAILED") from error
    if path is None:
        raise ToolError(
            f"cannot run {argv[0]}: not found", code="START_FAILED", hint="install it or set PATH"
        )
    if os.path.samefile(cwd, "."):
        return path, arguments
    return b"/bin/sh", [b"sh", b"-c", _CHDIR, b"sh", os.fsencode(cwd), *arguments]


def _find_program(name: bytes, cwd: bytes, search: bytes) -> bytes | None:
    folders = [b""] if b"/" in name else search.split(b":")
    for folder in folders:
        path = os.path.join(cwd, folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


class StandardEnds:
    """What a command gets as its standard input, output and error, and our ends of the pipes.

    ``stdin`` is its whole input, None for none. Raises `OSError`, with nothing left open.
    """

    def __init__(self, stdin: bytes | None, *, separate: bool) -> None:
        self._opened: list[int] = []
        try:
            self.stdin = None if stdin is None else self._filled(stdin)
            pipes = [self._pipe() for _ in range(2 if separate else 1)]
        except OSError:
            self.close()
            raise
        self._readers = tuple(reader for reader, _ in pipes)
        self.stdout, self.stderr = pipes[0][1], pipes[-1][1]

    def take(self) -> tuple[int, ...]:
        """Our ends, now the caller's to close: of the output, and of the errors where they are separate."""
        self._opened = [fd for fd in self._opened if fd not in self._readers]
        return self._readers

    def close(self) -> None:
        for fd in self._opened:
            close_now(fd)
        self._opened = []

    def _pipe(self) -> tuple[int, int]:
        reader, writer = os.pipe()
        self._opened += (reader, writer)
        os.set_blocking(reader, False)
        return reader, writer

    def _filled(self, data: bytes) -> int:
        """A file in memory: nobody has to feed it while the command reads."""
        fd = os.memfd_create("stdin")
        self._opened.append(fd)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        return fd


def spawn_command(
    path: bytes, arguments: list[bytes], env: Mapping[str, str], ends: StandardEnds, tag: int
) -> int:
    """Start a command that carries ``tag``, where the hard limit of this process permits one."""
    before = resource.getrlimit(resource.RLIMIT_RTTIME)
    if before[1] != resource.RLIM_INFINITY:
        return _spawn(path, arguments, env, ends)
    # A limit cannot be given to `posix_spawn`; the child takes over ours.
    resource.setrlimit(resource.RLIMIT_RTTIME, (tag, before[1]))
    try:
        return _spawn(path, arguments, env, ends)
    finally:
        resource.setrlimit(resource.RLIMIT_RTTIME, before)


def _spawn(path: bytes, arguments: list[bytes], env: Mapping[str, str], ends: StandardEnds) -> int:
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    return _posix_spawn(
        path,
        arguments,
        env,
        file_actions=(
            (os.POSIX_SPAWN_DUP2, ends.stdout, 1),
            (os.POSIX_SPAWN_DUP2, ends.stderr, 2),
            nothing if ends.stdin is None else (os.POSIX_SPAWN_DUP2, ends.stdin, 0),
        ),
        setsid=True,
        setsigmask=(),
        setsigdef=_DEFAULT_SIGNALS,
    )


def spawn_guard(needle: str, tags: range, pipe: int) -> int:
    return _posix_spawn(
        sys.executable,
        [
            sys.executable,
            "-I",
            "-S",
            "-E",
            process_guard.__file__,
            needle,
            *map(str, (tags.start, tags.stop)),
        ],
        {},
        file_actions=(
            (os.POSIX_SPAWN_DUP2, pipe, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ),
        setsid=True,
        # Blocked, so that nothing but the end of its pipe, or KILL, moves it.
        setsigmask=signal.valid_signals(),
        setsigdef=_DEFAULT_SIGNALS,
    )


def start_error(name: str, error: Exception) -> ToolError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    hint = None
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        hint = "write the text to a file and run that"
    return ToolError(f"cannot run {name}: {reason}", code="START_FAILED", hint=hint)
