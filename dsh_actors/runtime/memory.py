"""Keeps a process small that lives long and hosts much: one native heap, and garbage that is found early."""

from __future__ import annotations

import gc

__all__ = ["settle_memory"]

_YOUNG = 5_000
"""New objects between two looks for garbage among them. A step makes some hundreds, hardly any of which is
garbage that only a look finds; a thousand agents at work do some tenth more with it."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""From glibc's <malloc.h>."""

_LARGE = 128 * 1024
"""Bytes from which a piece of memory is large."""


def settle_memory() -> None:
    """Call it once, early, in a process that lives long.

    What is there now, modules mostly, is taken to stay, and is no longer looked through for garbage: full
    collections have less to look through. All native threads take memory from one heap: each would have
    one of its own that is never given back, and as the interpreter lets one of them run at a time, they
    hardly ever wait for each other there. Large pieces stay out of the heap, and what is free at its upper
    end is given back: by itself glibc stops to do either after the first large piece has come and gone, and
    the heap fills with holes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, 10, 10)
    import ctypes  # only where it is wanted

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library than glibc
    for what, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _LARGE), (_M_TRIM_THRESHOLD, _LARGE)):
        mallopt(what, value)
