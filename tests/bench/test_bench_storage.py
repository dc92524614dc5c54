"""The storage's figures in short form, with slack; `python -m tests.bench storage` prints them."""

from __future__ import annotations

from pathlib import Path

from tests.bench import storage
from tests.bench.measure import SLACK, settled


def test_a_sealed_session_is_much_smaller_than_plain_frames(tmp_path: Path) -> None:
    size = storage.size(tmp_path)
    assert size.ratio <= 0.65, size


def test_a_long_session_with_a_checkpoint_opens_much_faster_than_it_folds(
    tmp_path: Path, long_form: bool
) -> None:
    count, limit = (100_000, 20 / SLACK) if long_form else (40_000, 8 / SLACK)
    opening = settled(
        lambda number: storage.opening(tmp_path / str(number), count), lambda found: found.ratio >= limit
    )
    assert opening.ratio >= limit, opening


def test_a_durable_append_costs_little_more_than_the_plain_loop(tmp_path: Path) -> None:
    limit = 1.3 * SLACK
    append = settled(
        lambda number: storage.append(tmp_path / str(number)), lambda found: found.ratio <= limit
    )
    assert append.ratio <= limit, append


def test_many_sessions_at_once_keep_most_of_the_plain_rate(tmp_path: Path) -> None:
    limit = 0.7 / SLACK
    many = settled(
        lambda number: storage.many(tmp_path / str(number), repeats=2), lambda found: found.ratio >= limit
    )
    assert many.ratio >= limit, many
