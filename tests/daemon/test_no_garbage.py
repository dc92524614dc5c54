"""An agent that is over is out of memory at once: nothing of it waits for a collection of cycles."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable

import pytest

from tests.actors.kit import until
from tests.daemon.host_kit import Daemon
from tests.daemon.http_kit import EventReader, Stage

SCRIPTS = {
    "an answer": [{"text": "ok"}],
    "tools": [
        {"calls": [{"tool": "bash", "arguments": {"command": "echo hi"}}]},
        {"calls": [{"tool": "write", "arguments": {"path": "new", "content": "1"}}]},
        {"text": "ok"},
    ],
    "tools that fail": [
        {"calls": [{"tool": "read", "arguments": {"path": "nothing"}}]},
        {"calls": [{"tool": "no such tool", "arguments": {}}]},
        {"calls": [{"tool": "bash", "arguments": "{no JSON"}]},
        {"text": "ok"},
    ],
    "a background job": [
        {"calls": [{"tool": "bash", "arguments": {"command": "echo hi", "background": True}}]},
        {"text": "ok"},
        {"text": "ok"},
        {"text": "ok"},
    ],
    "a sub-agent": [
        {"calls": [{"tool": "agent", "arguments": {"prompt": "for the child"}}]},
        {"for": "for the child", "text": "ok"},
        {"text": "ok"},
    ],
    "a sub-agent in the background": [
        {"calls": [{"tool": "agent", "arguments": {"prompt": "for the child", "background": True}}]},
        {"for": "for the child", "text": "ok"},
        {"text": "ok"},
        {"text": "ok"},
        {"text": "ok"},
    ],
    "a model that fails": [{"error": {"code": "BAD_REQUEST", "status": 400, "message": "no"}}],
    "a retry": [
        {"error": {"code": "RATE_LIMIT", "status": 429, "retry_after_ms": 1, "message": "later"}},
        {"text": "ok"},
    ],
}


def garbage_of(work: Callable[[], object]) -> Counter[str]:
    """What only a collection frees after ``work``: objects of the product, by their class."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        work()
        gc.collect()
        kinds = [type(each) for each in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return Counter(kind.__qualname__ for kind in kinds if kind.__module__.startswith("dsh_actors."))


def test_the_test_sees_a_cycle(daemon: Daemon) -> None:
    def work() -> None:
        info = daemon.host.get(daemon.agent())
        ring = [info]
        ring.append(ring)  # type: ignore[arg-type]

    assert garbage_of(work) == {"AgentInfo": 1}


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_agent_that_worked_leaves_no_garbage(daemon: Daemon, name: str) -> None:
    script = daemon.cwd / "script.json"
    script.write_text(json.dumps(SCRIPTS[name]))
    expected = "provider_error" if name == "a model that fails" else "completed"

    def work() -> None:
        one = daemon.agent("task", model=f"scripted/{script}", approve="all", sandbox="off")
        assert daemon.end(one).reason == expected
        daemon.host.dispose(one)

    assert garbage_of(work) == {}


def test_an_agent_that_slept_was_forked_and_cancelled_leaves_no_garbage(daemon: Daemon) -> None:
    def work() -> None:
        one = daemon.agent("first")
        daemon.end(one)
        daemon.lay_down(one)
        daemon.host.deliver(one, "second")
        daemon.end(one)
        other = daemon.host.fork(one, prompt="third").id
        daemon.end(other)
        stopped = daemon.agent("fourth", model="manual/m")
        daemon.manual.next_stream()
        daemon.host.cancel(stopped)
        assert daemon.end(stopped).reason == "interrupted"
        for each in (one, other, stopped):
            daemon.host.dispose(each)
        assert daemon.states() == {}

    assert garbage_of(work) == {}


def test_requests_and_streams_leave_no_garbage(stage: Stage) -> None:
    def work() -> None:
        for path in ("/v1/agents/a", "/v1/agents/nobody", "/v1/nothing", "/v1/agents?limit=x"):
            stage.client.get(path)
        assert stage.client.ask("DELETE", "/v1/events").status == 405
        reader = EventReader(stage.client, "/v1/agents/a/events")
        reader.leave()
        until(lambda: stage.server.connections == 0)

    assert garbage_of(work) == {}
