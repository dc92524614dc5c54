"""Chunked bodies: the same data however they are cut, faults after what came before them."""

from __future__ import annotations

import http.client

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.adapters.llm.dechunking import MAX_LINE, MAX_TRAILERS, Dechunker
from tests.adapters.llm.llm_kit import chunk, cut


def read(pieces: list[bytes]) -> tuple[bytes, bool]:
    dechunker = Dechunker()
    return b"".join(map(dechunker.feed, pieces)), dechunker.has_ended


@given(
    data=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    extension=st.sampled_from(["", ";a=b", ' ; a="0\t"']),
    line=st.sampled_from(["\r\n", "\n"]),
    trailers=st.sampled_from(["", "X-A: b\r\n", "X-A: b\nX-B: \n"]),
    offsets=st.lists(st.integers(0, 400), max_size=30),
)
def test_a_body_is_the_same_however_it_is_cut(
    data: list[bytes], extension: str, line: str, trailers: str, offsets: list[int]
) -> None:
    body = b"".join(b"%x%b%b\r\n" % (len(d), (extension + line).encode(), d) for d in data)
    body += b"000" + line.encode() + trailers.encode() + b"\r\n"
    assert read(cut(body, offsets)) == (b"".join(data), True)
    assert read(cut(body, range(len(body)))) == (b"".join(data), True)
    assert not read([body[:-1]])[1]


def test_all_chunks_of_one_read_come_together_and_half_a_chunk_at_once() -> None:
    dechunker = Dechunker()
    assert dechunker.feed(chunk(b"one ") + chunk(b"two ") + b"9\r\nthr") == b"one two thr"
    assert dechunker.feed(b"ee") == b"ee"
    assert dechunker.feed(b"!!!!\r\n0\r\n") == b"!!!!"
    assert not dechunker.has_ended
    assert (dechunker.feed(b"\r\n"), dechunker.has_ended) == (b"", True)


@pytest.mark.parametrize("bad", [b"zz\r\n", b"-5\r\n", b"\r\n", b"\xff\r\n"])
def test_data_before_a_fault_comes_first(bad: bytes) -> None:
    dechunker = Dechunker()
    assert dechunker.feed(chunk(b"data") + bad) == b"data"
    assert dechunker.is_faulty
    with pytest.raises(http.client.IncompleteRead):
        dechunker.feed(b"")


@pytest.mark.parametrize(
    "flood",
    [
        b"0" * (MAX_LINE + 2),
        b"0\r\n" + b"x" * (MAX_LINE + 2),
        b"0\r\n" + b"a: b\r\n" * MAX_TRAILERS * 2,
    ],
)
def test_lines_without_end_are_refused(flood: bytes) -> None:
    with pytest.raises(http.client.HTTPException):
        read(cut(flood, range(0, len(flood), 1000)))
