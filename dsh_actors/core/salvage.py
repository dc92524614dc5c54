"""What of a damaged log can be kept, by a rule that makes no fact up and lets nothing run twice. Pure.

Up to the first loss every event is kept as it is. From there on the log goes on at the next place
where it is whole again: the next turn, or the next step (or the end) of the turn that was open.
What was open at the loss is closed as after a crash, pending inbox messages are cancelled, and a note
marks the place. Later events are numbered anew; what they cite is renumbered, and citations of lost
events are dropped. Proofs of requests and inbox changes behind a loss are left out: they speak of a
history that is no longer whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dsh_actors.core.events import Event, Replace, SessionHeader
from dsh_actors.core.inbox import TARGETS, splice
from dsh_actors.core.repair import Closers
from dsh_actors.core.state import SessionState
from dsh_actors.core.text import JsonObject
from dsh_actors.core.verify import fold
from dsh_actors.errors import EventRefused

__all__ = ["Damage", "Loss", "Salvager"]

_NOT_BEHIND_A_LOSS = frozenset({"request/digest", "agent/inbox/spliced"})


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that could not be used: ``size`` from ``offset`` of the file ``place``.

    ``is_tail``: a last write that was cut off, which every opening cuts away.
    """

    place: str
    offset: int
    size: int
    reason: str
    is_tail: bool = False

    def to_json(self) -> JsonObject:
        return {"place": self.place, "offset": self.offset, "bytes": self.size, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Loss:
    """Events ``first`` to ``last`` (their old seqs) are not in the copy; ``last`` None: to an unknown end.

    ``first`` None: only bytes are damaged and no event is missing. ``damages`` are the causes.
    """

    first: int | None
    last: int | None
    reason: str
    damages: tuple[Damage, ...] = ()

    def to_json(self) -> JsonObject:
        damages = [damage.to_json() for damage in self.damages]
        return {"first_seq": self.first, "last_seq": self.last, "reason": self.reason, "damages": damages}


class _Numbering:
    """Old seqs to new ones, as runs."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._runs: list[tuple[int, int, int]] = []  # old start, length, new start

    def note(self, old: int, new: int) -> None:
        if self._runs:
            start, length, first = self._runs[-1]
            if old == start + length and new == first + length:
                self._runs[-1] = (start, length + 1, first)
                return
        self._starts.append(old)
        self._runs.append((old, 1, new))

    @property
    def has_any(self) -> bool:
        return bool(self._runs)

    def new(self, old: int) -> int | None:
        position = bisect_right(self._starts, old) - 1
        if position < 0:
            return None
        start, length, first = self._runs[position]
        return first + old - start if old < start + length else None


class Salvager:
    """Feed it what is readable, in order; it answers with the events of the copy.

    ``losses`` and ``seed_length`` are complete after `finish`.
    """

    def __init__(self, header: SessionHeader) -> None:
        self._header = header
        self._state = SessionState(header)
        self._closers = Closers()
        self._numbering = _Numbering()
        self._due = 0
        self._damages: list[Damage] = []
        self._is_damaged_here = False  # since the last event
        self._is_whole = True  # nothing was lost so far
        self._lost: tuple[int, int, str] | None = None  # looking for a place to go on
        self.losses: list[Loss] = []
        self.seed_length: int | None = None

    @property
    def has_kept(self) -> bool:
        """Whether any event of the source is in the copy."""
        return self._numbering.has_any

    def damage(self, damage: Damage) -> None:
        """Some bytes before the next event are of no use."""
        self._damages.append(damage)
        self._is_damaged_here = True

    def take(self, event: Event) -> Iterator[Event]:
        """The next readable event, under its old number; one that was seen before is passed over.

        Raises `SessionUnsupported` for an event of an unknown type.
        """
        event.require_known()
        if event.seq < self._due:
            return
        if event.seq > self._due:
            self._lose(self._due, event.seq - 1, "they cannot be read")
        elif self._damages and self._lost is None:
            self._close_loss("no event is missing there")
        self._is_damaged_here = False
        self._note_seed(event.seq)
        self._due = event.seq + 1
        if self._lost is not None:
            closing = self._place_to_go_on(event)
            if closing is None:
                self._lose(event.seq, event.seq, "the beginning of their step is lost")
                return
            yield from self._go_on(closing)
        if not self._is_whole and event.type in _NOT_BEHIND_A_LOSS:
            return
        kept = self._renumbered(event)
        if self._try(kept):
            self._numbering.note(event.seq, kept.seq)
            yield kept
        else:
            self._lose(event.seq, event.seq, f"the {event.type} does not fit what is before it")

    def finish(self) -> Iterator[Event]:
        """What balances the end of the copy; nothing if nothing was lost."""
        if self._damages and self._lost is None and all(damage.is_tail for damage in self._damages):
            self._close_loss("the last write was cut off")
        elif self._is_damaged_here:
            first = self._due if self._lost is None else self._lost[0]
            self._lost, self._is_whole = (first, -1, "they cannot be read"), False
        if self._lost is not None:
            yield from self._go_on(self._closers.closing_events(self._state.next_seq))
        self._note_seed(None)

    # --- losses ------------------------------------------------------------------------------

    def _lose(self, first: int, last: int, reason: str) -> None:
        self._is_whole = False
        if self._lost is None:
            self._lost = (first, last, reason)
        else:
            self._lost = (self._lost[0], last, self._lost[2])

    def _close_loss(self, reason: str) -> Loss:
        first, last = (None, None) if self._lost is None else self._lost[:2]
        loss = Loss(first, None if last == -1 else last, reason, tuple(self._damages))
        self.losses.append(loss)
        self._damages.clear()
        self._is_damaged_here, self._lost = False, None
        return loss

    def _place_to_go_on(self, event: Event) -> tuple[Event, ...] | None:
        """What has to be closed before ``event``; None if the log cannot go on with it."""
        closing = self._closers.closing_events(self._state.next_seq)
        if event.type == "turn/start":
            return closing
        is_same_turn = self._closers.is_open and event.data.get("turn") == self._state.open_turn
        if event.type in ("step/start", "turn/end") and is_same_turn:
            return closing[:-1]  # the turn itself goes on
        return None

    def _go_on(self, closing: tuple[Event, ...]) -> Iterator[Event]:
        reason = "" if self._lost is None else self._lost[2]
        for event in closing:
            yield self._emit(event)
        for target in TARGETS:
            pending = len(self._state.inbox.pending(target))
            if pending:
                yield self._emit(self._own("agent/inbox/spliced", splice(target, 0, pending)))
        loss = self._close_loss(reason)
        note = {"kind": "salvage", "session": self._header.id, "lostFirst": loss.first, "lostLast": loss.last}
        yield self._emit(self._own("run/note", note, ignorable=True))

    def _own(self, kind: str, data: JsonObject, *, ignorable: bool = False) -> Event:
        return Event(kind, self._state.next_seq, self._state.last_time, data, ignorable=ignorable)

    def _note_seed(self, old: int | None) -> None:
        inherited = self._header.seed_length
        if inherited is not None and self.seed_length is None and (old is None or old >= inherited):
            self.seed_length = self._state.next_seq

    # --- events ------------------------------------------------------------------------------

    def _emit(self, event: Event) -> Event:
        fold(self._state, event)
        self._closers.observe(event)
        return event

    def _try(self, event: Event) -> bool:
        """Fold the event, or say that it does not fit and change nothing."""
        try:
            if event.type != "agent/inbox/spliced":
                # The surface and the inbox refuse before they change; the rest is tried on a scratch state.
                alone = replace(event, surface_op="append") if event.surface_op is not None else event
                fold(SessionState(self._header, next_seq=event.seq), alone)
                Closers().observe(event)
            self._emit(event)
        except EventRefused:
            return False
        return True

    def _renumbered(self, event: Event) -> Event:
        if self._is_whole:
            return event
        sources, op = event.source_event_seqs, event.surface_op
        if sources:
            found = tuple(new for old in sources if (new := self._numbering.new(old)) is not None)
            sources = found or None  # an empty list would say that there never was a source
        if isinstance(op, Replace):
            start, end = self._numbering.new(op.start), self._numbering.new(op.end)
            op = Replace(-1 if start is None else start, -1 if end is None else end)
        return replace(event, seq=self._state.next_seq, source_event_seqs=sources, surface_op=op)
