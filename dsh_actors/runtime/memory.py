"""Keeps a process small that lives long and hosts much: one native heap, and garbage that is found early."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

__all__ = ["give_back_memory", "settle_memory"]

_YOUNG = 5_000
"""New objects between two looks for garbage among them. A step makes some hundreds, hardly any of which is
garbage that only a look finds; a thousand agents at work do some tenth more with it."""

_M_ARENA_MAX = -8
"""From glibc's <malloc.h>."""


def settle_memory() -> None:
    """Call it once, early, in a process that lives long.

    What is there now, modules mostly, is taken to stay, and is no longer looked through for garbage: full
    collections have less to look through. All native threads take memory from one heap: each would have
    one of its own that is never given back, and as the interpreter lets one of them run at a time, they
    hardly ever wait for each other there.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)
    _in_libc("mallopt", lambda mallopt: mallopt(_M_ARENA_MAX, 1))


def give_back_memory() -> None:
    """Return to the system what is free in the midst of the native heap: up to some milliseconds of work.

    For a process in which much has just ended. The heap itself gives back its upper end only.
    """
    _in_libc("malloc_trim", lambda malloc_trim: malloc_trim(0))


def _in_libc(name: str, use: Callable[[Any], object]) -> None:
    """Nothing happens with another C library than glibc, which has no function of this name."""
    import ctypes  # only where it is wanted

    try:
        function = getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):
        return
    use(function)
