"""Carries out the turn machine's effects for one agent: nothing here decides, and nothing here waits.

What is quick is answered at once; the rest is work elsewhere whose answer is a message to the agent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, assert_never

from dsh_actors.actors import protocol as p
from dsh_actors.actors.boundary import (
    check_message,
    error_payload,
    failure_of,
    let_exits_pass,
    loggable_result,
)
from dsh_actors.actors.chains import Answer, Chains
from dsh_actors.actors.wiring import AgentParts, Wiring
from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import CallConfig, Failure, Finish
from dsh_actors.core.ids import SessionId, Ticket
from dsh_actors.core.prompt import context_snapshot, has_computed_text, system_prompt, tool_schemas
from dsh_actors.core.request import ToolSchema
from dsh_actors.core.retry import MAX_TIMER_MS, GiveUp, Retry, RetryPolicy, decide
from dsh_actors.core.sharing import shared
from dsh_actors.core.text import JsonObject, clean_text, require_lossless
from dsh_actors.errors import HarnessError, ProtocolError
from dsh_actors.ports import PreparedCall, RequestEncoder
from dsh_actors.runtime.ref import Ref
from dsh_actors.runtime.timers import Timer, after

if TYPE_CHECKING:
    from dsh_actors.actors.titling import TitleCall

__all__ = ["EffectRunner"]

_lives = count(1)


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
        # Tickets begin anew with each life of an agent; work that an earlier one left behind is not ours.
        self._owner = p.Owner(session_id, next(_lives))
        self._wiring = wiring
        self._parts = parts
        self._scope = parts.scope
        self._ref = ref
        self._feed = feed
        self._chains = Chains(session_id, parts.scope, ref, feed)
        self._timers: dict[Ticket, Timer] = {}
        self._running_tools: dict[Ticket, None] = {}
        self._stream: Ticket | None = None
        self._title: TitleCall | None = None
        self._call: PreparedCall | None = None
        self._encoder: tuple[str, str, RequestEncoder] | None = None
        self._prompt: tuple[int, str, tuple[ToolSchema, ...]] | None = None

    def close(self) -> None:
        """Give up all work: the agent is gone."""
        self._chains.close()
        for timer in self._timers.values():
            timer.cancel()
        for ticket in self._running_tools:
            self._wiring.pool.tell(p.CancelToolCall(self._owner, ticket, {"kind": "disposed"}))
        if self._stream is not None:
            self._wiring.gateway.tell(p.AbortModelStream(self._owner, self._stream))
        if self._title is not None:
            self._title.cancel()
        self._parts.gate.close()

    def tool_ended(self, ticket: Ticket) -> None:
        self._running_tools.pop(ticket, None)

    def on_answer(self, message: Answer) -> None:
        self._chains.on_answer(message)

    def observe(self, kind: str, *payloads: Any) -> None:
        """Call the observers of a notification, for each payload in turn; what they raise is contained."""
        observers = self._scope.handlers_of(kind)
        if not observers:
            return
        for payload in payloads:
            for observer in tuple(observers):
                try:
                    observer(payload)
                except BaseException as error:
                    # Observers are foreign code and cannot hurt the loop; the failure is theirs to look at.
                    let_exits_pass(error)
                    if kind != "agent/error":
                        self.observe("agent/error", error_payload(self._id, failure_of(error)))

    def carry_out(self, effect: io.Effect) -> None:
        match effect:
            case io.Notify():
                self._notify(effect)
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
            case io.WriteTitle():
                self._write_title(effect)
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

    def _notify(self, effect: io.Notify) -> None:
        payload: Mapping[str, Any] = effect.payload
        if effect.kind == "agent/error" and "error" in payload:
            failure = Failure.from_json(payload["error"])
            payload = error_payload(self._id, failure, payload.get("turn"), payload.get("step"))
        self.observe(effect.kind, {"session": self._id, **payload})

    def _cancel_work(self, effect: io.CancelWork) -> None:
        ticket = effect.ticket
        if ticket in self._running_tools:
            self._wiring.pool.tell(p.CancelToolCall(self._owner, ticket, effect.cause))
            return
        if self._title is not None and ticket == self._title.ticket:
            self._title.cancel()
            return
        self._chains.cancel(ticket, effect.cause)
        timer = self._timers.pop(ticket, None)
        if timer is not None:
            timer.cancel()
        self._feed(self._parts.gate.drop(ticket))
        if ticket == self._stream:
            self._wiring.gateway.tell(p.AbortModelStream(self._owner, ticket))

    # --- effects, in the order of a turn -----------------------------------------------------

    def _flush(self, ticket: Ticket | None) -> None:
        self._wiring.store.tell(p.FlushSession(self._id, ticket, self._ref.tell))

    def _assemble(self, effect: io.AssemblePrompt) -> None:
        def assemble() -> io.PromptReady:
            system, tools = self._prompt_parts()
            context = context_snapshot(self._scope)
            return io.PromptReady(effect.ticket, system, tools, context and clean_text(context))

        self._chains.settle(effect.ticket, assemble, lambda ready: [ready])

    def _prompt_parts(self) -> tuple[str, tuple[ToolSchema, ...]]:
        """System text and tools; unchanged ones are the same objects, which makes comparing them quick."""
        scope, known = self._scope, self._prompt
        revision = scope.total_revision()
        if known is not None and known[0] == revision and not has_computed_text(scope):
            return known[1:]
        system = shared(clean_text(system_prompt(scope)))
        if known is not None and known[0] == revision:
            tools = known[2]
        else:
            tools = tuple(map(shared, tool_schemas(scope)))
            require_lossless([tool.to_json() for tool in tools], "a tool's schema")
        self._prompt = (revision, system, tools)
        return system, tools

    def _ask_pre_step(self, effect: io.AskPreStep) -> None:
        def accept(decision: Any) -> list[io.Input]:
            if isinstance(decision, io.Enter):
                # The machine's own proposal needs no second look.
                if decision is not effect.default:
                    decision = io.Enter(tuple(decision.messages), bool(decision.series))
                    for message in decision.messages:
                        check_message(message, "a pre-step message")
            elif not isinstance(decision, io.Reject):
                raise ProtocolError(f"agent/pre-step answered with a {type(decision).__name__}")
            return [io.PreStepDecided(effect.ticket, decision)]

        payload = {"turn": effect.turn, "step": effect.step, "messages": effect.claimed}
        self._chains.ask("agent/pre-step", effect.ticket, payload, lambda: effect.default, accept)

    def _ask_request(self, effect: io.AskRequest) -> None:
        def accept(config: Any) -> list[io.Input]:
            if not isinstance(config, CallConfig):
                raise ProtocolError(f"agent/request answered with a {type(config).__name__}")
            provider = self._wiring.providers.get(config.provider)
            if provider is None:
                raise HarnessError(f"there is no provider {config.provider!r}", code="NO_ADAPTER")
            call = self._call = provider.prepare(config)
            window, defaults = call.context_window, frozenset(call.adapter_defaults)
            require_lossless([call.config.to_json(), sorted(defaults), window], "a prepared call")
            return [io.CallReady(effect.ticket, call.config, defaults, window)]

        payload = {"turn": effect.turn, "step": effect.step, "config": effect.proposal}
        self._chains.ask("agent/request", effect.ticket, payload, lambda: effect.proposal, accept)

    def _open_stream(self, effect: io.OpenStream) -> None:
        call = self._call
        assert call is not None  # a stream follows a prepared call
        key = (call.config.provider, call.config.model)
        if self._encoder is None or self._encoder[:2] != key:
            try:
                self._encoder = (*key, call.encoder())
            except BaseException as error:  # a provider is foreign code
                let_exits_pass(error)
                self._feed([io.Chunks(effect.ticket, (Finish("error", failure_of(error)),))])
                return
        self._stream = effect.ticket
        self._wiring.gateway.tell(
            p.OpenModelStream(
                self._owner,
                effect.ticket,
                call,
                self._encoder[2],
                effect.request,
                tuple(self._scope.handlers_of("llm/stream")),
                self._ref.tell,
            )
        )

    def _write_title(self, effect: io.WriteTitle) -> None:
        from dsh_actors.actors.titling import TitleCall  # most sessions have no model that writes titles

        self._title = TitleCall(self._wiring, self._owner, effect, self._ref.tell)

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
            if isinstance(decision, Retry):
                delay_ms: Any = decision.delay_ms
                if type(delay_ms) is not int or not 0 <= delay_ms <= MAX_TIMER_MS:
                    raise ProtocolError(f"agent/request-error asked for a delay of {delay_ms!r} ms")
                output: Any = decision.max_output
                if output is not None and (type(output) is not int or output < 1):
                    raise ProtocolError(f"agent/request-error asked for an output of {output!r} tokens")
            return [io.ErrorDecided(effect.ticket, decision)]

        payload = {"turn": effect.turn, "step": effect.step, "failure": effect.failure}
        self._chains.ask("agent/request-error", effect.ticket, payload, judge, accept)

    def _retry_policy(self, provider: str) -> RetryPolicy:
        """The provider's patience; of the two numbers of retries, its own and the run's, the lower."""
        known = self._wiring.providers.get(provider)
        policy = known.retry_policy if known is not None else RetryPolicy()
        most = self._parts.env.watch.limits.max_retries
        own = policy.max_retries
        return replace(policy, max_retries=most if own is None else min(own, most))

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

        self._chains.ask(
            "tools/pre-execute",
            ticket,
            {"call": call, "tool": tool},
            lambda: gate.decide(call, tool),
            lambda decision: gate.settle(ticket, index, call, decision, self._ref.tell),
            slow=not gate.is_quick,
            on_error=refused,
        )

    def _run_tool(self, effect: io.RunTool) -> None:
        self._running_tools[effect.ticket] = None
        tool = self._scope.visible_tools().get(effect.call.name)
        self._wiring.pool.tell(
            p.RunToolCall(
                self._owner,
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
            if result is not effect.result:  # which the pool, or the gate, has checked
                result = loggable_result(result)
            return [io.ToolFinalised(ticket, index, result)]

        def failed(failure: Failure) -> io.Input:
            return io.ToolFinalised(ticket, index, _error_result(failure))

        self._chains.ask(
            "tools/post-execute",
            ticket,
            {"call": effect.call, "result": effect.result},
            lambda: effect.result,
            accept,
            on_error=failed,
        )

    def _ask_stopping(self, effect: io.AskStopping) -> None:
        listeners = self._scope.handlers_of("agent/turn-stopping")
        done = io.StoppingDone(effect.ticket)
        if listeners:
            payload: JsonObject = {"turn": effect.turn, "reason": effect.reason}
            self._chains.tell(tuple(listeners), effect.ticket, payload, done)
        else:
            self._feed([done])


def _error_result(failure: Failure) -> io.ToolResult:
    return io.ToolResult(f"Error: {failure.message}", is_error=True, code=failure.code)
