"""CPU time for tests of how work grows: what the garbage of a whole suite costs does not count."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

__all__ = ["cpu_seconds"]


def cpu_seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The least that ``work`` took of this process in a few times: another thread may add to one."""
    taken = []
    gc.disable()
    try:
        for _ in range(repeats):
            start = time.process_time()
            work()
            taken.append(time.process_time() - start)
    finally:
        gc.enable()
    return min(taken)
