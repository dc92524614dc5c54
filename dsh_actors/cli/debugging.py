"""The debug switch ``DSH_DEBUG=1``: contained errors, what blocks the hub, and the actors on SIGUSR1."""

from __future__ import annotations

import os

__all__ = ["install_debugging"]


def install_debugging() -> None:
    """Does nothing without the switch. What it shows goes to standard error."""
    if os.environ.get("DSH_DEBUG") != "1":
        return
    import logging  # only a debugged run pays for it

    from dsh_actors.runtime.debug import install_blocking_detection, install_sigusr1, show_errors

    show_errors(logging.StreamHandler())
    install_blocking_detection()
    install_sigusr1()
