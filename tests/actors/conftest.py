"""A live harness in a folder of its own, with a model that the test plays by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh_actors.config import load_config
from dsh_actors.core.events import Event
from dsh_actors.core.options import AgentOptions
from dsh_actors.harness import AgentHandle, Harness
from dsh_actors.runtime.actor import live_actors
from dsh_actors.runtime.debug import install_blocking_detection
from dsh_actors.runtime.tasks import live_tasks
from dsh_actors.testing.manual import ManualProvider

HELD_MS = 500.0
"""Ten times what is allowed: the machine that runs the tests may be busy with others."""


class Stage:
    """The harness under test, its model, and what its agents have told so far."""

    def __init__(self, folder: Path) -> None:
        self.cwd = folder / "work"
        self.cwd.mkdir()
        self.home = folder / "home"
        self.model = ManualProvider()
        self.events: list[Event] = []
        self.harness = self.open()

    def open(self) -> Harness:
        config = load_config(env={"DSH_HOME": str(self.home)}, cwd=str(self.cwd))
        return Harness.open(config, providers={"manual": self.model})

    def options(self, **fields: object) -> AgentOptions:
        return AgentOptions(model="manual/m", cwd=str(self.cwd), **fields)  # type: ignore[arg-type]

    def agent(self, setup=None, **fields: object) -> AgentHandle:
        def prepared(scope):
            scope.observe("session/event", self.events.append)
            return setup(scope) if setup else None

        return self.harness.create(self.options(**fields), prepared)

    def types(self) -> list[str]:
        return [event.type for event in self.events if event.type != "assistant/chunk"]

    def stored(self, session_id: str) -> list[Event]:
        return list(self.harness.storage.read(session_id))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """After the test nothing may be left running, and nothing may have held the hub for long."""
    blocked: list[str] = []
    undo = install_blocking_detection(HELD_MS, blocked.append)
    stage = Stage(tmp_path)
    yield stage
    stage.harness.close()
    undo()
    assert blocked == []
    assert live_actors() == []
    assert live_tasks() == []
