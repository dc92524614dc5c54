"""Makes or updates the checkout's virtual environment: prepare.py [EXTRA…].

Runs before anything is installed, so it uses the standard library only. Quick when nothing is to do.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
READY = VENV / "dsh-ready"
"""A copy of the pyproject.toml that the environment was made for; bin/dsh compares the two."""
INSTALLED = VENV / "dsh-installed"
"""The requirements that were installed, one a line."""


def main(extras: list[str]) -> int:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    project = tomllib.loads(text)["project"]
    wanted = list(project["dependencies"])
    for extra in extras:
        wanted += project["optional-dependencies"][extra]
    if is_ready(text, wanted):
        return 0
    try:
        with locked():
            if not is_ready(text, wanted):
                build(wanted)
                READY.write_text(text, "utf-8")
    except subprocess.CalledProcessError as error:
        print(f"dsh: setup: {describe(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"dsh: setup: cannot make {VENV}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


def is_ready(text: str, wanted: list[str]) -> bool:
    try:
        return READY.read_text("utf-8") == text and os.access(PYTHON, os.X_OK) and set(wanted) <= installed()
    except OSError:
        return False


def installed() -> set[str]:
    try:
        return set(INSTALLED.read_text("utf-8").splitlines())
    except OSError:
        return set()


@contextmanager
def locked() -> Iterator[None]:
    """Two programs that start at once in a fresh checkout: one builds, the other waits."""
    # A file that is always there: making the environment replaces whatever is inside it.
    with open(ROOT / "pyproject.toml", "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(wanted: list[str]) -> None:
    # Standard output belongs to the program that is about to run.
    print(f"dsh: preparing {VENV} (first use, or its requirements changed)", file=sys.stderr, flush=True)
    if not works():
        run([sys.executable, "-I", "-m", "venv", "--clear", str(VENV)])
    missing = sorted(set(wanted) - installed())
    if missing:
        run([str(PYTHON), "-I", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *missing])
        INSTALLED.write_text("\n".join(sorted(installed() | set(missing))) + "\n", "utf-8")
    site = run([str(PYTHON), "-I", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip()
    # Relative, so that a checkout that is moved as a whole stays importable.
    Path(site, "dsh_checkout.pth").write_text(os.path.relpath(ROOT, site) + "\n", "utf-8")


def works() -> bool:
    try:
        run([str(PYTHON), "-I", "-c", "import sys, pip; sys.exit(sys.version_info < (3, 11))"])
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def run(command: list[str]) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    return done.stdout


def describe(error: subprocess.CalledProcessError) -> str:
    lines = [line for line in (error.stderr or "").splitlines() if line.strip()]
    tail = lines[-1].strip() if lines else f"exit status {error.returncode}"
    return f"`{' '.join(error.cmd[:4])} …` failed: {tail}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
