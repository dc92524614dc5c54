"""The model gateway actor: opens streams, passes their chunks on, aborts them.

It owns what agents share on a route: the number of requests at once, and the pause after the
provider asked everybody to slow down.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.boundary import failure_of
from dsh_actors.actors.chunk_guard import ChunkGuard
from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import Chunk, Failure, Finish, FinishKind
from dsh_actors.core.ids import Ticket
from dsh_actors.core.options import DEFAULT_CONCURRENCY
from dsh_actors.core.redaction import RedactingStream, Redactor
from dsh_actors.core.scope import run_chain
from dsh_actors.errors import ProtocolError
from dsh_actors.ports import CancelToken, Clock, LlmProvider
from dsh_actors.runtime.actor import BaseActor
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.tasks import Slots, Task, TaskEnd, start_task
from dsh_actors.runtime.timers import Timer, after, when_waiting
from dsh_actors.runtime.waiting import pause

__all__ = ["GatewayState", "ModelGatewayActor", "Route", "StreamHold"]

ABORT_GRACE_S = 0.05
"""A reader that was not woken by its own abort is ended after this."""

LAST_LOOK_S = 0.02
"""How long past its time a silent stream may still speak, besides the time that this process was late."""


@dataclass(eq=False, slots=True)
class Route:
    """What all agents of this process share on one provider. ``paused_until`` is on the monotonic clock."""

    provider: LlmProvider
    slots: Slots
    paused_until: float = 0.0


class StreamHold:
    """`ports.StreamControl`: the gateway's hold on one stream, with its watchdog."""

    def __init__(self, clock: Clock, expired: Callable[[], None]) -> None:
        self.aborted: str | None = None
        self._clock = clock
        self._expired = expired
        self._wake: Callable[[], None] | None = None
        self._deadline = 0.0
        self._armed_for = 0.0
        self._timer: Timer | None = None
        self._is_last_look = False
        self.otherwise: str | None = None

    def on_abort(self, callback: Callable[[], None]) -> None:
        if self.aborted is not None:
            callback()
        else:
            self._wake = callback

    def expect_within(self, seconds: float, otherwise: str | None = None) -> None:
        self._deadline = self._clock.monotonic() + seconds
        self.otherwise = otherwise
        self._is_last_look = False
        # One timer serves many events: it is armed anew only to fire earlier.
        if self._timer is None or self._deadline < self._armed_for:
            self._arm(seconds)

    def abort(self, reason: str) -> None:
        """Only the first reason counts."""
        if self.aborted is not None:
            return
        self.aborted = reason
        self.close()
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """The stream is over: nothing is called any more, and what would have been called is let go."""
        self.close()
        self._wake = None
        self._expired = _nothing

    def _arm(self, seconds: float) -> None:
        self.close()
        self._armed_for = self._deadline
        self._timer = after(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        left = self._deadline - self._clock.monotonic()
        if self.aborted is not None:
            return
        if left > 0:
            self._arm(left)
        elif not self._is_last_look:
            # Where this process was held up, what came meanwhile has not been read yet. It is late by as
            # much as its work piles up, so the readers get as long again.
            self._is_last_look = True
            self._arm(LAST_LOOK_S - left)
        else:
            self._expired()


class Outbox:
    """Passes on at once what a stream brings, then collects until its reader has to wait.

    The agent cannot run before then, so one message with all of it comes no later than many.
    """

    __slots__ = ("_chunks", "_is_collecting", "_reply", "_ticket")

    def __init__(self, ticket: Ticket, reply: Callable[[io.Chunks], None]) -> None:
        self._ticket = ticket
        self._reply = reply
        self._chunks: list[Chunk] = []
        self._is_collecting = False

    def put(self, chunks: Sequence[Chunk]) -> None:
        self._chunks += chunks
        if not self._is_collecting:
            self._is_collecting = True
            when_waiting(self.flush)
            self._send()

    def flush(self) -> None:
        self._is_collecting = False
        self._send()

    def _send(self) -> None:
        if self._chunks:
            chunks, self._chunks = tuple(self._chunks), []
            self._reply(io.Chunks(self._ticket, chunks))


@dataclass(eq=False, slots=True)
class RunningStream:
    hold: StreamHold
    redaction: RedactingStream
    outbox: Outbox
    task: Task | None = None
    guard: ChunkGuard = field(default_factory=ChunkGuard)

    def abort(self, reason: str) -> None:
        self.hold.abort(reason)
        if self.task is not None:
            self.task.kill(ABORT_GRACE_S, reason)


@dataclass(eq=False, slots=True)
class GatewayState:
    """What outlives an incarnation of the gateway.

    ``max_streams`` bounds the requests at once of a route that has no bound of its own in ``limits``.
    """

    providers: Mapping[str, LlmProvider]
    redactor: Redactor
    max_streams: int = DEFAULT_CONCURRENCY
    limits: Mapping[str, int] = field(default_factory=dict)
    routes: dict[str, Route] = field(default_factory=dict)
    streams: dict[tuple[p.Owner, Ticket], RunningStream] = field(default_factory=dict)

    def route(self, provider: str) -> Route:
        if provider not in self.routes:
            slots = Slots(self.limits.get(provider, self.max_streams))
            self.routes[provider] = Route(self.providers[provider], slots)
        return self.routes[provider]


class ModelGatewayActor(BaseActor):
    """Owns: the routes and the running streams.
    Receives: OpenModelStream, AbortModelStream.
    Sends: `turn_io.Chunks`; the last of a stream holds its only `Finish`.
    Waits for: nothing; each stream is a task of its own.
    Dies when: a message is malformed (a fault of ours); running streams go on.
    """

    def __init__(
        self, *, name: str, parent: Ref[Any] | None, generation: int, state: GatewayState, clock: Clock
    ) -> None:
        super().__init__(name=name, parent=parent, generation=generation)
        self._state = state
        self._clock = clock

    def receive(self, message: Any) -> Any:
        match message:
            case p.OpenModelStream():
                self._open(message)
            case p.AbortModelStream():
                stream = self._state.streams.get((message.owner, message.ticket))
                if stream is not None:
                    stream.abort("cancelled")
            case _:
                raise ProtocolError(f"{self.name} cannot use a {type(message).__name__}")

    def _open(self, message: p.OpenModelStream) -> None:
        key = (message.owner, message.ticket)
        hold = StreamHold(self._clock, lambda: stream.abort("timeout"))
        stream = RunningStream(
            hold, RedactingStream(self._state.redactor), Outbox(message.ticket, message.reply)
        )
        self._state.streams[key] = stream

        def deliver(end: TaskEnd[None]) -> None:
            if self._state.streams.get(key) is stream:
                del self._state.streams[key]
            stream.hold.end()
            if not stream.guard.finished:
                failure = _failure_of(end, stream.hold)
                kind: FinishKind = "aborted" if failure.code == "ABORTED" else "error"
                stream.outbox.put(stream.redaction.chunks((Finish(kind, failure),)))
            stream.outbox.flush()

        stream.task = start_task(
            lambda token: self._stream(message, stream, token),
            deliver,
            name=f"stream {message.owner.session}",
        )

    def _stream(self, message: p.OpenModelStream, stream: RunningStream, token: CancelToken) -> None:
        """Pass chunks on as they come, until the `Finish` or the end of the source."""
        route, hold = self._state.route(message.call.config.provider), stream.hold
        with route.slots.taken(token):
            # Looked at again after each wait: another stream may have met the limit meanwhile.
            while (wait_s := route.paused_until - self._clock.monotonic()) > 0:
                # Released a little apart, so that they do not all come back at once.
                pause(wait_s * (1 + 0.1 * random.random()), token)
            for chunks in self._open_source(route, message, hold):
                if hold.aborted is not None:
                    return
                # After the end the source only drains its connection, so that it can be used again.
                taken = stream.guard.take(chunks)
                if taken:
                    self._note_pause(route, taken[-1])
                    shown = stream.redaction.chunks(taken)
                    if shown:
                        stream.outbox.put(shown)

    def _open_source(
        self, route: Route, message: p.OpenModelStream, hold: StreamHold
    ) -> Iterator[Sequence[Chunk]]:
        def default() -> Iterator[Sequence[Chunk]]:
            return route.provider.stream(message.call, message.encoder.encode(message.request), hold)

        if not message.interceptors:
            return default()
        payload = {"session": message.owner.session, "request": message.request}
        source: Iterator[Sequence[Chunk]] = run_chain(list(message.interceptors), payload, default)
        return source

    def _note_pause(self, route: Route, last: Chunk) -> None:
        """A rate limit seen by one agent holds for all of this process."""
        failure = last.failure if isinstance(last, Finish) else None
        if failure is None or failure.code != "RATE_LIMIT" or failure.retry_after_ms is None:
            return
        if failure.retry_after_ms <= route.provider.retry_policy.max_retry_after_ms:
            until = self._clock.monotonic() + failure.retry_after_ms / 1000
            route.paused_until = max(route.paused_until, until)


def _failure_of(end: TaskEnd[None], hold: StreamHold) -> Failure:
    """Why a stream ended without a `Finish`."""
    if hold.aborted == "timeout":
        return Failure(hold.otherwise or "the model was silent for too long", "TIMEOUT")
    if hold.aborted is not None:
        return Failure("the request was aborted", "ABORTED")
    if end.error is None:
        return Failure("the stream ended without an end", "STREAM_CLOSED")
    return failure_of(end.error)


def _nothing() -> None:
    """What expires after the end of a stream."""
