"""The peak of this process's memory, from the kernel's own account of it."""

from __future__ import annotations

__all__ = ["peak_kib", "reset_peak"]


def reset_peak() -> int:
    """Let the peak start again at what is resident now; returns that, in KiB.

    Source: proc(5), ``clear_refs``.
    """
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    return peak_kib()


def peak_kib() -> int:
    """The most memory that was resident at once, in KiB.

    The peak that ``getrusage`` gives is no measure: a child inherits it from its parent over the start,
    and it cannot be reset.
    """
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
