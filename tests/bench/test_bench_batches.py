"""What a task of a batch costs, in short form: ratios within one run, with slack for a busy machine."""

from __future__ import annotations

from pathlib import Path

from tests.bench.batches import Batches
from tests.bench.measure import SLACK, Bench, settled
from tests.model_server import ModelServer


def test_a_task_of_a_batch_costs_little_beside_a_run_and_little_more_than_its_agent(
    tmp_path: Path, long_form: bool
) -> None:
    def fits(found: Batches) -> bool:
        return found.against_runs <= 0.1 * SLACK and found.against_agents <= 1.5 * SLACK

    with ModelServer() as server:
        bench = Bench(server, tmp_path)
        count = 200 if long_form else 40
        found = settled(lambda _try: Batches.measure(bench, count, runs=2), fits)
    assert fits(found), found
