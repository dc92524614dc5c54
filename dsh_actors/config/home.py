"""Where dsh keeps its files, and which project's settings apply. Looks only; `prepare_home` creates."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dsh_actors.errors import ConfigError

__all__ = ["Home", "find_home", "find_project_file", "prepare_home"]


@dataclass(frozen=True, slots=True)
class Home:
    """``path`` None: nothing can be kept, because of ``problem``. ``origin`` says what decided."""

    path: str | None
    origin: str
    problem: str | None = None


def find_home(env: Mapping[str, str]) -> Home:
    """``$DSH_HOME``; else ``~/.dsh``; else, where that cannot be used, ``$XDG_DATA_HOME/dsh``."""
    chosen = env.get("DSH_HOME")
    if chosen:
        if not os.path.isabs(chosen):
            return Home(None, "DSH_HOME", f"DSH_HOME must be an absolute path, not {chosen!r}")
        problem = _problem(chosen)
        return Home(None if problem else chosen, "DSH_HOME", problem)
    problems = []
    for origin, name in (("HOME", ".dsh"), ("XDG_DATA_HOME", "dsh")):
        base = env.get(origin)
        if not base:
            problems.append(f"{origin} is not set")
        elif not os.path.isabs(base):
            problems.append(f"{origin} is not an absolute path")
        elif origin == "HOME" and not os.path.isdir(base):
            # Such accounts own nothing: what is made there would be found by nobody.
            problems.append(f"{base} is not a directory")
        else:
            path = os.path.join(base, name)
            problem = _problem(path)
            if problem is None:
                return Home(path, origin)
            problems.append(problem)
    return Home(None, "none", "; ".join(problems))


def _problem(path: str) -> str | None:
    """Why ``path`` cannot be the home: it is a usable directory, or one that can be made."""
    try:
        if os.path.isdir(path):
            usable = os.access(path, os.R_OK | os.W_OK | os.X_OK)
            return None if usable else f"{path} is not writable"
        if os.path.lexists(path):
            return f"{path} is not a directory"
        parent = os.path.dirname(path)
        while not os.path.lexists(parent) and parent != "/":
            parent = os.path.dirname(parent)
    except (OSError, ValueError) as error:
        return f"{path!r} cannot be used: {error}"
    usable = os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK)
    return None if usable else f"{path} cannot be created"


def prepare_home(path: str) -> None:
    """Create the home, for its owner only. Raises `ConfigError`."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create {path}: {error.strerror}",
            hint="set DSH_HOME to a writable directory, or use --ephemeral",
        ) from error


def find_project_file(cwd: str, home: str | None) -> str | None:
    """The nearest ``.dsh/config.toml`` from ``cwd`` up to the root of its repository.

    The home's own file is not a project's, although ``~/.dsh`` looks like one from below ``~``.
    """
    own = os.path.realpath(home) if home else None
    folder = os.path.realpath(cwd)
    while True:
        candidate = os.path.join(folder, ".dsh")
        path = os.path.join(candidate, "config.toml")
        if os.path.realpath(candidate) != own and os.path.lexists(path):
            return path
        parent = os.path.dirname(folder)
        if parent == folder or os.path.lexists(os.path.join(folder, ".git")):
            return None
        folder = parent
