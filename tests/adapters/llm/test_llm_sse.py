"""The event source: the same events from the same bytes, whatever the reads look like."""

from __future__ import annotations

import gc
import io
import threading
import time

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sseclient import SSEClient

from dsh_actors.adapters.llm.sse import PREFIX_BYTES, EventSource, EventTooLarge
from tests.adapters.llm.llm_kit import cut
from tests.cpu_kit import cpu_seconds


def source(pieces: list[bytes], limit: int = 1 << 20) -> EventSource:
    left = list(pieces)
    return EventSource(lambda _: left.pop(0) if left else b"", lambda: False, limit)


def events(pieces: list[bytes]) -> list[str]:
    return [event.data for batch in source(pieces).batches() for event in batch]


LINE = st.one_of(
    st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=12).map(
        lambda text: "data: x" + text
    ),
    st.just(": keep-alive"),
    st.just(""),
    st.sampled_from(["event: ping", "id: 7", "retry: 10", "data", "data:", "unknown: 1", "data: \u2028é"]),
)


@given(
    lines=st.lists(LINE, max_size=12),
    newline=st.sampled_from(["\n", "\r\n", "\r"]),
    offsets=st.lists(st.integers(0, 200), max_size=20),
    bom=st.booleans(),
)
def test_the_cutting_and_the_line_ends_make_no_difference(
    lines: list[str], newline: str, offsets: list[int], bom: bool
) -> None:
    plain = "".join(line + "\n" for line in lines) + "\n\n"
    odd = ("\ufeff" if bom else "") + plain.replace("\n", newline)
    body = odd.encode()
    assert events(cut(body, offsets)) == events([plain.encode()])


@given(
    blocks=st.lists(st.lists(LINE | st.just("event: "), min_size=1, max_size=3), max_size=6),
    after_the_prefix=st.booleans(),
)
def test_events_are_those_that_the_parser_finds(blocks: list[list[str]], after_the_prefix: bool) -> None:
    body = "".join("\n".join(lines) + "\n\n" for lines in blocks).encode()
    first = [b": " + b"x" * PREFIX_BYTES + b"\n\n"] if after_the_prefix else []
    ours = [event for batch in source([*first, body]).batches() for event in batch]
    theirs = list(SSEClient(io.BytesIO(body)).events())
    assert [(event.event, event.data) for event in ours] == [(event.event, event.data) for event in theirs]


def test_line_ends_may_differ_from_line_to_line() -> None:
    assert events([b"data: a\n\r\ndata: b\r\n\ndata: c\r\rdata: d\n\n"]) == ["a", "b", "c", "d"]


def test_all_events_of_one_read_come_together() -> None:
    batches = list(source([b"data: a\n\ndata: b\n\ndata: c", b"\n\n", b": ping\n\n"]).batches())
    assert [[event.data for event in batch] for batch in batches] == [["a", "b"], ["c"], []]


def test_an_event_is_delivered_with_its_last_byte() -> None:
    body = b"data: a\r\n\r\ndata: b\r\n\r\n"
    seen = [[event.data for event in batch] for batch in source(cut(body, range(1, len(body)))).batches()]
    # The CR of the blank line completes the event; its LF is not waited for.
    assert seen.index(["a"]) == 9
    assert seen.index(["b"]) == 20


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert events([b"data: \xff\xfe!\n\ndata: ok\n\n"]) == ["\ufffd\ufffd!", "ok"]


def test_a_short_body_that_only_begins_like_a_byte_order_mark_is_kept() -> None:
    assert events([b"\xef", b"\xbb", b"\xbf", b"data: a\n\n"]) == ["a"]
    assert events([b"\xef", b"\xbb", b"x: 1\ndata: a\n\n"]) == ["a"]


def test_an_unfinished_line_at_the_end_is_dropped_and_an_unfinished_event_is_marked() -> None:
    whole = source([b"data: a\n\ndata: b\ndata: c"])
    batches = []
    for batch in whole.batches():
        batches.append(([event.data for event in batch], whole.is_tail))
    assert batches == [(["a"], False), (["b"], True)]
    assert whole.at_end


def test_the_start_of_the_body_is_kept() -> None:
    whole = source([b"<html>" + b"x" * 5000, b"y" * 5000])
    assert list(whole.batches()) == [[], []]
    assert whole.prefix == b"<html>" + b"x" * 4090
    assert whole.received == 10_006


def test_an_event_beyond_the_cap_is_refused() -> None:
    with pytest.raises(EventTooLarge, match="1000"):
        list(source([b"data: " + b"x" * 300] + [b"x" * 300] * 5, limit=1000).batches())


def test_reading_stops_when_it_is_told_to() -> None:
    stopped = []
    left = [b"data: a\n\n"] * 5
    whole = EventSource(lambda _: left.pop(0), lambda: len(left) <= 2)
    for batch in whole.batches():
        stopped.append(batch)
    assert len(stopped) == 2
    assert not whole.at_end


def test_a_huge_event_in_small_pieces_takes_linear_time() -> None:
    def read(size: int) -> None:
        pieces = [b"data: ", *[b"x" * 128] * (size // 128), b"\n\n"]
        assert len(events_of_size(pieces, 64 << 20)[0]) == size // 128 * 128

    small, large = cpu_seconds(lambda: read(1 << 20)), cpu_seconds(lambda: read(1 << 23))
    assert large < 8 * small * 3 + 0.2


def events_of_size(pieces: list[bytes], limit: int) -> list[str]:
    return [event.data for batch in source(pieces, limit).batches() for event in batch]


def test_a_stream_without_pauses_lets_others_work() -> None:
    body = b"data: " + b"x" * 100 + b"\n\n"
    left = [body * 50] * 800
    ticks: list[float] = []
    over = threading.Event()

    def tick() -> None:
        while not over.is_set():
            ticks.append(time.thread_time())  # of this thread's work: what other programs take does not count
            over.wait(0.001)

    ticker = gevent.spawn(tick)
    gevent.sleep(0)
    gc.disable()  # a full collection of a whole suite's objects takes longer than the bound
    try:
        source = EventSource(lambda _: left.pop() if left else b"", lambda: False)
        count = sum(len(batch) for batch in source.batches())
    finally:
        gc.enable()
    end = time.thread_time()
    over.set()
    ticker.join(10)
    assert count == 40_000
    gaps = [later - earlier for earlier, later in zip(ticks, [*ticks[1:], end], strict=True)]
    assert max(gaps) < 0.05
