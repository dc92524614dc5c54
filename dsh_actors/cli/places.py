"""Where a command works."""

from __future__ import annotations

import os

from dsh_actors.errors import UsageError

__all__ = ["working_directory"]


def working_directory(chosen: str | None) -> str:
    """The real, absolute directory to work in. Raises `UsageError` where there is none."""
    try:
        folder = os.path.realpath(os.getcwd() if chosen is None else os.path.expanduser(chosen))
    except (OSError, ValueError) as error:
        raise UsageError("the current directory does not exist any more", hint="use -C DIR") from error
    if not os.path.isdir(folder):
        raise UsageError(f"{chosen or folder} is not a directory")
    return folder
