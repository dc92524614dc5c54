"""What the folds keep in memory does not grow with what is over."""

from __future__ import annotations

import pytest

from dsh_actors.core.chunks import Finish, TextDelta
from dsh_actors.core.scope import Scope
from dsh_actors.errors import UsageError
from dsh_actors.testing.machine import MachineDriver


def test_the_surface_keeps_no_numbers_of_chunks() -> None:
    driver = MachineDriver()
    driver.deliver("hello")
    driver.reply(*[TextDelta(0, "a")] * 50, Finish("stop"))
    logged = next(event for event in driver.log if event.type == "assistant/message")
    assert len(logged.source_event_seqs or ()) > 50
    assert all(node.source_event_seqs is None for node in driver.machine.state.surface.nodes)


def test_a_registration_that_was_undone_leaves_nothing() -> None:
    scope = Scope("agent")
    seen: list[object] = []
    for _ in range(100):
        scope.observe("session/event", seen.append)()
    assert len(scope._undos) == 0 and scope.handlers_of("session/event") == []


def test_undoing_twice_is_undoing_once() -> None:
    scope = Scope("agent")
    undo = scope.observe("session/event", print)
    undo()
    revision = scope.revision
    undo()
    assert scope.revision == revision


def test_closing_undoes_what_is_left_last_first() -> None:
    undone: list[str] = []

    class Watched(dict[str, str | None]):
        def __delitem__(self, name: str) -> None:
            undone.append(name)
            super().__delitem__(name)

    scope = Scope("agent", variables=Watched())
    undos = [scope.variable(name, name) for name in ("one", "two", "three")]
    undos[1]()
    scope.close()
    assert undone == ["two", "three", "one"]
    with pytest.raises(UsageError):
        scope.observe("session/event", print)
