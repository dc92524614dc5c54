"""Stages of the daemon's HTTP side, closed after each test with nothing left open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.http_kit import MemoryHost, Stage


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    made: list[Stage] = []

    def make(*names: str, **options: Any) -> Stage:
        folder = tmp_path / f"stage-{len(made)}"
        made.append(Stage(folder, MemoryHost(*names), **options))
        return made[-1]

    yield make
    for stage in made:
        stage.close()
        assert stage.server.connections == 0
        assert stage.streams.readers == 0


@pytest.fixture
def stage(stages: Callable[..., Stage]) -> Stage:
    """With one agent, ``a``."""
    return stages("a")
