"""Puts commands into a file system that is read-only but for a few directories (bubblewrap).

Whatever is writable, the harness's own directory is read-only in it, and its keys cannot be read.
It stops accidents, not attackers: network, processes and /tmp are shared with the user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from dsh_actors.errors import UsageError

__all__ = ["probe_sandbox", "wrap_command"]

_TRIAL_S = 5.0


def probe_sandbox() -> str | None:
    """What sandbox works here, for `wrap_command`, or None. Starts a process: keep the answer."""
    program = shutil.which("bwrap")
    if program is None:
        return None
    # Only a real run tells: containers often have the program but forbid what it needs.
    trial = wrap_command("bwrap", ["/bin/sh", "-c", "test -w /tmp && ! test -w /etc"], "/", ["/tmp"])
    try:
        done = subprocess.run(
            [program, *trial[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TRIAL_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return "bwrap" if done.returncode == 0 else None


def wrap_command(
    kind: str,
    argv: Sequence[str],
    cwd: str,
    writable_roots: Sequence[str],
    protected: Sequence[str] = (),
    hidden: Sequence[str] = (),
) -> list[str]:
    """``argv`` for running it in ``cwd`` with write access to ``writable_roots`` and /tmp only.

    Of these, the directories ``protected`` are read-only, and the files ``hidden`` cannot be read (real
    paths; what does not exist is left out). With ``/`` as a root all else is as outside, devices too.
    Raises `UsageError` for an unknown ``kind``.
    """
    if kind != "bwrap":
        raise UsageError(f"unknown sandbox {kind!r}", hint="use bwrap")
    if "/" in writable_roots:
        roots: list[str] = ["/"]
        wrapped = ["bwrap", "--dev-bind", "/", "/"]
    else:
        # Shared, because one command's files in /tmp are the next one's input.
        roots = ["/tmp", "/var/tmp", *writable_roots]
        wrapped = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
        for root in roots:
            wrapped += ["--bind-try", root, root]
    for place in filter(os.path.isdir, protected):
        for folder in _between(roots, place):
            wrapped += ["--bind", folder, folder]
        wrapped += ["--ro-bind", place, place]
    for file in filter(os.path.isfile, hidden):
        wrapped += ["--ro-bind", os.devnull, file]
    # Neither --die-with-parent nor an own pid namespace: the first would turn the TERM of a timeout
    # into a KILL of the command, the second would end background processes with their command. What
    # outlives the harness is the process guard's to end.
    return [*wrapped, "--chdir", cwd, "--", *argv]


def _between(roots: Sequence[str], place: str) -> list[str]:
    """The writable directories above ``place``, from the top.

    Each becomes a mount: what is mounted cannot be renamed to make room for another in its place.
    """
    found: list[str] = []
    folder = os.path.dirname(place)
    while folder != "/":
        if any(f"{folder}/".startswith(root.rstrip("/") + "/") for root in roots):
            found.append(folder)
        folder = os.path.dirname(folder)
    return found[::-1]
