"""Carries out the turn machine's effects for one agent: nothing here decides, and nothing here waits.

What is quick is answered at once; the rest is work elsewhere whose answer is a message to the agent.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, assert_never

from dsh_actors.actors import protocol as p
from dsh_actors.actors.wiring import AgentParts, Wiring
from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import CallConfig, Failure
from dsh_actors.core.ids import SessionId, Ticket
from dsh_actors.core.prompt import context_snapshot, system_prompt, tool_schemas
from dsh_actors.core.request import ToolSchema
from dsh_actors.core.retry import GiveUp, Retry, RetryPolicy, decide
from dsh_actors.core.scope import run_chain
from dsh_actors.core.text import require_lossless
from dsh_actors.errors import HarnessError, ProtocolError, error_chain
from dsh_actors.ports import CancelToken, PreparedCall, RequestEncoder
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.tasks import Task, TaskEnd, deadline, start_task
from dsh_actors.runtime.timers import Timer, after

__all__ = ["Answer", "EffectRunner"]

INTERCEPTOR_DEADLINE_S = 600.0
"""An interceptor chain that takes longer has failed."""
KILL_GRACE_S = 1.0


Accept = Callable[[Any], list[io.Input]]
OnError = Callable[[Failure], io.Input] | None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker's interceptors came to."""

    ticket: Ticket
    end: TaskEnd[Any]
    accept: Accept
    on_error: OnError


class EffectRunner:
    """``feed`` takes inputs for the machine that are there at once; ``ref`` is where answers go later."""

    def __init__(
        self,
        session_id: SessionId,
        wiring: Wiring,
        parts: AgentParts,
        ref: Ref[Any],
        feed: Callable[[list[io.Input]], None],
    ) -> None:
        self._id = session_id
        self._wiring = wiring
        self._parts = parts
        self._scope = parts.scope
        self._ref = ref
        self._feed = feed
        self._tasks: dict[Ticket, Task] = {}
        self._timers: dict[Ticket, Timer] = {}
        self._running_tools: dict[Ticket, str] = {}
        self._stream: Ticket | None = None
        self._call: PreparedCall | None = None
        self._encoder: tuple[str, str, RequestEncoder] | None = None
        self._prompt: tuple[int, str, tuple[ToolSchema, ...]] | None = None

    def close(self) -> None:
        """Give up all work: the agent is gone."""
        for task in self._tasks.values():
            task.kill(KILL_GRACE_S, "stopped")
        for timer in self._timers.values():
            timer.cancel()
        for ticket in self._running_tools:
            self._wiring.pool.tell(p.CancelToolCall(self._id, ticket, {"kind": "disposed"}))
        if self._stream is not None:
            self._wiring.gateway.tell(p.AbortModelStream(self._id, self._stream))

    def tool_ended(self, ticket: Ticket) -> None:
        self._running_tools.pop(ticket, None)

    def observe(self, kind: str, *payloads: Any) -> None:
        """Call the observers of a notification, for each payload in turn; what they raise is contained."""
        observers = self._scope.handlers_of(kind)
        if not observers:
            return
        for payload in payloads:
            for observer in tuple(observers):
                try:
                    observer(payload)
                except Exception as error:
                    # Observers are foreign code and cannot hurt the loop; the failure is theirs to look at.
                    if kind != "agent/error":
                        self.observe("agent/error", {"session": self._id, "note": error_chain(error)})

    def carry_out(self, effect: io.Effect) -> None:
        match effect:
            case io.Notify():
                self.observe(effect.kind, {"session": self._id, **effect.payload})
            case io.Flush():
                self._flush(effect.ticket)
            case io.AssemblePrompt():
                self._assemble(effect)
            case io.AskPreStep():
                self._ask_pre_step(effect)
            case io.AskRequest():
                self._ask_request(effect)
            case io.OpenStream():
                self._open_stream(effect)
            case io.AskRequestError():
                self._ask_request_error(effect)
            case io.StartTimer():
                self._start_timer(effect.ticket, effect.delay_ms)
            case io.PrepareTool():
                self._prepare_tool(effect)
            case io.RunTool():
                self._run_tool(effect)
            case io.FinaliseTool():
                self._finalise_tool(effect)
            case io.AskStopping():
                self._ask_stopping(effect)
            case io.CancelWork():
                self._cancel_work(effect)
            case _:
                assert_never(effect)

    # --- answers now, or from a task ---------------------------------------------------------

    def _chain(
        self,
        point: str,
        ticket: Ticket,
        payload: dict[str, Any],
        default: Callable[[], Any],
        accept: Accept,
        *,
        slow: bool = False,
        on_error: OnError = None,
    ) -> None:
        """Answer at once where nobody intercepts and ``default`` is quick, otherwise from a worker.

        ``accept`` turns the chain's answer into the machine's inputs; it raises for one it cannot use.
        """
        handlers = self._scope.handlers_of(point)
        if handlers or slow:
            payload["session"] = self._id
            self._work(ticket, lambda: run_chain(handlers, payload, default), payload, accept, on_error)
        else:
            self._feed(self._accepted(ticket, default, accept, on_error))

    def _accepted(
        self, ticket: Ticket, answer: Callable[[], Any], accept: Accept, on_error: OnError
    ) -> list[io.Input]:
        try:
            return accept(answer())
        except Exception as error:  # interceptors, a provider's prepare, prompt sections: foreign code
            failure = _failure(error)
            return [on_error(failure) if on_error else io.WorkFailed(ticket, failure)]

    def _work(
        self,
        ticket: Ticket,
        work: Callable[[], Any],
        payload: dict[str, Any],
        accept: Accept,
        on_error: OnError,
    ) -> None:
        def run(token: CancelToken) -> Any:
            payload["cancel"] = token
            with deadline(INTERCEPTOR_DEADLINE_S):
                return work()

        self._tasks[ticket] = start_task(
            run,
            lambda end: self._ref.tell(Answer(ticket, end, accept, on_error)),
            name=f"interceptors {self._id}",
        )

    def on_answer(self, message: Answer) -> None:
        if self._tasks.pop(message.ticket, None) is None:
            return  # the work was cancelled

        def answer() -> Any:
            if message.end.error is not None:
                raise message.end.error
            return message.end.value

        self._feed(self._accepted(message.ticket, answer, message.accept, message.on_error))

    def _cancel_work(self, effect: io.CancelWork) -> None:
        ticket = effect.ticket
        if ticket in self._running_tools:
            self._wiring.pool.tell(p.CancelToolCall(self._id, ticket, effect.cause))
            return
        task, timer = self._tasks.pop(ticket, None), self._timers.pop(ticket, None)
        if task is not None:
            task.kill(KILL_GRACE_S, effect.cause)
        if timer is not None:
            timer.cancel()
        self._feed(self._parts.gate.drop(ticket))
        if ticket == self._stream:
            self._wiring.gateway.tell(p.AbortModelStream(self._id, ticket))

    # --- effects, in the order of a turn -----------------------------------------------------

    def _flush(self, ticket: Ticket | None) -> None:
        self._wiring.store.tell(p.FlushSession(self._id, ticket, self._ref.tell))

    def _assemble(self, effect: io.AssemblePrompt) -> None:
        def assemble() -> io.PromptReady:
            scope, revision = self._scope, self._scope.total_revision()
            if self._prompt is None or self._prompt[0] != revision:
                self._prompt = (revision, system_prompt(scope), tool_schemas(scope))
            return io.PromptReady(effect.ticket, self._prompt[1], self._prompt[2], context_snapshot(scope))

        self._feed(self._accepted(effect.ticket, assemble, lambda ready: [ready], None))

    def _ask_pre_step(self, effect: io.AskPreStep) -> None:
        def accept(decision: Any) -> list[io.Input]:
            if isinstance(decision, io.Enter):
                for message in decision.messages:
                    require_lossless(message.to_json(), "a pre-step message")
            elif not isinstance(decision, io.Reject):
                raise ProtocolError(f"agent/pre-step answered with a {type(decision).__name__}")
            return [io.PreStepDecided(effect.ticket, decision)]

        payload = {"turn": effect.turn, "step": effect.step, "messages": effect.claimed}
        self._chain("agent/pre-step", effect.ticket, payload, lambda: effect.default, accept)

    def _ask_request(self, effect: io.AskRequest) -> None:
        def accept(config: Any) -> list[io.Input]:
            if not isinstance(config, CallConfig):
                raise ProtocolError(f"agent/request answered with a {type(config).__name__}")
            provider = self._wiring.providers.get(config.provider)
            if provider is None:
                raise HarnessError(f"there is no provider {config.provider!r}", code="NO_ADAPTER")
            call = self._call = provider.prepare(config)
            return [io.CallReady(effect.ticket, call.config, call.adapter_defaults, call.context_window)]

        payload = {"turn": effect.turn, "step": effect.step, "config": effect.proposal}
        self._chain("agent/request", effect.ticket, payload, lambda: effect.proposal, accept)

    def _open_stream(self, effect: io.OpenStream) -> None:
        call = self._call
        assert call is not None  # a stream follows a prepared call
        key = (call.config.provider, call.config.model)
        if self._encoder is None or self._encoder[:2] != key:
            self._encoder = (*key, call.encoder())
        self._stream = effect.ticket
        self._wiring.gateway.tell(
            p.OpenModelStream(
                self._id,
                effect.ticket,
                call,
                self._encoder[2],
                effect.request,
                tuple(self._scope.handlers_of("llm/stream")),
                self._ref.tell,
            )
        )

    def _ask_request_error(self, effect: io.AskRequestError) -> None:
        def judge() -> Retry | GiveUp:
            return decide(
                self._retry_policy(effect.provider),
                effect.failure,
                effect.retries,
                effect.retries_of_code,
                random.random(),
                self._parts.remaining_ms(),
            )

        def accept(decision: Any) -> list[io.Input]:
            if not isinstance(decision, Retry | GiveUp):
                raise ProtocolError(f"agent/request-error answered with a {type(decision).__name__}")
            return [io.ErrorDecided(effect.ticket, decision)]

        payload = {"turn": effect.turn, "step": effect.step, "failure": effect.failure}
        self._chain("agent/request-error", effect.ticket, payload, judge, accept)

    def _retry_policy(self, provider: str) -> RetryPolicy:
        known = self._wiring.providers.get(provider)
        return known.retry_policy if known is not None else RetryPolicy()

    def _start_timer(self, ticket: Ticket, delay_ms: int) -> None:
        if delay_ms <= 0:
            self._feed([io.TimerFired(ticket)])
            return

        def fire() -> None:
            self._timers.pop(ticket, None)
            self._ref.tell(io.TimerFired(ticket))

        self._timers[ticket] = after(delay_ms / 1000, fire)

    def _prepare_tool(self, effect: io.PrepareTool) -> None:
        gate, ticket, index, call = self._parts.gate, effect.ticket, effect.index, effect.call
        tool: Any = self._scope.visible_tools().get(call.name)

        def refused(failure: Failure) -> io.Input:
            return io.ToolPrepared(ticket, index, _error_result(failure))

        self._chain(
            "tools/pre-execute",
            ticket,
            {"call": call, "tool": tool},
            lambda: gate.decide(call, tool),
            lambda decision: gate.settle(ticket, index, call, decision, self._ref.tell),
            slow=not gate.is_quick,
            on_error=refused,
        )

    def _run_tool(self, effect: io.RunTool) -> None:
        self._running_tools[effect.ticket] = effect.call.name
        tool = self._scope.visible_tools().get(effect.call.name)
        self._wiring.pool.tell(
            p.RunToolCall(
                self._id,
                effect.ticket,
                effect.index,
                effect.call,
                tool,  # type: ignore[arg-type]  # the scope keeps tools by a narrower protocol
                self._parts.make_context,
                tuple(self._scope.handlers_of("tools/execute")),
                self._ref.tell,
            )
        )

    def _finalise_tool(self, effect: io.FinaliseTool) -> None:
        ticket, index = effect.ticket, effect.index

        def accept(result: Any) -> list[io.Input]:
            if not isinstance(result, io.ToolResult):
                raise ProtocolError(f"tools/post-execute answered with a {type(result).__name__}")
            require_lossless([result.text, result.meta, *(list(e) for e in result.events)], "a tool result")
            return [io.ToolFinalised(ticket, index, result)]

        self._chain(
            "tools/post-execute",
            ticket,
            {"call": effect.call, "result": effect.result},
            lambda: effect.result,
            accept,
            on_error=lambda failure: io.ToolFinalised(ticket, index, _error_result(failure)),
        )
        self.observe("tools/result", {"session": self._id, "call": effect.call, "result": effect.result})

    def _ask_stopping(self, effect: io.AskStopping) -> None:
        listeners = self._scope.handlers_of("agent/turn-stopping")
        done = io.StoppingDone(effect.ticket)
        if not listeners:
            self._feed([done])
            return
        payload: dict[str, Any] = {"session": self._id, "turn": effect.turn}

        def listen() -> None:
            for listener in listeners:
                listener(payload)

        self._work(effect.ticket, listen, payload, lambda _: [done], None)


def _error_result(failure: Failure) -> io.ToolResult:
    return io.ToolResult(f"Error: {failure.message}", is_error=True, code=failure.code)


def _failure(error: BaseException | None) -> Failure:
    code = error.code if isinstance(error, HarnessError) else "UNKNOWN"
    return Failure(error_chain(error) if error is not None else "the work was dropped", code)
