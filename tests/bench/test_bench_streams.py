"""The figures of model streams in short form, with slack; `python -m tests.bench streams` prints them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import streams
from tests.bench.measure import SLACK, Bench, settled
from tests.model_server import ModelServer


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ModelServer() as server:
        yield Bench(server, tmp_path)


@pytest.mark.parametrize("kind", streams.KINDS)
def test_a_stream_costs_little_more_than_its_parser_and_json_alone(kind: str, long_form: bool) -> None:
    events, limit = 3_000 if long_form else 1_000, 1.5 * SLACK
    parsing = settled(lambda _try: streams.parsing(kind, events), lambda found: found.ratio <= limit)
    assert parsing.ratio <= limit, parsing


def test_many_streams_at_once_lose_nothing_and_none_is_taken_for_silent(
    bench: Bench, long_form: bool
) -> None:
    count = 1_000 if long_form else 200
    many = streams.many_streams(bench, count, 150 if long_form else 50, 50, idle_timeout_s=1.0)
    assert (many.lost, many.silent) == (0, 0), many


def test_the_first_delta_is_on_standard_output_at_once(bench: Bench) -> None:
    first = streams.first_delta(bench, repeats=3)
    # Ten times the limit: this only shows that nothing waits for more, whatever else the machine does.
    assert first.median_ms <= 200, first
