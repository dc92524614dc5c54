"""The program's entry: patch, import, run, exit. The only place that patches."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    stdin_missing = sys.stdin is None
    # A descriptor that the caller closed would be handed out to the next file or pipe that is opened.
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)

    from gevent import monkey

    monkey.patch_all()

    from dsh_actors.cli.main import main as run

    code = run(sys.argv[1:], stdin_missing=stdin_missing)
    # Everything is flushed by now. Leaving at once: a native thread that hangs in a system call
    # must not hold the process.
    os._exit(code)


if __name__ == "__main__":
    main()
