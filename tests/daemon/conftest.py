"""Daemons, and stages of their HTTP side, that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsh_actors.runtime.actor import live_actors
from dsh_actors.runtime.tasks import live_tasks
from tests.daemon.host_kit import Daemon
from tests.daemon.http_kit import MemoryHost, Stage


@pytest.fixture
def make_daemon(tmp_path):
    """Make daemons in one home, one after another; each is closed at the end."""
    made = []

    def make(**options):
        made.append(Daemon(tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert live_actors() == []
    assert live_tasks() == []


@pytest.fixture
def daemon(make_daemon):
    return make_daemon()


@pytest.fixture
def stages(tmp_path: Path) -> Iterator[Callable[..., Stage]]:
    """Make HTTP sides, each with the agents that are named."""
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
