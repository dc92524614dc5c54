"""Where dsh keeps its files, and which project's settings apply. Looks only; `prepare_home` creates.

A home that exists counts even where it cannot be written: its configuration must not be lost in silence.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from dsh_actors.core.text import is_well_formed
from dsh_actors.errors import ConfigError

__all__ = ["Home", "find_home", "find_project_file", "prepare_home"]


HOME_HINT = "set DSH_HOME to a writable directory"


@dataclass(frozen=True, slots=True)
class Home:
    """``problem`` is why nothing can be kept; with a ``path`` all the same, what is there may be read.

    ``origin`` says what decided.
    """

    path: str | None
    origin: str
    problem: str | None = None


def find_home(env: Mapping[str, str]) -> Home:
    """``$DSH_HOME``; else ``~/.dsh``; else, where that cannot be used, ``$XDG_DATA_HOME/dsh``.

    Raises `ConfigError` for a name that is not UTF-8: databases below it could not be opened.
    """
    home = _find_home(env)
    if home.path is not None and not is_well_formed(home.path):
        raise ConfigError(f"the name of the home {home.path!a} is not UTF-8", hint="set DSH_HOME")
    return home


def _find_home(env: Mapping[str, str]) -> Home:
    chosen = env.get("DSH_HOME")
    if chosen:
        if not os.path.isabs(chosen):
            return Home(None, "DSH_HOME", f"DSH_HOME must be an absolute path, not {chosen!r}")
        exists, problem = _look(chosen)
        return Home(None if problem and not exists else chosen, "DSH_HOME", problem)
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
            exists, problem = _look(path)
            if exists or problem is None:
                return Home(path, origin, problem)
            problems.append(problem)
    return Home(None, "none", "; ".join(problems))


def _look(path: str) -> tuple[bool, str | None]:
    """Whether there is (or may be) a directory, and why nothing can be kept in it."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False, _creation_problem(path)
    except ValueError as error:
        return False, f"{path!r} cannot be used: {error}"
    except OSError as error:
        # Something may be there; whoever reads it is told why that is not possible.
        return True, f"{path} cannot be used: {error.strerror}"
    if not stat.S_ISDIR(mode):
        return False, f"{path} is not a directory"
    if not os.access(path, os.R_OK | os.X_OK):
        return True, f"{path} is not readable"
    return True, None if os.access(path, os.W_OK) else f"{path} is not writable"


def _creation_problem(path: str) -> str | None:
    if os.path.lexists(path):
        return f"{path} is not a directory"
    parent = os.path.dirname(path)
    while not os.path.lexists(parent) and parent != "/":
        parent = os.path.dirname(parent)
    usable = os.path.isdir(parent) and os.access(parent, os.W_OK | os.X_OK)
    return None if usable else f"{path} cannot be created"


def prepare_home(path: str) -> None:
    """Create the home, for its owner only. Raises `ConfigError`."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot create {path}: {error.strerror}",
            hint=HOME_HINT,
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(f"no place for sessions: {path} is not writable", hint=HOME_HINT)


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
