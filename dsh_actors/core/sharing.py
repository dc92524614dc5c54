"""One object for equal values: thousands of agents hold the same prompts, tools and environments.

Bounded: what many have in common is asked for often, and what nobody asks for any more is forgotten.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

__all__ = ["MAX_SHARED", "shared"]

T = TypeVar("T", bound=Hashable)

MAX_SHARED = 512

_known: dict[Hashable, Hashable] = {}


def shared(value: T) -> T:
    """``value``, or an equal object of the same type that was seen before. For values that never change."""
    key = (type(value), value)
    found = _known.pop(key, value)
    _known[key] = found  # the last to be forgotten
    if len(_known) > MAX_SHARED:
        del _known[next(iter(_known))]
    return found  # type: ignore[return-value]  # equal, and of the same type
