"""Removing sessions, and what killed processes left of ones that were being made or removed.

A session that is removed first leaves its place in one step, so nobody ever sees half of it.
Nothing is removed through a symbolic link.
"""

from __future__ import annotations

import errno
import os
import time

from dsh_actors.adapters.storage.layout import (
    LOCK_NAME,
    SESSION_PARTS,
    close_descriptor,
    fsync_directory,
    storage_error,
)
from dsh_actors.adapters.storage.lock import SessionLock, is_held
from dsh_actors.errors import SessionNotFound, StorageError

__all__ = [
    "GONE_PREFIX",
    "NEW_PREFIX",
    "OLD_S",
    "remove_leftovers",
    "remove_session",
    "remove_tree",
    "require_removable",
    "tree_size",
]

NEW_PREFIX = ".new-"
GONE_PREFIX = ".gone-"

_ALL = os.R_OK | os.W_OK | os.X_OK

OLD_S = 3600
"""What is younger may be somebody's who has not come as far as to hold its lock."""


def remove_session(directory: str, owner: str, what: str) -> int:
    """Remove a session's directory; the bytes that its files had.

    Raises `SessionBusy` naming the holder of ``what``, `SessionNotFound`, or `StorageError`; where
    something of somebody else stands in the directory, nothing has changed then.
    """
    require_removable(directory, what)
    lock = SessionLock.acquire(os.path.join(directory, LOCK_NAME), owner, what)
    project = os.path.dirname(directory)
    place = os.path.join(project, f"{GONE_PREFIX}{os.getpid()}-{os.urandom(8).hex()}")
    try:
        require_removable(directory, what)
        os.rename(directory, place)
        fsync_directory(project)
        freed = remove_tree(place)
        if not os.listdir(project):
            _remove_empty(project)
    except OSError as error:
        raise storage_error(error, "remove", directory) from error
    finally:
        lock.release()
    return freed


def require_removable(directory: str, what: str) -> None:
    """Raises `StorageError` where the directory is a link, something of somebody else stands in it, or this
    user may not remove all of it.
    """
    if os.path.islink(directory):
        raise StorageError(f"{directory} is a link", hint="remove the link yourself")
    try:
        foreign = sorted(set(os.listdir(directory)) - SESSION_PARTS)
    except FileNotFoundError as error:
        raise SessionNotFound(f"{what} is gone") from error
    except OSError as error:
        raise storage_error(error, "read", directory) from error
    if foreign:
        path = os.path.join(directory, foreign[0])
        raise StorageError(f"{path} is no part of {what}", hint="move it away first")
    _require_access(os.path.dirname(directory), os.W_OK | os.X_OK)
    _require_access(directory, _ALL)
    lock = os.path.join(directory, LOCK_NAME)
    if os.path.lexists(lock):
        _require_access(lock, os.R_OK | os.W_OK)
    for folder, inside, _files in os.walk(directory):
        for path in (os.path.join(folder, name) for name in inside):
            if not os.path.islink(path):
                _require_access(path, _ALL)


def _require_access(path: str, mode: int) -> None:
    if os.path.lexists(path) and not os.access(path, mode, effective_ids=True):
        code = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
        raise storage_error(OSError(code, os.strerror(code)), "remove", path)


def tree_size(directory: str) -> int:
    """Bytes of all files below a directory, of those that can be looked at. Raises nothing."""
    total = 0
    for folder, _folders, files in os.walk(directory):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def remove_leftovers(project: str) -> None:
    """Finish what was interrupted more than an hour ago and is nobody's now. Raises nothing."""
    try:
        with os.scandir(project) as entries:
            hidden = [e for e in entries if e.name.startswith((NEW_PREFIX, GONE_PREFIX))]
        for entry in hidden:
            age_s = time.time() - entry.stat(follow_symlinks=False).st_mtime
            is_left = entry.is_dir(follow_symlinks=False) and age_s > OLD_S
            if is_left and not is_held(os.path.join(entry.path, LOCK_NAME)):
                remove_tree(entry.path)
    except OSError:
        return  # read-only, or another process is as tidy; they harm nobody


def remove_tree(place: str) -> int:
    """Remove a directory; the bytes that its files had. Raises OSError."""
    parent = os.open(os.path.dirname(place), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _remove_entry(parent, os.path.basename(place), is_directory=True)
    finally:
        close_descriptor(parent)


def _remove_entry(parent: int, name: str, *, is_directory: bool) -> int:
    """Remove ``name`` below an open directory; whatever it links to stays."""
    if not is_directory:
        size = os.stat(name, dir_fd=parent, follow_symlinks=False).st_size
        os.unlink(name, dir_fd=parent)
        return size
    freed = 0
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        with os.scandir(descriptor) as entries:
            inside = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for child, is_folder in inside:
            freed += _remove_entry(descriptor, child, is_directory=is_folder)
    finally:
        close_descriptor(descriptor)
    os.rmdir(name, dir_fd=parent)
    return freed


def _remove_empty(project: str) -> None:
    try:
        os.rmdir(project)
    except OSError:
        return  # another session has just been created there
