"""The lines of a run in another process (``dsh run --json``, or what speaks like it), checked as they come.

First ``run.start``, then events, then ``run.end``, each a JSON object on a line of its own. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from dsh_actors.core.bounded_output import visible
from dsh_actors.core.exit_codes import EXIT_CODES, exit_code_of
from dsh_actors.core.outcome import RunEnd
from dsh_actors.core.pricing import Tokens
from dsh_actors.core.text import JsonObject, JsonValue, clean_json, require_lossless, shorten
from dsh_actors.errors import EventRefused

__all__ = ["MAX_LINE_BYTES", "RunLines", "run_end_of"]

MAX_LINE_BYTES = 32 << 20
"""A longer line is no event of any run: the largest hold a prompt or an answer."""

_COUNTS = tuple(Tokens.__dataclass_fields__)


class RunLines:
    """Feed it what comes. ``end`` is the ``run.end``, ``fault`` says what was wrong; nothing counts after."""

    def __init__(self) -> None:
        self.end: JsonObject | None = None
        self.fault: str | None = None
        self._is_started = False
        self._number = 0
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    @property
    def is_over(self) -> bool:
        return self.end is not None or self.fault is not None

    def feed(self, piece: bytes) -> Iterator[JsonObject]:
        """The events that ``piece`` completed: not ``run.start`` and ``run.end``, nor signs of life."""
        *whole, rest = piece.split(b"\n")
        for line in whole:
            line = b"".join((*self._rest, line))
            self._rest, self._rest_bytes = [], 0
            event = None if self.is_over else self._take(line)
            if event is not None:
                yield event
        if rest and not self.is_over:
            self._rest.append(rest)
            self._rest_bytes += len(rest)
            if self._rest_bytes > MAX_LINE_BYTES:
                self._rest, self._rest_bytes = [], 0
                self._number += 1
                self._fail(f"is longer than {MAX_LINE_BYTES >> 20} MiB")

    def close(self) -> None:
        """Nothing more comes: a last line need not be ended."""
        for _event in self.feed(b"\n"):
            break

    def _take(self, line: bytes) -> JsonObject | None:
        self._number += 1
        if not line.strip():
            return None
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            self._fail(f"is no JSON: {shorten(visible(line[:400], 0, 400)[0], 120)}")
            return None
        kind = value.get("type") if isinstance(value, dict) else None
        if not isinstance(kind, str):
            self._fail("is no object with a type")
        elif not self._is_started and kind != "run.start":
            self._fail(f"is {shorten(kind, 40)}, not run.start")
        elif self._is_started and kind == "run.start":
            self._fail("is another run.start")
        elif kind == "run.start":
            self._is_started = True
        elif kind == "run.end":
            try:
                self.end = clean_json(value)
            except EventRefused as error:
                self._fail(f"is {error.message}")
        elif kind != "heartbeat":
            return dict(value)
        return None

    def _fail(self, what: str) -> None:
        self.fault = f"line {self._number} of its output {what}"


def run_end_of(data: JsonObject, session_id: str) -> RunEnd:
    """The outcome that a ``run.end`` tells. Raises `ValueError` for one that tells none.

    Of what a foreign command leaves out nothing is assumed: it counts as nothing used.
    """
    reason = data.get("reason", data.get("status"))
    if not isinstance(reason, str) or reason not in EXIT_CODES:
        raise ValueError("its run.end has no reason that is known")
    answer = data.get("answer")
    if answer is not None and not isinstance(answer, str):
        raise ValueError("its run.end has an answer that is no text")
    for name in ("denied", "limit", "structured"):
        try:
            # They go into the log of whoever asked for it.
            require_lossless(data.get(name), name)
        except EventRefused as error:
            raise ValueError(f"its run.end cannot be kept: {error.message}") from error
    usage = data.get("usage")
    limit, sandbox = data.get("limit"), data.get("sandbox")
    message: JsonValue = data.get("message")
    return RunEnd(
        reason=reason,
        exit_code=exit_code_of(reason, None),
        session_id=session_id,
        message=message if message and isinstance(message, str) else reason,
        answer=answer,
        structured=data.get("structured"),
        partial=data.get("partial") is True,
        usage={part: _tokens(usage, part) for part in ("own", "children")},
        cost=_amount(data.get("cost")),
        denied=tuple(each for each in _listed(data.get("denied")) if isinstance(each, dict)),
        limit=limit if isinstance(limit, dict) else None,
        turns=_count(data.get("turns")),
        steps=_count(data.get("steps")),
        tool_calls=_count(data.get("tool_calls")),
        duration_ms=_count(data.get("duration_ms")),
        tool_errors=_count(data.get("tool_errors")),
        retries=_count(data.get("retries")),
        sandbox=sandbox if isinstance(sandbox, str) else None,
        warnings=tuple(each for each in _listed(data.get("warnings")) if isinstance(each, str)),
    )


def _tokens(usage: JsonValue, part: str) -> JsonObject:
    found = usage.get(part) if isinstance(usage, Mapping) else None
    return {name: _count(found.get(name)) if isinstance(found, Mapping) else 0 for name in _COUNTS}


def _count(value: JsonValue) -> int:
    return value if type(value) is int and value >= 0 else 0


_MOST = 1e300
"""No price; and an integer beyond it would be no float."""


def _amount(value: JsonValue) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _MOST else None


def _listed(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else []
