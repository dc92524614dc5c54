"""How the file tools name, open and replace files: never blocking, never outside the allowed roots.

Paths are bytes inside, so that neither the locale nor odd names matter, and decoded when shown.
Writing walks down from a root by descriptors that follow no link, so nothing can be swapped meanwhile.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from dsh_actors.core.text import clean_text, decode_output
from dsh_actors.errors import ToolDenied, ToolError
from dsh_actors.ports import ToolContext

__all__ = [
    "Target",
    "absolute",
    "check_cancel",
    "decode_name",
    "encode_name",
    "file_error",
    "open_below",
    "open_file",
    "open_target",
    "real_path",
    "shown",
    "suggest",
]

# O_PATH, where there is one, also opens directories that may be entered but not listed.
_DIR_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_PROCESS_SECRETS = re.compile(rb"/proc/(?:kcore|kmsg|[^/]+/(?:task/[^/]+/)?(?:environ|mem|auxv))\Z")
_BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t"})
_SUGGEST_FROM = 2000


def encode_name(text: str) -> bytes:
    """Text as a file name. Surrogate escapes become the bytes they stand for."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return clean_text(text).encode("utf-8")


def decode_name(raw: bytes) -> str:
    """The reverse of `encode_name`, for matching; use `shown` for what a model reads."""
    return raw.decode("utf-8", "surrogateescape")


def check_cancel(context: ToolContext) -> None:
    """Raise `ToolError` with code ABORTED once the call was cancelled."""
    if context.cancel.reason is not None:
        raise ToolError("tool call aborted", code="ABORTED")


def absolute(path: str, context: ToolContext) -> bytes:
    """The absolute path that ``path`` names: relative to the working directory, ``~`` expanded.

    ``.`` is left out; ``a/../b`` stays and means what the system makes of it.
    """
    if not path:
        raise ToolError("the path is empty", code="INVALID_ARGS")
    if "\0" in path:
        raise ToolError("the path contains a NUL character", code="INVALID_ARGS")
    if path == "~" or path.startswith("~/"):
        home = context.env.get("HOME") or os.path.expanduser("~")
        path = home + path[1:]
    elif path.startswith("~"):
        path = os.path.expanduser(path)
    joined = os.path.join(encode_name(context.cwd), encode_name(path))
    return re.sub(rb"(?:/\.)+(?=/|\Z)", b"", joined) or b"/"


def real_path(path: str, context: ToolContext) -> str:
    """Where ``path`` leads, ``~`` and links resolved, whether it exists or not; for policies."""
    return decode_name(os.path.realpath(absolute(path, context)))


def shown(path: bytes, context: ToolContext) -> str:
    """A path as the model reads it: relative to the working directory where it lies below, one line."""
    cwd = encode_name(context.cwd).rstrip(b"/") + b"/"
    if path.startswith(cwd):
        path = path[len(cwd) :] or b"."
    elif path + b"/" == cwd:
        path = b"."
    return decode_output(path).translate(_BREAKS)


def file_error(error: OSError, path: bytes, context: ToolContext) -> ToolError:
    """An operating system's refusal as one clear sentence; suggests names where the path is wrong."""
    name = shown(path, context)
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return ToolError(f"{name} {_absence(path, context)}", code="NOT_FOUND")
        case errno.EACCES | errno.EPERM:
            return ToolError(f"{name}: permission denied", code="PERMISSION")
        case errno.ELOOP:
            return ToolError(f"{name}: symbolic links lead in a circle", code="NOT_FOUND")
        case errno.ENAMETOOLONG:
            return ToolError(f"{name[:200]}: the name is too long", code="INVALID_ARGS")
        case errno.ENXIO | errno.EAGAIN | errno.EWOULDBLOCK:
            return ToolError(f"{name} is not a regular file", code="NOT_A_FILE")
        case _:
            return ToolError(f"{name}: {error.strerror or error}", code="IO")


def _absence(path: bytes, context: ToolContext) -> str:
    """How it is that a path leads to nothing."""
    try:
        place = decode_output(os.readlink(path)).translate(_BREAKS)
    except OSError:  # it is no link
        return f"does not exist{suggest(path, context)}"
    return f"is a symbolic link to {place}, which does not exist"


def suggest(path: bytes, context: ToolContext) -> str:
    """For a missing path: names in its directory that are close, as the end of a sentence."""
    import difflib  # only needed on the way to an error

    directory, name = os.path.split(path.rstrip(b"/"))
    if not os.path.isdir(directory):
        if os.path.lexists(directory):
            return f": {shown(directory, context)} is not a directory"
        return f", and neither does {shown(directory, context)}"
    try:
        with os.scandir(directory) as entries:
            names = [decode_name(entry.name) for entry, _ in zip(entries, range(_SUGGEST_FROM), strict=False)]
    except OSError:
        return ""
    close = sorted(difflib.get_close_matches(decode_name(name), sorted(names), 3, 0.6))
    if not close:
        return ""
    places = [shown(os.path.join(directory, encode_name(each)), context) for each in close]
    return f"; close to it: {', '.join(places)}"


@contextmanager
def open_file(path: bytes, context: ToolContext) -> Iterator[int]:
    """A descriptor for reading a regular file. Raises `ToolError` at once for anything else."""
    try:
        _require_regular(os.stat(path), path, context)
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise file_error(error, path, context) from error
    try:
        status = os.fstat(fd)
        _require_regular(status, path, context)
        # Files that the kernel makes up occupy no blocks; the others need no second look.
        if status.st_blocks == 0 and _PROCESS_SECRETS.match(_location(fd, path)):
            raise ToolDenied(f"{shown(path, context)} may hold secrets of a process", rule="process-secrets")
        _refuse_secret(status, path, context)
        yield fd
    except OSError as error:
        raise file_error(error, path, context) from error
    finally:
        os.close(fd)


def _refuse_secret(status: os.stat_result, path: bytes, context: ToolContext) -> None:
    """Raise `ToolDenied` for a file that is one of the context's secret files, by whatever name."""
    for secret in context.secret_files:
        try:
            same = os.path.samestat(status, os.stat(encode_name(secret)))
        except OSError:  # there is no such file
            continue
        if same:
            raise ToolDenied(f"{shown(path, context)} holds the harness's keys", rule="harness-secrets")


def _require_regular(status: os.stat_result, path: bytes, context: ToolContext) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    name = shown(path, context)
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"{name} is a directory; list it with glob", code="NOT_A_FILE")
    kinds = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"))
    kind = next((word for test, word in kinds if test(status.st_mode)), "a device")
    raise ToolError(f"{name} is not a regular file but {kind}", code="NOT_A_FILE")


def _location(fd: int, path: bytes) -> bytes:
    """The real path of an open file."""
    try:
        return os.readlink(b"/proc/self/fd/%d" % fd)
    except OSError:  # no /proc on this system
        return os.path.realpath(path)


# --- writing ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Target:
    """A place to write, held by its directory's descriptor. ``status`` is None if there is no file yet."""

    directory: int
    name: bytes
    path: bytes
    label: str
    status: os.stat_result | None

    def read(self, max_bytes: int) -> bytes:
        """The present content. Raises `ToolError` if it is longer than ``max_bytes``."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self.name, flags, dir_fd=self.directory)
        with os.fdopen(fd, "rb") as file:
            self.status = os.fstat(fd)
            if not stat.S_ISREG(self.status.st_mode):
                raise ToolError(f"{self.label} is not a regular file", code="NOT_A_FILE")
            data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise ToolError(f"{self.label} is too large to edit (over {max_bytes:,} bytes)", code="TOO_LARGE")
        return data

    def beginning(self, size: int) -> bytes:
        """The first ``size`` bytes of the present content; none where it cannot be read."""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(self.name, flags, dir_fd=self.directory)
        except (FileNotFoundError, PermissionError):
            return b""
        try:
            return os.read(fd, size)
        finally:
            os.close(fd)

    def link_note(self) -> str:
        """What a result has to say after `replace` about the file's other names."""
        others = 0 if self.status is None else self.status.st_nlink - 1
        if others < 1:
            return ""
        names = "name" if others == 1 else "names"
        return f"\n[it had {others} other {names} (hard links), which keep the old content]"

    def replace(self, data: bytes) -> None:
        """Put a new file with ``data`` in place, whole or not at all. Mode and owner are kept.

        Raises `ToolError` if the file changed since it was looked at.
        """
        temporary = b".dsh-" + os.urandom(8).hex().encode() + b".tmp"
        mode = 0o666 if self.status is None else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(temporary, flags, mode, dir_fd=self.directory)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.flush()
                if self.status is not None:
                    _copy_attributes(fd, self.status)
            self._require_unchanged()
            os.rename(temporary, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        except BaseException:  # whatever it was, no temporary file may stay behind
            os.unlink(temporary, dir_fd=self.directory)
            raise

    def _require_unchanged(self) -> None:
        if _identity(self.status) != _identity(_status_at(self.directory, self.name)):
            raise ToolError(f"{self.label} was changed by somebody else; read it again", code="CHANGED")


def _copy_attributes(fd: int, status: os.stat_result) -> None:
    mine = os.fstat(fd)
    if (mine.st_uid, mine.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(fd, status.st_uid, status.st_gid)
        except PermissionError:
            # Only root may give files away; then the file is ours, as with most editors.
            os.fchmod(fd, status.st_mode & 0o777)
            return
    os.fchmod(fd, stat.S_IMODE(status.st_mode))


def _identity(status: os.stat_result | None) -> tuple[int, ...] | None:
    if status is None:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)


def _status_at(directory: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


@contextmanager
def open_target(path: str, context: ToolContext, *, create_parents: bool) -> Iterator[Target]:
    """The place where ``path`` really leads, links resolved, if that is below one of the roots.

    Raises `ToolDenied` (rule ``workspace``; ``harness-home`` or ``harness-secrets`` for what no option
    opens) if it is not, `ToolError` if it is no regular file.
    """
    wanted = absolute(path, context)
    if path.endswith(("/", "/.")):
        raise ToolError(f"{shown(wanted, context)} names a directory, not a file", code="NOT_A_FILE")
    real = os.path.realpath(wanted)
    root = _root_of(real, context)
    label = shown(wanted, context)
    if root is None:
        where = "" if real == wanted else f" (it leads to {shown(real, context)})"
        raise ToolDenied(
            f"{label} is outside the directories that may be written{where}",
            rule="workspace",
            hint=f"--add-dir {shown(os.path.dirname(real), context)} or --approve all",
        )
    if any(
        real == place or real.startswith(place.rstrip(b"/") + b"/")
        for place in map(encode_name, context.protected)
    ):
        raise ToolDenied(f"{label} belongs to the harness, and no tool may write there", rule="harness-home")
    *parents, name = real[len(root) :].strip(b"/").split(b"/")
    try:
        directory = open_below(root, parents, create_parents)
        try:
            target = Target(directory, name, real, label, _status_at(directory, name))
            _require_writable(target, context)
            if target.status is not None:
                _refuse_secret(target.status, real, context)
            yield target
        finally:
            os.close(directory)
    except OSError as error:
        raise file_error(error, wanted, context) from error


def _root_of(real: bytes, context: ToolContext) -> bytes | None:
    """The root that ``real`` lies strictly below, if any. Raises `ToolError` for a root itself."""
    for root in map(encode_name, context.roots):
        base = root.rstrip(b"/")
        if real.startswith(base + b"/") and len(real) > len(base) + 1:
            return root
        if real == root:
            raise ToolError(f"{shown(real, context)} is a directory, not a file", code="NOT_A_FILE")
    return None


def open_below(root: bytes, parents: list[bytes], create: bool) -> int:
    """A descriptor of the directory below ``root``, no link followed, missing ones made."""
    current = os.open(root, _DIR_FLAGS)
    for name in parents:
        try:
            try:
                below = os.open(name, _DIR_FLAGS, dir_fd=current)
            except FileNotFoundError:
                if not create:
                    raise
                with suppress(FileExistsError):  # a parallel call made it; it is opened like ours
                    os.mkdir(name, 0o777, dir_fd=current)
                below = os.open(name, _DIR_FLAGS, dir_fd=current)
        finally:
            os.close(current)
        current = below
    return current


def _require_writable(target: Target, context: ToolContext) -> None:
    status = target.status
    if status is None:
        return
    _require_regular(status, target.path, context)
    if not os.access(target.name, os.W_OK, dir_fd=target.directory):
        mode = stat.S_IMODE(status.st_mode)
        raise ToolError(f"{target.label} is read-only (mode {mode:04o}); chmod it first", code="PERMISSION")
