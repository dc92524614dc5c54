"""The benchmarks in short form: ratios within one run, with slack for a busy machine.

`python -m tests.bench` prints the figures themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.listing import Listing
from tests.bench.measure import SLACK, Bench, settled
from tests.model_server import ModelServer


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def bench(server: ModelServer, tmp_path: Path) -> Bench:
    return Bench(server, tmp_path)


@pytest.mark.parametrize("tool", ["note", "bash"])
def test_a_step_costs_little_more_than_the_bare_loop(bench: Bench, tool: str) -> None:
    limit = 2.5 * SLACK
    steps = settled(lambda _try: bench.steps(tool), lambda found: found.ratio <= limit)
    assert steps.ratio <= limit, steps


def test_a_late_step_costs_what_an_early_one_costs(bench: Bench) -> None:
    limit = 1.3 * SLACK
    assert settled(lambda _try: bench.growth(), lambda growth: growth <= limit) <= limit


def test_a_run_starts_with_little_more_than_its_imports(bench: Bench) -> None:
    limit = 2.0 * SLACK
    startup = settled(lambda _try: bench.startup(repeats=2), lambda found: found.ratio <= limit)
    assert startup.ratio <= limit, startup


def test_many_agents_at_once_lose_nothing_and_cost_no_more(bench: Bench, long_form: bool) -> None:
    count, limit = 200 if long_form else 100, 1.5 * SLACK
    many = settled(lambda _try: bench.many(count), lambda found: found.lost > 0 or found.ratio <= limit)
    assert many.lost == 0
    assert many.ratio <= limit, many


def test_listing_the_newest_of_many_costs_little_more_than_looking_at_their_dates(
    tmp_path: Path, long_form: bool
) -> None:
    count = 20_000 if long_form else 3_000
    # With few sessions the constant part, opening the index, weighs more.
    limit = (1.5 if long_form else 2.0) * SLACK
    listing = settled(
        lambda number: Listing.measure(tmp_path / str(number), count), lambda found: found.ratio <= limit
    )
    assert listing.ratio <= limit, listing
