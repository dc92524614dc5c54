"""What a wish to end the process (`KeyboardInterrupt`, `SystemExit`) does inside a greenlet."""

from __future__ import annotations

import gevent

__all__ = ["forward_exit"]


def forward_exit(error: BaseException) -> None:
    """Raise ``error`` in the main greenlet, where the program can act on it.

    In any other greenlet it would end that greenlet only. Returns when the main greenlet waits again.
    """
    gevent.get_hub().handle_system_error(type(error), error, error.__traceback__)
