"""The harness under measurement, in this process. For `tests.bench.worker` only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from dsh_actors.config import load_config
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.policy import ApprovalPolicy
from dsh_actors.core.scope import Scope
from dsh_actors.core.text import JsonObject
from dsh_actors.harness import Harness
from dsh_actors.ports import ToolContext, ToolOutput, ToolSpec

__all__ = ["NoteTool", "run_agents_at_once", "run_agents_in_turn", "run_harness_steps"]

PATIENCE_S = 300.0


class NoteTool:
    """A tool that costs nothing: it answers with its argument."""

    spec = ToolSpec(
        name="note",
        description="Say it back.",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        changes=False,
    )

    def is_parallel(self, arguments: JsonObject) -> bool:
        return False

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        return ToolOutput(arguments["text"])


class Watch:
    """What was said last, and the CPU time at each end of a step."""

    def __init__(self) -> None:
        self.cpu_s: list[float] = []
        self.answer = ""
        self.reason: object = None

    def setup(self, scope: Scope) -> None:
        scope.tool(NoteTool())
        scope.observe("session/event", self.observe)

    def observe(self, event: Any) -> None:
        if event.type == "step/end":
            self.cpu_s.append(time.process_time())
        elif event.type == "assistant/message":
            blocks = event.data["message"]["content"]
            self.answer = "".join(block["text"] for block in blocks if block["type"] == "text")
        elif event.type == "turn/end":
            self.reason = event.data["reason"]["kind"]


def _options(cwd: str) -> AgentOptions:
    return AgentOptions(model="openai/test", cwd=cwd, policy=ApprovalPolicy(mode="all"), sandbox="off")


def run_harness_steps(cwd: str, prompts: Iterable[str]) -> Iterator[list[float]]:
    """One agent a prompt, one after another; the CPU time at the start and at each end of a step."""
    with Harness.open(load_config(cwd=cwd)) as harness:
        for prompt in prompts:
            yield _one(harness, cwd, prompt).cpu_s


def run_agents_in_turn(cwd: str, prompts: Sequence[str]) -> list[str]:
    """One agent a prompt, one after another; their answers."""
    with Harness.open(load_config(cwd=cwd)) as harness:
        return [_one(harness, cwd, prompt).answer for prompt in prompts]


def run_agents_at_once(cwd: str, prompts: Sequence[str], all_started: Callable[[], None]) -> list[str]:
    """All agents at the same time; their answers."""
    with Harness.open(load_config(cwd=cwd)) as harness:
        watches = [Watch() for _ in prompts]
        handles = [harness.create(_options(cwd), watch.setup) for watch in watches]
        for handle, prompt in zip(handles, prompts, strict=True):
            handle.followup(prompt)
        all_started()
        for handle in handles:
            assert handle.when_idle(PATIENCE_S)
        for handle in handles:
            handle.dispose(PATIENCE_S)
        return [watch.answer for watch in watches]


def _one(harness: Harness, cwd: str, prompt: str) -> Watch:
    watch = Watch()
    handle = harness.create(_options(cwd), watch.setup)
    watch.cpu_s.append(time.process_time())
    handle.followup(prompt)
    assert handle.when_idle(PATIENCE_S)
    handle.dispose(PATIENCE_S)
    assert watch.reason == "completed", watch.reason
    return watch
