"""The model gateway by itself: slots, pauses, the watchdog, and chunks that an agent can take."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.actors import protocol as p
from dsh_actors.actors.chunk_guard import ChunkGuard
from dsh_actors.actors.model_gateway import GatewayState, ModelGatewayActor, StreamHold
from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import (
    BlockEnd,
    BlockStart,
    CallConfig,
    Chunk,
    Failure,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)
from dsh_actors.core.messages import OpaqueBlock, TextBlock
from dsh_actors.core.redaction import Redactor
from dsh_actors.core.request import ModelRequest, RequestHeader
from dsh_actors.core.stream import BlockAssembler
from dsh_actors.core.text import require_lossless
from dsh_actors.runtime.actor import start_actor
from dsh_actors.testing.machine import text_chunks
from dsh_actors.testing.manual import ManualProvider

DEADLINE_S = 10.0
OWNER = p.Owner("s", 1)


class SteppingClock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


class Gateway:
    """The actor under test, its model, and the chunks that it passed on, by ticket."""

    def __init__(self, clock: Any = None, max_streams: int = 8) -> None:
        self.model = ManualProvider()
        self.clock = clock or SteppingClock()
        self.state = GatewayState({"manual": self.model}, Redactor({}), max_streams)
        self.replies: queue.SimpleQueue[io.Chunks] = queue.SimpleQueue()
        self.ref = start_actor(
            ModelGatewayActor(
                name="model_gateway", parent=None, generation=0, state=self.state, clock=self.clock
            )
        )

    def open(self, ticket=1, owner=OWNER, interceptors=()) -> None:
        call = self.model.prepare(CallConfig("manual", "m"))
        request = ModelRequest(RequestHeader(call.config), [])
        self.ref.tell(
            p.OpenModelStream(owner, ticket, call, call.encoder(), request, interceptors, self.replies.put)
        )

    def abort(self, ticket=1, owner=OWNER) -> None:
        self.ref.tell(p.AbortModelStream(owner, ticket))

    def reply(self) -> io.Chunks:
        return self.replies.get(timeout=DEADLINE_S)


@pytest.fixture
def gateways() -> Iterator[Callable[..., Gateway]]:
    made: list[Gateway] = []

    def make(**fields: Any) -> Gateway:
        made.append(Gateway(**fields))
        return made[-1]

    yield make
    for gateway in made:
        gateway.ref.stop(timeout=DEADLINE_S)
        assert gateway.state.streams == {}
        assert gateway.replies.empty()


def test_a_stream_goes_to_its_agent_chunk_by_chunk(gateways):
    gateway = gateways()
    gateway.open()
    stream = gateway.model.next_stream()
    stream.send(TextDelta(0, "half"))
    assert gateway.reply() == io.Chunks(1, (TextDelta(0, "half"),))
    stream.send(TextDelta(0, " way"))
    assert gateway.reply() == io.Chunks(1, (TextDelta(0, " way"),))
    stream.send(Finish("stop"))
    assert gateway.reply() == io.Chunks(1, (Finish("stop"),))


def test_nothing_follows_the_finish_of_a_stream(gateways):
    gateway = gateways()
    gateway.open()
    gateway.model.next_stream().send(TextDelta(0, "a"), Finish("stop"), TextDelta(0, "b"), Finish("stop"))
    assert gateway.reply().chunks == (TextDelta(0, "a"), Finish("stop"))


def test_a_route_has_only_so_many_requests_at_once(gateways):
    gateway = gateways(max_streams=1)
    gateway.open(1)
    first = gateway.model.next_stream()
    gateway.open(2)
    with pytest.raises(queue.Empty):
        gateway.model.next_stream(0.05)
    first.send(*text_chunks("one"))
    assert gateway.reply().ticket == 1
    gateway.model.next_stream().send(*text_chunks("two"))
    assert gateway.reply().ticket == 2


def limited(after_ms: int) -> Finish:
    return Finish("error", Failure("slow down", "RATE_LIMIT", 429, after_ms))


def test_a_rate_limit_seen_by_one_stream_holds_for_the_next(gateways):
    gateway = gateways()
    gateway.open(1)
    gateway.model.next_stream().send(limited(60))
    gateway.reply()
    gateway.open(2)
    with pytest.raises(queue.Empty):
        gateway.model.next_stream(0.03)
    gateway.clock.now += 1
    gateway.model.next_stream().send(*text_chunks("ok"))
    assert gateway.reply().ticket == 2


def test_a_pause_that_grows_while_a_stream_waits_holds_for_it(gateways):
    gateway = gateways()
    gateway.open(1)
    other = gateway.model.next_stream()
    route = gateway.state.route("manual")
    route.paused_until = gateway.clock.now + 0.02
    gateway.open(2)
    other.send(limited(40))
    gateway.reply()
    gateway.clock.now += 0.03  # past the first pause, not past the second
    with pytest.raises(queue.Empty):
        gateway.model.next_stream(0.1)
    gateway.clock.now += 1
    gateway.model.next_stream().send(*text_chunks("ok"))
    assert gateway.reply().ticket == 2


def test_a_shorter_pause_takes_nothing_from_a_longer_one(gateways):
    gateway = gateways()
    for ticket, after_ms in ((1, 4_000), (2, 1_000)):
        gateway.state.route("manual").paused_until, until = 0, gateway.state.route("manual").paused_until
        gateway.open(ticket)
        stream = gateway.model.next_stream()
        gateway.state.route("manual").paused_until = until
        stream.send(limited(after_ms))
        gateway.reply()
    assert gateway.state.route("manual").paused_until == gateway.clock.now + 4


def test_a_rate_limit_longer_than_the_policy_waits_pauses_nobody(gateways):
    gateway = gateways()
    gateway.open(1)
    gateway.model.next_stream().send(limited(gateway.model.retry_policy.max_retry_after_ms + 1))
    gateway.reply()
    assert gateway.state.route("manual").paused_until == 0


def test_a_silent_stream_is_ended_by_the_watchdog(gateways, monkeypatch):
    gateway = gateways()

    def silent(payload, following):
        source = following()
        control.expect_within(0.01)
        gateway.clock.now += 0.05
        return source

    control: Any = None
    play = gateway.model.stream

    def keep(call, body, hold):
        nonlocal control
        control = hold
        return play(call, body, hold)

    monkeypatch.setattr(gateway.model, "stream", keep)
    gateway.open(1, interceptors=(silent,))
    stream = gateway.model.next_stream()
    (finish,) = gateway.reply().chunks
    assert isinstance(finish, Finish) and finish.failure is not None
    assert (finish.kind, finish.failure.code) == ("error", "TIMEOUT")
    assert stream.aborted in ("timeout", None)


def test_the_watchdog_comes_earlier_when_less_is_expected():
    clock, expired = SteppingClock(), queue.SimpleQueue()
    hold = StreamHold(clock, lambda: expired.put(None))
    hold.expect_within(1_000.0)
    hold.expect_within(0.01)
    clock.now += 1
    expired.get(timeout=DEADLINE_S)


def test_the_watchdog_lets_a_stream_live_that_goes_on_speaking():
    clock, expired = SteppingClock(), queue.SimpleQueue()
    hold = StreamHold(clock, lambda: expired.put(None))
    hold.expect_within(0.01)
    hold.expect_within(1_000.0)
    with pytest.raises(queue.Empty):
        expired.get(timeout=0.05)
    hold.close()


def test_the_watchdog_does_not_blame_a_stream_for_this_process_being_held_up():
    clock, expired = SteppingClock(), queue.SimpleQueue()
    hold = StreamHold(clock, lambda: expired.put(None))
    hold.expect_within(0.01)
    clock.now += 0.3  # as if nothing of this process had run meanwhile
    with pytest.raises(queue.Empty):
        expired.get(timeout=0.05)
    hold.expect_within(1_000.0)  # what had come is read late
    with pytest.raises(queue.Empty):
        expired.get(timeout=0.4)
    hold.close()


@pytest.mark.parametrize("life", [1, 2])
def test_an_abort_reaches_the_newest_stream_though_an_older_one_has_ended(gateways, life):
    gateway = gateways()
    gateway.open(1, p.Owner("s", 1))
    old = gateway.model.next_stream()
    gateway.open(1, p.Owner("s", life))
    new = gateway.model.next_stream()
    old.send(*text_chunks("old"))
    assert gateway.reply().chunks[0] == TextDelta(0, "old")
    gateway.abort(1, p.Owner("s", life))
    (finish,) = gateway.reply().chunks
    assert isinstance(finish, Finish) and finish.kind == "aborted"
    new.send(*text_chunks("nobody reads this"))


def test_an_interceptor_may_answer_in_the_place_of_the_provider(gateways):
    gateway = gateways()
    gateway.open(1, interceptors=(lambda payload, following: [text_chunks(payload["session"])],))
    assert gateway.reply().chunks == text_chunks("s")


@pytest.mark.parametrize("source", [[[object(), Finish("stop")]], [7], ["text"]])
def test_a_source_that_yields_no_chunks_is_an_error_of_the_model_call(gateways, source):
    gateway = gateways()
    gateway.open(1, interceptors=(lambda payload, following: iter(source),))
    finish = gateway.reply().chunks[-1]
    assert isinstance(finish, Finish) and finish.kind == "error"


# --- the chunk guard ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chunks",
    [
        (BlockStart(0, "image"), TextDelta(1, "x"), Finish("stop")),
        (BlockStart(0, ""), Finish("stop")),
        (TextDelta(0, "x"), ToolCallDelta(0, "c", "t", "{}")),
        (TextDelta(0, 7),),  # type: ignore[arg-type]
        (TextDelta("0", "x"),),  # type: ignore[arg-type]
        (UsageChunk(Usage(1, None)),),  # type: ignore[arg-type]
        (BlockEnd(0, OpaqueBlock({"type": "image", "data": float("nan")})),),
        (BlockEnd(0, "text"),),  # type: ignore[arg-type]
        (Finish("done"),),  # type: ignore[arg-type]
        (Finish("stop", replay_state={"a": {1}}),),
        (Finish("error", Failure("x", 7)),),  # type: ignore[arg-type]
        ("text",),
    ],
    ids=range(12),
)
def test_a_malformed_chunk_ends_the_stream(chunks):
    guard = ChunkGuard()
    last = guard.take(chunks)[-1]
    assert isinstance(last, Finish) and last.failure is not None
    assert (last.kind, last.failure.code, guard.finished) == ("error", "MALFORMED_RESPONSE", True)
    assert guard.take([TextDelta(0, "late")]) == ()


def test_an_unknown_block_that_ends_is_passed_on():
    chunks = (BlockStart(0, "image"), BlockEnd(0, OpaqueBlock({"type": "image"})), Finish("stop"))
    assert ChunkGuard().take(chunks) == chunks


def test_half_surrogate_pairs_are_replaced_in_every_text():
    taken = ChunkGuard().take(
        [
            TextDelta(0, "a\ud800"),
            ReasoningDelta(1, "b\udfff"),
            ToolCallDelta(2, "c\ud800", "n\ud800", '"\ud800"'),
            BlockEnd(3, TextBlock("d\ud800")),
            Finish("error", Failure("e\ud800", "f\ud800")),
        ]
    )
    assert "\\ud" not in ascii([chunk.to_json() for chunk in taken])
    require_lossless([chunk.to_json() for chunk in taken], "chunks")


def test_an_abort_without_a_reason_is_one_with_the_usual_reason():
    (finish,) = ChunkGuard().take([Finish("aborted")])
    assert isinstance(finish, Finish) and finish.failure is not None and finish.failure.code == "ABORTED"


TEXTS = st.one_of(st.text(max_size=3), st.sampled_from(["\ud800", "\udc00x", ""]), st.none(), st.integers())
INDEXES = st.one_of(st.integers(0, 2), st.sampled_from(["0", None, True]))
CHUNKS: st.SearchStrategy[Any] = st.one_of(
    st.builds(TextDelta, INDEXES, TEXTS),
    st.builds(ReasoningDelta, INDEXES, TEXTS),
    st.builds(ToolCallDelta, INDEXES, TEXTS, TEXTS, TEXTS),
    st.builds(BlockStart, INDEXES, st.sampled_from(["text", "reasoning", "tool-call", "image", "", None])),
    st.builds(BlockEnd, INDEXES, st.sampled_from([TextBlock("x"), OpaqueBlock({"type": "image"}), None])),
    st.builds(UsageChunk, st.builds(Usage, st.integers(-1, 3), st.integers(-1, 3))),
    st.builds(Finish, st.sampled_from(["stop", "tool-calls", "max-tokens", "error", "aborted", "no"])),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(CHUNKS, max_size=8))
def test_what_the_guard_passes_on_can_be_assembled_and_logged(chunks):
    guard, assembler = ChunkGuard(), BlockAssembler()
    taken: tuple[Chunk, ...] = guard.take(chunks)
    for chunk in taken:
        require_lossless(chunk.to_json(), "a chunk")
        assembler.feed(chunk)
    finish = assembler.finish
    if finish is None or finish.kind in ("error", "aborted"):
        blocks = assembler.interrupted_blocks()
    else:
        blocks = assembler.blocks()
    require_lossless([block.to_json() for block in blocks], "blocks")
    assert guard.finished == (finish is not None)
