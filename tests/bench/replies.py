"""What the scripted server plays in the benchmarks, and the routes it plays it on."""

from __future__ import annotations

from typing import Any

from tests.model_server import C, T

__all__ = ["COMMAND", "ROUTES", "STEPS", "gate_route", "prompt", "work_prompts"]

STEPS = 20
WORK_STEPS = 10
COMMAND = "echo result of step @@N@@"
_PIECES = 3
_ANSWER = ["The ", "answer ", "of ", "@@R@@", "."]


def _steps(tool: str, arguments: dict[str, Any], count: int) -> dict[str, Any]:
    step = C(tool, arguments, text=["Let me ", "look at ", "that."], pieces=_PIECES)
    return {"entries": [*[step] * count, T(_ANSWER)], "after": "cycle"}


ROUTES: dict[str, Any] = {
    "note-*": _steps("note", {"text": "step @@N@@"}, STEPS),
    "bash-*": _steps("bash", {"command": COMMAND}, STEPS),
    "long-*": _steps("note", {"text": "step @@N@@"}, 1000),
    "work-*": _steps("note", {"text": "step @@N@@"}, WORK_STEPS),
    "stream-*": {"entries": [T([f"word{n} " for n in range(20)] + ["of ", "@@R@@"])], "after": "repeat"},
    "default": {"entries": [T("ok")], "after": "repeat"},
}
"""A route's name begins with what is done there; each agent has a route of its own."""


def gate_route(gate: str) -> dict[str, Any]:
    """The stream route, but after its first word each reply waits for ``gate``."""
    entries = [{**ROUTES["stream-*"]["entries"][0], "hold": gate}]
    return {"entries": entries, "after": "repeat"}


def prompt(route: str) -> str:
    return f"Work. [[route:{route}]]"


def work_prompts(name: str, count: int) -> list[str]:
    """Tasks of ten steps each, for agents that work side by side."""
    return [prompt(f"work-{name}-{n}") for n in range(count)]
