"""Keeps the process small where native threads come and go: one heap of the C library for all of them."""

from __future__ import annotations

__all__ = ["share_heap"]

_M_ARENA_MAX = -8
"""From glibc's <malloc.h>."""


def share_heap() -> None:
    """Let all native threads take memory from one heap, for a process that lives long. Call it early.

    Each thread would have a heap of its own that grows and is never given back. The interpreter lets one
    thread run at a time, so that they hardly ever wait for each other there. Nothing happens with another
    C library.
    """
    import ctypes  # only where it is wanted

    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    except (OSError, AttributeError):
        return
