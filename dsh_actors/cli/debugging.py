"""Looking into a running program: the actors on SIGUSR1, and with ``DSH_DEBUG=1`` contained errors and
what blocks the hub. Any command that runs agents installs it.
"""

from __future__ import annotations

import os

__all__ = ["install_debugging"]


def install_debugging() -> None:
    """What it shows goes to standard error."""
    from dsh_actors.runtime.debug import install_blocking_detection, install_sigusr1, show_errors

    install_sigusr1()
    if os.environ.get("DSH_DEBUG") != "1":
        return
    import logging  # only a debugged run pays for it

    show_errors(logging.StreamHandler())
    install_blocking_detection()
