"""The benchmarks in short form: ratios within one run, with slack for a busy machine.

`python -m tests.bench` prints the figures themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.listing import Listing
from tests.bench.measure import Bench
from tests.model_server import ModelServer

SLACK = 1.3
"""For a machine whose other work shares the caches and the clock; the limits themselves are in `__main__`."""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def bench(server: ModelServer, tmp_path: Path) -> Bench:
    return Bench(server, tmp_path)


@pytest.mark.parametrize("tool", ["note", "bash"])
def test_a_step_costs_little_more_than_the_bare_loop(bench: Bench, tool: str) -> None:
    steps = bench.steps(tool)
    assert steps.ratio <= 2.5 * SLACK, steps


def test_a_late_step_costs_what_an_early_one_costs(bench: Bench) -> None:
    assert bench.growth() <= 1.3 * SLACK


def test_a_run_starts_with_little_more_than_its_imports(bench: Bench) -> None:
    startup = bench.startup(repeats=2)
    assert startup.ratio <= 2.0 * SLACK, startup


def test_many_agents_at_once_lose_nothing_and_cost_no_more(bench: Bench, long_form: bool) -> None:
    many = bench.many(200 if long_form else 100)
    assert many.lost == 0
    assert many.ratio <= 1.5 * SLACK, many


def test_listing_the_newest_of_many_costs_little_more_than_looking_at_their_dates(
    tmp_path: Path, long_form: bool
) -> None:
    listing = Listing.measure(tmp_path, 20_000 if long_form else 3_000)
    # With few sessions the constant part, opening the index, weighs more.
    assert listing.ratio <= (1.5 if long_form else 2.0) * SLACK, listing
