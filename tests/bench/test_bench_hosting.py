"""What the daemon's host costs, in short form: numbers are reckoned up from few agents, with slack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import hosting
from tests.bench.measure import SLACK, Bench, settled
from tests.model_server import ModelServer


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def bench(server: ModelServer, tmp_path: Path) -> Bench:
    return Bench(server, tmp_path)


def test_ten_thousand_idle_agents_fit_into_four_hundred_megabytes(bench: Bench, long_form: bool) -> None:
    idle = hosting.idle(bench, 10_000 if long_form else 400)
    assert idle.total_mb <= hosting.IDLE_MB, idle


def test_a_hundred_thousand_sleeping_agents_are_rows_that_are_listed_quickly(
    bench: Bench, long_form: bool
) -> None:
    agents = 100_000 if long_form else 10_000
    limit = hosting.LISTING_S * SLACK * agents / 100_000
    asleep = settled(lambda _try: hosting.asleep(bench, agents), lambda found: found.listing_s <= limit)
    assert asleep.listing_s <= limit, asleep
    assert asleep.total_mb <= hosting.ASLEEP_MB, asleep


def test_waking_costs_at_most_three_times_what_creating_costs(bench: Bench, long_form: bool) -> None:
    agents, limit = 500 if long_form else 30, hosting.WAKING * SLACK
    assert settled(lambda _try: hosting.waking(bench, agents), lambda ratio: ratio <= limit) <= limit


def test_agents_at_work_together_lose_nothing_and_keep_the_pace(bench: Bench, long_form: bool) -> None:
    agents, limit = 1_000 if long_form else 20, hosting.AT_WORK * SLACK
    work = settled(lambda _try: hosting.at_work(bench, agents), lambda found: found.ratio <= limit)
    assert work.lost == 0
    assert work.ratio <= limit, work


def test_agents_that_come_and_go_leave_nothing_behind(bench: Bench, long_form: bool) -> None:
    day = hosting.day(bench, 20_000, 200, 200, 50) if long_form else hosting.day(bench, 240, 10, 120, 20)
    assert day.descriptors[1] <= day.descriptors[0] * hosting.DAY + 4, day
    assert day.memory <= hosting.DAY, day
