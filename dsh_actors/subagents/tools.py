"""The tools with which a model sets other agents to work, speaks to them and waits for them.

Their texts are in every request: they are as short as they can be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dsh_actors.core.ids import SessionId
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import ToolError
from dsh_actors.ports import ToolContext, ToolOutput, ToolSpec

if TYPE_CHECKING:
    from dsh_actors.subagents.service import Subagents

__all__ = ["agent_tools"]

LONGEST_S = 30 * 86_400.0
"""These tools end by themselves; no limit of the pool may come before theirs."""

_TEXT: JsonObject = {"type": "string"}
_SECONDS: JsonObject = {"type": "number"}

ServiceOf = Callable[[], "Subagents"]


def _spec(name: str, description: str, properties: JsonObject, *required: str, **more: Any) -> ToolSpec:
    parameters: JsonObject = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        parameters["required"] = list(required)
    return ToolSpec(
        name, description, parameters, changes=False, timeout_s=LONGEST_S, holds_slot=False, **more
    )


class _AgentTool:
    """``act`` gets the service, the agent that calls, the arguments and the context."""

    def __init__(
        self,
        spec: ToolSpec,
        service_of: ServiceOf,
        act: Callable[[Subagents, SessionId, JsonObject, ToolContext], ToolOutput],
    ) -> None:
        self.spec = spec
        self._service_of = service_of
        self._act = act

    def is_parallel(self, arguments: JsonObject) -> bool:
        return True

    def execute(self, arguments: JsonObject, context: ToolContext) -> ToolOutput:
        """Raises `SubagentError` for what may not be, `UsageError` for what cannot."""
        return self._act(self._service_of(), context.session_id, arguments, context)


def agent_tools(service_of: ServiceOf) -> tuple[_AgentTool, ...]:
    """The tools of every agent, by name. ``service_of`` is called when one is used."""
    return tuple(_AgentTool(spec, service_of, act) for spec, act in _TOOLS)


def _agent(service: Subagents, caller: SessionId, arguments: JsonObject, context: ToolContext) -> ToolOutput:
    from dsh_actors.subagents.request import DEFAULT_TIMEOUT_S, ChildRequest
    from dsh_actors.subagents.words import tool_answer

    _require_words(arguments, "prompt")
    preset = arguments.get("preset")
    is_outside = preset in service.outside
    request = ChildRequest(
        prompt=arguments["prompt"],
        label=arguments.get("description"),
        preset=None if is_outside else preset,
        via=preset if is_outside else None,
        schema=arguments.get("schema"),
        timeout_s=_seconds(arguments) or DEFAULT_TIMEOUT_S,
        fork=arguments.get("context") == "fork",
    )
    if arguments.get("background"):
        run = service.start_continuable(caller, request)
        return ToolOutput(
            f"Agent {run.id} is at work. Its answer will come as a message.", meta={"agent": run.id}
        )
    run = service.spawn(caller, request)
    undo = context.cancel.on_cancel(run.stop)
    try:
        with service.place_lent(caller, context.cancel):
            end = run.result()
    finally:
        undo()
    return tool_answer(run.id, end)


def _send(service: Subagents, caller: SessionId, arguments: JsonObject, _context: ToolContext) -> ToolOutput:
    _require_words(arguments, "message")
    state = service.followup(caller, arguments["id"], arguments["message"])
    return ToolOutput(
        "It was told, and goes on." if state == "ready" else f"It was told, and is {state} already."
    )


def _interrupt(
    service: Subagents, caller: SessionId, arguments: JsonObject, _context: ToolContext
) -> ToolOutput:
    service.interrupt(caller, arguments["id"])
    return ToolOutput("Its turn was ended, if it had one.")


def _list(service: Subagents, caller: SessionId, _arguments: JsonObject, _context: ToolContext) -> ToolOutput:
    found = service.list(caller)
    return ToolOutput("\n".join(f"{each.id}  {each.state}  {each.label}" for each in found) or "none")


def _wait(service: Subagents, caller: SessionId, arguments: JsonObject, context: ToolContext) -> ToolOutput:
    with service.place_lent(caller, context.cancel):
        ends = service.wait(
            caller,
            arguments.get("ids"),
            any_of=arguments.get("any", False),
            timeout_s=_seconds(arguments),
            cancel=context.cancel,
        )
    if not ends:
        return ToolOutput("None of them is at work.")
    lines = (f"{child}: {'at work' if end is None else end.reason}" for child, end in ends.items())
    return ToolOutput("\n".join(lines))


def _require_words(arguments: JsonObject, name: str) -> None:
    if not arguments[name].strip():
        raise ToolError(f"the {name} is blank", code="INVALID_ARGS")


def _seconds(arguments: JsonObject) -> float | None:
    seconds = arguments.get("timeout_s")
    if seconds is None:
        return None
    if not 0 < seconds <= LONGEST_S:
        raise ToolError(f"timeout_s must be above 0 and at most {LONGEST_S:g}", code="INVALID_ARGS")
    return float(seconds)


_TOOLS = (
    (
        _spec(
            "agent",
            "Give a task to another agent and get its answer; several calls in one reply work side by side. "
            "It knows only the prompt, with context fork also this conversation. In the background its "
            "answer comes later, as a message.",
            {
                "prompt": _TEXT,
                "description": _TEXT,
                "preset": _TEXT,
                "schema": {"type": "object"},
                "background": {"type": "boolean"},
                "context": {"type": "string", "enum": ["fresh", "fork"]},
                "timeout_s": _SECONDS,
            },
            "prompt",
            delegates=True,
        ),
        _agent,
    ),
    (
        _spec("agent_interrupt", "End the turn of a background agent.", {"id": _TEXT}, "id"),
        _interrupt,
    ),
    (
        _spec("agent_list", "Your background agents and their states.", {}),
        _list,
    ),
    (
        _spec(
            "agent_send",
            "Tell a background agent something; one that is done goes on.",
            {"id": _TEXT, "message": _TEXT},
            "id",
            "message",
            delegates=True,
        ),
        _send,
    ),
    (
        _spec(
            "agent_wait",
            "Wait until background agents (all of yours, or ids) are done, or any of them.",
            {
                "ids": {"type": "array", "items": _TEXT},
                "any": {"type": "boolean"},
                "timeout_s": _SECONDS,
            },
        ),
        _wait,
    ),
)
