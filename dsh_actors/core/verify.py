"""Checking a stored session by itself: what its events must add up to, and what each request must have been.

Pure: whoever reads the log feeds it here and adds the damage that reading found.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from dsh_actors.core.events import Event, SessionHeader, wrong_payload
from dsh_actors.core.repair import Closers
from dsh_actors.core.request import ModelRequest, RequestDigest
from dsh_actors.core.snapshot import FORMAT, dump
from dsh_actors.core.state import SessionState
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import EventRefused, HarnessError, SessionUnsupported

__all__ = ["Fault", "Report", "Verifier", "fault_of", "fold"]


@dataclass(frozen=True, slots=True)
class Fault:
    """The first place where one kind of check failed.

    ``kind``: ``log`` (bytes, chain, numbering), ``type`` (unknown), ``fold``, ``closers``, ``request``,
    ``checkpoint``, ``image`` (missing or damaged).
    ``seq``: the event, None where the reason names another place.
    """

    kind: str
    seq: int | None
    reason: str

    def to_json(self) -> JsonObject:
        return {"kind": self.kind, "seq": self.seq, "reason": self.reason}


@dataclass(slots=True)
class Report:
    """``requests``: how many were derived again. ``closers``: the events that resuming would add."""

    events: int = 0
    requests: int = 0
    closers: int = 0
    faults: list[Fault] = field(default_factory=list)

    @property
    def status(self) -> str:
        """``ok``, ``corrupt`` or ``unsupported``."""
        kinds = {fault.kind for fault in self.faults}
        if not kinds:
            return "ok"
        return "unsupported" if kinds == {"type"} else "corrupt"

    def to_json(self) -> JsonObject:
        return {
            "status": self.status,
            "events": self.events,
            "requests": self.requests,
            "closers": self.closers,
            "faults": [fault.to_json() for fault in self.faults],
        }


def fault_of(error: HarnessError) -> Fault:
    """What reading a log raised, as a fault."""
    return Fault("type" if isinstance(error, SessionUnsupported) else "log", None, error.message)


def fold(state: SessionState, event: Event) -> None:
    """Apply an event from outside. Raises `EventRefused` for every payload that does not fit."""
    try:
        state.apply(event)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise wrong_payload(event, error) from error


class Verifier:
    """Feed it every event of a log in order, then ask `finish` once.

    With ``requests`` each ``request/digest`` event is compared with the request that the log before
    it amounts to. ``checkpoint``: a number of events and the state that is stored for them, which is
    compared with what they fold to; one of another format is none, as for whoever opens the session.
    """

    def __init__(
        self,
        header: SessionHeader,
        *,
        requests: bool = False,
        checkpoint: tuple[int, JsonObject] | None = None,
    ) -> None:
        self._header = header
        self._state: SessionState | None = SessionState(header)
        self._closers: Closers | None = Closers()
        self._digest = RequestDigest() if requests else None
        self._checkpoint = checkpoint
        self._report = Report()
        self._found: set[str] = set()

    def observe(self, event: Event) -> None:
        """Take in the next event. Raises nothing for what is wrong with it."""
        expected = self._report.events
        self._report.events += 1
        if event.seq != expected:
            self.fault("log", event.seq, f"event {event.seq} stands where event {expected} is due")
        try:
            event.require_known()
        except SessionUnsupported as error:
            self.fault("type", event.seq, error.message)
        if self._digest is not None and event.type == "request/digest":
            self._check_request(event, self._digest)
        self._fold(event)
        if self._checkpoint is not None and self._checkpoint[0] == self._report.events:
            self._check_checkpoint(*self._checkpoint)

    def fault(self, kind: str, seq: int | None, reason: str) -> None:
        """Note a fault; only the first of its kind is kept, as the others may follow from it."""
        if kind not in self._found:
            self._found.add(kind)
            self._report.faults.append(Fault(kind, seq, reason))

    def fault_of(self, error: HarnessError) -> None:
        """Note what reading the log raised."""
        fault = fault_of(error)
        self.fault(fault.kind, fault.seq, fault.reason)

    def finish(self) -> Report:
        """The report; also checks that what is open at the end can be closed."""
        state, closers = self._state, self._closers
        if state is None or closers is None or self._report.faults:
            return self._report
        try:
            for event in closers.closing_events(state.next_seq):
                fold(state, event)
                self._report.closers += 1
        except EventRefused as error:
            self.fault("closers", state.next_seq, error.message)
        return self._report

    def _fold(self, event: Event) -> None:
        if self._state is not None:
            try:
                fold(self._state, event)
            except EventRefused as error:
                self._state = None  # half applied: nothing can be derived from it any more
                self.fault("fold", event.seq, error.message)
        if self._closers is not None:
            try:
                self._closers.observe(event)
            except (EventRefused, AttributeError) as error:
                self._closers = None
                self.fault("closers", event.seq, str(error))

    def _check_checkpoint(self, next_seq: int, stored: JsonObject) -> None:
        if self._state is None or self._closers is None or stored.get("format") != FORMAT:
            return
        folded = dump(self._state, self._closers)
        wrong = sorted(
            key for key in folded.keys() | stored.keys() if _as_text(folded, key) != _as_text(stored, key)
        )
        if wrong:
            reason = (
                f"the checkpoint for the {next_seq} events before it has another {wrong[0]} than they give"
            )
            hint = "it only saves time and may be deleted"
            self.fault("checkpoint", next_seq, f"event {next_seq}: {reason}; {hint}")

    def _check_request(self, event: Event, digest: RequestDigest) -> None:
        if self._state is None:
            return  # the fault that ended the fold is reported
        self._report.requests += 1
        header = self._state.request_header
        if header is None:
            self.fault("request", event.seq, f"event {event.seq}: no request/header stands before it")
            return
        request = ModelRequest(header, self._state.surface.messages(), self._header.id)
        derived = (digest.update(request), len(request.messages))
        noted = (event.data.get("digest"), event.data.get("messages"))
        if derived[1] != noted[1]:
            reason = f"the log gives {derived[1]} messages, {noted[1]} were sent"
            self.fault("request", event.seq, f"event {event.seq}: {reason}")
        elif derived[0] != noted[0]:
            reason = f"the log gives a request with the digest {derived[0]}, {noted[0]} was sent"
            self.fault("request", event.seq, f"event {event.seq}: {reason}")


def _as_text(data: JsonObject, key: str) -> str | None:
    """A member as it would be stored, where a tuple is a list; None where there is none."""
    return json.dumps(data[key], sort_keys=True) if key in data else None
