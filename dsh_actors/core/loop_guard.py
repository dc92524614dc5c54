"""Finds an agent that repeats itself: one call with the same result, alone or alternating with another."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress

from dsh_actors.core.text import JsonObject

__all__ = ["NOTE_AT", "STOP_AT", "LoopGuard"]

NOTE_AT = 3
"""At this many repetitions the model is told."""
STOP_AT = 6
"""At this many the turn ends."""
LONG_CALL_MS = 5_000
"""A call that ran longer than this is polling, not looping."""


class LoopGuard:
    """A fold over calls and results; `count` is how often the latest call has repeated."""

    def __init__(self) -> None:
        # Lists: they are short, and every agent has them.
        self._recent: list[bytes] = []
        self._in_step: list[bytes] = []
        self.count = 0

    def begin_step(self) -> None:
        """What one reply asks for several times counts once: the model has not seen a result between."""
        self._in_step.clear()

    def reset(self) -> None:
        """A person spoke: what came before is no loop."""
        self._recent.clear()
        self.count = 0

    def observe(self, name: str, arguments: str, result: JsonObject, duration_ms: int) -> None:
        if duration_ms > LONG_CALL_MS or name.endswith("_wait"):
            self.count = 0
            return
        fingerprint = _fingerprint(name, arguments, result)
        if fingerprint in self._in_step:
            return
        self._in_step.append(fingerprint)
        self._recent.append(fingerprint)
        del self._recent[: -2 * STOP_AT]
        self.count = max(self._run(1), (self._run(2) + 1) // 2)

    def snapshot(self) -> JsonObject:
        """What it remembers, as JSON."""
        in_step = sorted(fingerprint.hex() for fingerprint in self._in_step)
        recent = [fingerprint.hex() for fingerprint in self._recent]
        return {"recent": recent, "inStep": in_step, "count": self.count}

    @staticmethod
    def restore(snapshot: JsonObject) -> LoopGuard:
        """The guard of a `snapshot`. Raises `KeyError`, `TypeError` or `ValueError` for another shape."""
        guard = LoopGuard()
        guard._recent.extend(map(bytes.fromhex, snapshot["recent"]))
        guard._in_step.extend(map(bytes.fromhex, snapshot["inStep"]))
        guard.count = snapshot["count"]
        return guard

    def _run(self, period: int) -> int:
        """Length of the longest tail in which each entry equals the one ``period`` before it."""
        recent = self._recent
        length = min(period, len(recent))
        while length < len(recent) and recent[-length - 1] == recent[-length - 1 + period]:
            length += 1
        return length


def _fingerprint(name: str, arguments: str, result: JsonObject) -> bytes:
    with suppress(ValueError, RecursionError):  # unparsable arguments compare as they are
        arguments = json.dumps(json.loads(arguments), sort_keys=True)
    text = json.dumps([name, arguments, result["content"], result.get("isError", False)])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
