"""The tool pool actor: runs prepared tool calls in bounded slots and answers each exactly once.

Tools are foreign code: what they answer is brought into a form that the log can hold, or refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from dsh_actors.actors import protocol as p
from dsh_actors.actors.boundary import loggable_result
from dsh_actors.core import turn_io as io
from dsh_actors.core.ids import Ticket
from dsh_actors.core.redaction import Redactor
from dsh_actors.core.schema import violations
from dsh_actors.core.scope import run_chain
from dsh_actors.core.text import JsonObject, bound_text, clean_json, clean_text, shorten
from dsh_actors.errors import HarnessError, ProtocolError, ToolDenied, ToolError, error_chain
from dsh_actors.ports import CancelToken, Tool, ToolContext, ToolOutput
from dsh_actors.runtime.actor import BaseActor
from dsh_actors.runtime.files import run_tool_native
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.tasks import (
    Cancelled,
    DeadlinePassed,
    Slots,
    Task,
    TaskEnd,
    TaskKilled,
    deadline,
    start_task,
)

__all__ = ["RunningCall", "RunningCalls", "ToolPoolActor", "denied", "failed"]

CANCEL_GRACE_S = 12.0
"""A cancelled call that has not answered after this is reported as of unknown outcome."""
TIMEOUT_GRACE_S = 15.0
"""Tools end themselves at their timeout; this much later the pool stops waiting for them."""
ECHO_LIMIT = 1_000


@dataclass(eq=False, slots=True)
class RunningCall:
    """``dispatched``: the tool's own code was reached, so that it may have had an effect."""

    task: Task | None = None
    dispatched: bool = False


RunningCalls = dict[tuple[p.Owner, Ticket], RunningCall]


class ToolPoolActor(BaseActor):
    """Owns: the tool slots of the whole process and the calls that run.
    Receives: RunToolCall, CancelToolCall.
    Sends: `turn_io.ToolRan`, once for each call it received, also for one that it has to give up.
    Waits for: nothing; a call runs in a task of its own.
    Dies when: a message is malformed (a fault of ours); running calls still answer.
    """

    def __init__(
        self,
        *,
        name: str,
        parent: Ref[Any] | None,
        generation: int,
        slots: Slots,
        redactor: Redactor,
        running: RunningCalls,
    ) -> None:
        super().__init__(name=name, parent=parent, generation=generation)
        self._slots = slots
        self._redactor = redactor
        self._running = running

    def receive(self, message: Any) -> Any:
        match message:
            case p.RunToolCall():
                self._start(message)
            case p.CancelToolCall():
                running = self._running.get((message.owner, message.ticket))
                if running is not None and running.task is not None:
                    running.task.kill(CANCEL_GRACE_S, message.cause)
            case _:
                raise ProtocolError(f"{self.name} cannot use a {type(message).__name__}")

    def _start(self, message: p.RunToolCall) -> None:
        key, running = (message.owner, message.ticket), RunningCall()
        self._running[key] = running

        def work(token: CancelToken) -> io.ToolResult:
            return self._presentable(self._run(message, token, running))

        def deliver(end: TaskEnd[io.ToolResult]) -> None:
            if self._running.get(key) is running:
                del self._running[key]
            result = end.value
            if result is None:
                error = failed(end.error, message.call.name, dispatched=running.dispatched)
                result = self._presentable(error)
            message.reply(io.ToolRan(message.ticket, message.index, result))

        name = f"tool {message.call.name} {message.owner.session}"
        running.task = start_task(work, deliver, name=name)

    def _run(self, message: p.RunToolCall, token: CancelToken, running: RunningCall) -> io.ToolResult:
        call, tool = message.call, message.tool
        if tool is None:
            raise ToolError(f"there is no tool named {shorten(call.name, 80)!r} here", code="UNKNOWN_TOOL")
        if call.problem is not None:
            return _invalid_arguments(call.problem, tool.spec.parameters)
        found = violations(tool.spec.parameters, call.arguments)
        if found:
            return _invalid_arguments("; ".join(found), tool.spec.parameters)
        with self._slots.taken(token) if tool.spec.holds_slot is not False else nullcontext():
            context = message.make_context(call.id, token, tool)
            body: Callable[[], ToolOutput] = lambda: _execute(tool, call.arguments, context)  # noqa: E731
            running.dispatched = True
            if message.interceptors:
                payload = {"session": message.owner.session, "call": call, "cancel": token}
                output = run_chain(list(message.interceptors), payload, body)
            else:
                output = body()
        if not isinstance(output, ToolOutput):
            raise ToolError(f"the tool answered with a {type(output).__name__}", code="INVALID_TOOL_OUTPUT")
        return _as_result(output, context.output_limit_bytes)

    def _presentable(self, result: io.ToolResult) -> io.ToolResult:
        """What may be logged: no secret, well-formed text, data that JSON can hold."""
        try:
            # Cleaned first: that refuses what has no end, and joins halves of a secret.
            meta = self._redactor.json(clean_json(result.meta)) if result.meta is not None else None
            events = tuple((kind, self._redactor.json(clean_json(data))) for kind, data in result.events)
            text = self._redactor.text(clean_text(result.text))
            images: Any = tuple(map(self._redactor.block, result.images))
            return loggable_result(replace(result, text=text, meta=meta, events=events, images=images))
        except Exception as error:
            # `EventRefused`, or whatever a value does that is not what it should be, or nests without end.
            text = f"Error: the tool's answer cannot be used: {shorten(error_chain(error), 500)}"
            return io.ToolResult(
                self._redactor.text(clean_text(text)), is_error=True, code="INVALID_TOOL_OUTPUT"
            )


def _execute(tool: Tool, arguments: JsonObject, context: ToolContext) -> ToolOutput:
    with deadline(context.timeout_s + TIMEOUT_GRACE_S):
        if tool.spec.native:
            return run_tool_native(tool.execute, arguments, context)
        return tool.execute(arguments, context)


def _as_result(output: ToolOutput, limit_bytes: int) -> io.ToolResult:
    # Twice the limit: tools bound their own output, with better places to cut than this.
    text = bound_text(output.text, 2 * limit_bytes)
    return io.ToolResult(
        text if text.strip() else "(no output)",
        output.is_error,
        output.code,
        None,
        output.meta,
        output.events,
        output.contexts,
        output.concludes,
        output.images,
    )


def _invalid_arguments(problem: str, schema: JsonObject) -> io.ToolResult:
    wanted = shorten(json.dumps(schema, ensure_ascii=False, separators=(",", ":")), ECHO_LIMIT - 300)
    text = f"Error: {shorten(problem, 250)}. The tool was not run. Its parameters: {wanted}"
    return io.ToolResult(text, is_error=True, code="INVALID_ARGS", name="ToolError")


def denied(tool: str, rule: str, reason: str, hint: str | None) -> io.ToolResult:
    """The one form of every refusal: the model reads it, and the run's list of denials is made from it."""
    meta = {"denied": {"tool": tool, "rule": rule, "reason": reason, "hint": hint}}
    return io.ToolResult(f"Error: {reason}", is_error=True, code="DENIED", name="ToolDenied", meta=meta)


def failed(error: BaseException | None, tool: str, *, dispatched: bool = True) -> io.ToolResult:
    """The result of a call that raised ``error``; ``dispatched`` says whether its tool was reached."""
    match error:
        case ToolDenied():
            return denied(tool, error.rule, error.message, error.hint)
        case TaskKilled() | Cancelled() if not dispatched:
            text = "Error: the call was cancelled before its tool began"
            return io.ToolResult(text, is_error=True, code="ABORTED_BEFORE_DISPATCH", name="AbortError")
        case TaskKilled() | None:
            text = "the call was cancelled and did not stop in time; its outcome is unknown"
            return io.ToolResult(f"Error: {text}", is_error=True, code="ABORTED", name="AbortError")
        case Cancelled():
            text = "Error: the call was cancelled while its tool ran"
            return io.ToolResult(text, is_error=True, code="ABORTED", name="AbortError")
        case DeadlinePassed():
            text = f"Error: {tool} did not end in time; what it had begun may still go on"
            return io.ToolResult(text, is_error=True, code="TOOL_TIMEOUT", name="ToolTimeoutError")
        case HarnessError():
            hint = f" ({error.hint})" if error.hint else ""
            return io.ToolResult(
                f"Error: {error.message}{hint}", is_error=True, code=error.code, name=type(error).__name__
            )
        case _:
            text = f"Error: {tool} failed: {shorten(error_chain(error), 2_000)}"
            return io.ToolResult(text, is_error=True, code="TOOL_FAILED", name=type(error).__name__)
