"""The storage's figures in short form, with slack; `python -m tests.bench storage` prints them."""

from __future__ import annotations

from pathlib import Path

from tests.bench import storage

SLACK = 1.3


def test_a_sealed_session_is_much_smaller_than_plain_frames(tmp_path: Path) -> None:
    size = storage.size(tmp_path)
    assert size.ratio <= 0.65, size


def test_a_long_session_with_a_checkpoint_opens_much_faster_than_it_folds(
    tmp_path: Path, long_form: bool
) -> None:
    opening = storage.opening(tmp_path, 100_000 if long_form else 40_000)
    assert opening.ratio * SLACK >= (20 if long_form else 8), opening


def test_a_durable_append_costs_little_more_than_the_plain_loop(tmp_path: Path) -> None:
    append = storage.append(tmp_path)
    assert append.ratio <= 1.3 * SLACK, append


def test_many_sessions_at_once_keep_most_of_the_plain_rate(tmp_path: Path) -> None:
    many = storage.many(tmp_path, repeats=2)
    assert many.ratio * SLACK >= 0.7, many
