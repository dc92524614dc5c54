"""Where sessions are on disk: names of directories, and the steps that make a directory durable.

A session's place is ``ROOT/PROJECT/ID``. The project is a readable, lossy name of the working
directory; the escaped id decides, so a lookup checks one path a project and lists no sessions.
"""

from __future__ import annotations

import errno
import hashlib
import os
import posix
import re
import stat

from dsh_actors.errors import (
    SessionCorrupt,
    SessionNotFound,
    StorageError,
    StorageFull,
    UsageError,
    is_disk_full,
)

__all__ = [
    "CHECKPOINTS_NAME",
    "LOCK_NAME",
    "LOG_NAME",
    "SESSION_PARTS",
    "SPILL_NAME",
    "close_descriptor",
    "find_all",
    "find_session",
    "fsync_directory",
    "id_of_name",
    "is_denied",
    "make_private_directories",
    "name_of_id",
    "open_to_read",
    "project_name",
    "storage_error",
]

LOCK_NAME = "lock"
LOG_NAME = "log"
CHECKPOINTS_NAME = "checkpoints"
SPILL_NAME = "spill"
SESSION_PARTS = frozenset({LOCK_NAME, LOG_NAME, CHECKPOINTS_NAME, SPILL_NAME})
"""All that stands in the directory of a session."""

close_descriptor = posix.close
"""Closes at once. The patched ``os.close`` asks the event loop first, which never knew these files."""

MAX_PROJECT_SLUG = 100
MAX_ID_NAME = 200
_HASHED_ID_PREFIX = 120

_SEPARATORS = re.compile(r"[/\\:]+")
_ESCAPE = re.compile(r"~([0-9A-F]{4})")


def project_name(cwd: str | None) -> str:
    """A directory name for the sessions of ``cwd``, at most `MAX_PROJECT_SLUG` + 9 characters.

    A name that had to be changed by more than its separators ends in a digest of the path.
    """
    if cwd is None:
        return "_no-cwd"
    plain = _SEPARATORS.sub("-", cwd).strip("-")
    slug = re.sub(r"[^A-Za-z0-9._-]", "_", plain)[-MAX_PROJECT_SLUG:].lstrip(".-") or "root"
    if slug == plain or not plain:
        return slug
    return f"{slug}~{hashlib.sha256(cwd.encode(errors='surrogatepass')).hexdigest()[:8]}"


def name_of_id(session_id: str) -> str:
    """The id as one path segment that never starts with a dot. Raises `UsageError` for an empty id.

    ``A-Za-z0-9._-`` stand for themselves, every other UTF-16 unit and a leading dot is ``~XXXX``.
    A very long id keeps its beginning and gets a digest after ``~~``, which no other id contains.
    """
    if not session_id:
        raise UsageError("a session id cannot be empty")
    name = _escape(session_id)
    if len(name) <= MAX_ID_NAME:
        return name
    digest = hashlib.sha256(session_id.encode(errors="surrogatepass")).hexdigest()
    return f"{name[:_HASHED_ID_PREFIX]}~~{digest}"


def id_of_name(name: str) -> str:
    """The id behind a directory name; the name itself where it holds only a digest of the id."""
    if "~~" in name:
        return name
    units = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), name)
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def find_all(root: str, session_id: str) -> list[str]:
    """Every directory that the id has; more than one only where somebody copied a session."""
    name = name_of_id(session_id)
    try:
        with os.scandir(root) as projects:
            paths = [os.path.join(root, project.name, name) for project in projects]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise storage_error(error, "read", root) from error
    return sorted(path for path in paths if os.path.isdir(path))


def find_session(root: str, session_id: str) -> str:
    """The directory of a session. Raises `SessionNotFound`, or `SessionCorrupt` if it has two."""
    found = find_all(root, session_id) if session_id else []
    if not found:
        _require_readable(root)
        raise SessionNotFound(
            f"no session {session_id!r} in {root}", hint="dsh session ls shows what there is"
        )
    if len(found) > 1:
        raise SessionCorrupt(
            f"session {session_id!r} exists more than once: {', '.join(found)}", hint="move all but one away"
        )
    return found[0]


def _require_readable(root: str) -> None:
    """Not found is an answer only where everything could be looked at. Raises `StorageError`."""
    try:
        with os.scandir(root) as projects:
            for project in projects:
                if project.is_dir(follow_symlinks=False):
                    _require_searchable(project.path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise storage_error(error, "read", str(error.filename or root)) from error


def _require_searchable(directory: str) -> None:
    try:
        os.stat(os.path.join(directory, "."))
    except FileNotFoundError:
        return
    except OSError as error:
        raise storage_error(error, "read", directory) from error


def make_private_directories(path: str) -> None:
    """Create ``path`` and its missing parents, for this user only, and make each entry durable."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            continue  # another process was quicker
        fsync_directory(os.path.dirname(directory))


def fsync_directory(path: str) -> None:
    """Make the entries of a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        close_descriptor(descriptor)


def open_to_read(path: str, *, follow: bool = False) -> int:
    """A descriptor of a regular file. Raises OSError for anything else: a pipe would be waited for.

    ``follow``: through a symbolic link too.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    close_descriptor(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is no regular file", path)


def storage_error(error: OSError, action: str, path: str) -> StorageError:
    """``error`` as one clear line: `StorageFull` when there is no room, `StorageError` otherwise."""
    reason = error.strerror or str(error)
    if is_disk_full(error):
        return StorageFull(f"cannot {action} {path}: {reason}", hint="make room, then resume the session")
    hint = "check the owner and the permissions there" if is_denied(error) else None
    return StorageError(f"cannot {action} {path}: {reason}", hint=hint)


def is_denied(error: OSError) -> bool:
    """Whether something is there, and not for this user."""
    return error.errno in (errno.EACCES, errno.EPERM)


def _escape(session_id: str) -> str:
    raw = session_id.encode("utf-16-be", "surrogatepass")
    units = [raw[i] << 8 | raw[i + 1] for i in range(0, len(raw), 2)]
    return "".join(_escape_unit(unit, position == 0) for position, unit in enumerate(units))


def _escape_unit(unit: int, is_first: bool) -> str:
    character = chr(unit)
    literal = character.isascii() and (character.isalnum() or character in "._-")
    return f"~{unit:04X}" if not literal or (is_first and character == ".") else character
