"""What the tests of sub-agents share: a harness with a scripted model or one that is played by hand."""

from __future__ import annotations

import json
import queue
from pathlib import Path
from typing import Any

from dsh_actors.config import load_config
from dsh_actors.core.events import Event
from dsh_actors.core.messages import text_of
from dsh_actors.core.options import AgentOptions, Limits
from dsh_actors.core.text import JsonObject
from dsh_actors.harness import AgentHandle, Harness
from dsh_actors.ports import LlmProvider, ToolOutput, ToolSpec
from dsh_actors.runtime.actor import live_actors
from dsh_actors.runtime.tasks import live_tasks
from dsh_actors.testing.manual import ManualProvider
from dsh_actors.testing.scripted import ScriptedProvider

PATIENCE_S = 20.0


def call(tool: str, **arguments: Any) -> JsonObject:
    return {"tool": tool, "arguments": arguments}


def delegate(*prompts: str, **more: Any) -> JsonObject:
    """An entry that gives each prompt to an agent."""
    return {"calls": [call("agent", prompt=prompt, **more) for prompt in prompts]}


class HeldTool:
    """A tool that waits until the test lets it go; ``began`` says that it runs."""

    def __init__(self, name: str = "held") -> None:
        self.spec = ToolSpec(name, "waits", {"type": "object"}, changes=False)
        self.began: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.go: queue.SimpleQueue[str] = queue.SimpleQueue()

    def is_parallel(self, arguments: JsonObject) -> bool:
        return True

    def execute(self, arguments: JsonObject, context: Any) -> ToolOutput:
        self.began.put(context.session_id)
        undo = context.cancel.on_cancel(lambda: self.go.put("cancelled"))
        try:
            return ToolOutput(self.go.get())
        finally:
            undo()


class Troupe:
    """The harness under test. ``events`` are those of the agents that `agent` made, all in one list."""

    def __init__(self, folder: Path) -> None:
        self.cwd = folder / "work"
        self.cwd.mkdir()
        self.home = folder / "home"
        self.model: LlmProvider = ManualProvider()
        self.script = ScriptedProvider([], name="scripted")
        self.events: list[Event] = []
        self.held = HeldTool()
        self.answerer: Any = None
        self.harness = self.open()

    def open(self) -> Harness:
        config = load_config(env={"DSH_HOME": str(self.home)}, cwd=str(self.cwd))
        providers = {self.model.name: self.model, "scripted": self.script}
        harness = Harness.open(config, providers=providers, answerer=self.answerer)
        harness.scope.tool(self.held)
        return harness

    def close(self) -> None:
        self.harness.close()
        assert live_actors() == []
        assert live_tasks() == []

    def play(self, *entries: JsonObject) -> None:
        """Put the script in; each entry is one reply."""
        self.script.play(entries)

    def options(self, model: str = "scripted/m", limits: Limits | None = None, **more: Any) -> AgentOptions:
        return AgentOptions(model=model, cwd=str(self.cwd), limits=limits or Limits(), **more)

    def agent(self, *, setup: Any = None, **more: Any) -> AgentHandle:
        def prepared(scope: Any) -> Any:
            scope.observe("session/event", self.events.append)
            return setup(scope) if setup is not None else None

        return self.harness.create(self.options(**more), prepared)

    def results(self) -> list[str]:
        """The texts of tool results so far."""
        found = [event.data["message"]["content"][0] for event in self.of("tool/result")]
        return ["".join(part["text"] for part in block["content"]) for block in found]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.type == kind]

    def children(self) -> list[str]:
        """The ids of the sub-agents that the agents of this test started."""
        return [event.data["id"] for event in self.of("subagent/started")]

    def stored(self, session_id: str) -> list[Event]:
        return list(self.harness.storage.read(session_id))

    def prompt_with(self, task: str) -> str:
        """The messages of the first request of the agent whose task is this."""
        for request in self.script.requests:
            if any(text_of(message) == task for message in request.messages):
                return json.dumps([message.to_json() for message in request.messages])
        raise AssertionError(f"nobody was asked {task!r}")
