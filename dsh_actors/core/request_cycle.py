"""The model half of a step: prepare a call, make it durable, stream it, and retry what failed.

Retries stay inside the step. What is sent is derived from the log; a digest of it is logged
beside the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import CallConfig, Failure, Finish, Usage
from dsh_actors.core.ids import derived_message_id
from dsh_actors.core.messages import (
    Block,
    Message,
    ModelSource,
    PluginSource,
    TextBlock,
    ToolCallBlock,
    user_message,
)
from dsh_actors.core.request import ModelRequest, RequestDigest, RequestHeader, ToolSchema
from dsh_actors.core.retry import Retry
from dsh_actors.core.stream import BlockAssembler
from dsh_actors.core.text import JsonObject
from dsh_actors.core.titles import TitleCycle
from dsh_actors.core.turn_env import Phase, TurnSink

if TYPE_CHECKING:  # a conversation whose model has no known window measures nothing
    from dsh_actors.core.tokens import Measurement, TokenMeter

__all__ = ["RequestCycle"]

_NUDGE = "Your last reply was empty. Go on: call a tool, or give your final answer as text."


@dataclass(slots=True)
class _Attempt:
    provider: str
    model: str
    request: ModelRequest
    began: int
    measured: Measurement | None
    assembler: BlockAssembler = field(default_factory=BlockAssembler)
    chunk_seqs: list[int] = field(default_factory=list)
    failure: Failure | None = None
    billed: bool = False


@dataclass(slots=True)
class _Step:
    number: int
    system: str | None
    tools: tuple[ToolSchema, ...]
    series: bool
    retries: int = 0
    retries_by_code: dict[str, int] = field(default_factory=dict)
    retry_id: str = ""
    max_output: int | None = None


class RequestCycle:
    """Lives as long as its agent: it remembers what was sent last, so unchanged headers cost nothing."""

    def __init__(self, turn: TurnSink) -> None:
        self._turn = turn
        self.titles = TitleCycle(turn)
        self._step = _Step(0, None, (), False)
        self._attempt: _Attempt | None = None
        self._digest = RequestDigest()
        self._sent: RequestHeader | None = None
        self._logged: RequestHeader | None = None
        self._meter: TokenMeter | None = None
        self._lowered = False

    def begin_step(
        self, number: int, system: str | None, tools: tuple[ToolSchema, ...], *, series: bool
    ) -> None:
        self._step = _Step(number, system, tools, series)
        self._attempt = None
        self._prepare()

    def let_go(self) -> None:
        """The agent is over: without the way back, its memory is free at once and not at a collection."""
        del self._turn, self.titles._turn

    def drop(self) -> None:
        """Forget the attempt under way. What it used is paid for all the same."""
        if self._attempt is not None:
            self._bill(self._attempt)
        self._attempt = None

    def _prepare(self) -> None:
        turn, step, proposal = self._turn.state.last_turn, self._step.number, self._proposal()
        self._turn.start(Phase.CALLING, lambda ticket: io.AskRequest(ticket, turn, step, proposal))

    def _proposal(self) -> CallConfig:
        """The agent's own configuration at first, then what was sent, less what an adapter filled in."""
        logged = self._turn.state.request_header
        if self._sent is None or logged is None:
            return self._turn.env.config
        asked = logged.asked()
        if self._step.max_output is not None:
            self._lowered = True
            return replace(asked, max_tokens=self._step.max_output)
        if self._lowered:
            # The limit was lowered to make one request fit; the next may fit without that.
            self._lowered = False
            return replace(asked, max_tokens=self._turn.env.config.max_tokens)
        return asked

    def on_call(self, ready: io.CallReady) -> None:
        turn, config, filled = self._turn, ready.config, ready.adapter_defaults
        if self._step.max_output is not None:
            # Nobody asked for this limit: a session that is resumed here must not keep it.
            filled |= {"maxTokens"}
        messages, measured = turn.state.surface.messages(), None
        wanted = RequestHeader(config, filled, self._step.system or None, self._step.tools)
        if ready.context_window is not None and "maxTokens" in ready.adapter_defaults:
            measured = self.measure(wanted, messages)
            wanted = _fitted(wanted, ready.context_window, measured)
        header = self._log_header(wanted)
        context: JsonObject = {"provider": config.provider, "model": config.model}
        if ready.context_window is not None:
            context["contextWindow"] = ready.context_window
        if context != turn.state.request_context:
            turn.emit("request/context", context)
        request = ModelRequest(header, messages, turn.state.header.id)
        proof = {"digest": self._digest.update(request), "messages": len(request.messages)}
        sent = turn.emit("request/digest", turn.place | proof, ignorable=True)
        self._attempt = _Attempt(config.provider, config.model, request, sent.time, measured)
        self.titles.on_call(config)
        turn.start(Phase.FLUSHING, io.Flush)

    def measure(self, header: RequestHeader, messages: Sequence[Message]) -> Measurement:
        """What a request with these parts holds. Costs what was added since it was asked last."""
        if self._meter is None:
            from dsh_actors.core.tokens import TokenMeter

            self._meter, state = TokenMeter(), self._turn.state
            if state.request_header is not None:
                self._meter.recall(state.request_header, state.surface.nodes, messages)
        return self._meter.measure(ModelRequest(header, messages))

    def context(self) -> int | None:
        """The tokens that the next request would hold now; None before the first."""
        state = self._turn.state
        if state.request_header is None:
            return None
        return self.measure(self._sent or state.request_header, state.surface.messages()).tokens

    def _log_header(self, header: RequestHeader) -> RequestHeader:
        """Log the header if it is the first, or changed; returns the object sent before where it is equal."""
        logged = self._turn.state.request_header
        if self._sent is not None and not self._step.series:
            # Comparing with the object built last time is quick: it shares system text and tools.
            if header == self._sent and logged is self._logged:
                return self._sent
            if header == logged:
                self._sent, self._logged = header, logged
                return header
        reason = "series" if self._step.series else "change"
        if logged is None:
            reason = "initial"
        elif self._sent is None and not self._step.series:
            reason = "resume"
        self._step.series = False
        self._turn.emit("request/header", {"header": header.to_json(), "reason": reason})
        self._sent, self._logged = header, self._turn.state.request_header
        return header

    def on_flushed(self, message: io.Flushed) -> None:
        attempt = self._attempt
        if message.failure is not None or attempt is None:
            self._turn.fail(message.failure or Failure("no request was prepared", "UNKNOWN"))
            return
        turn, step = self._turn.state.last_turn, self._step.number
        self.titles.on_flushed()
        self._turn.start(Phase.STREAMING, lambda ticket: io.OpenStream(ticket, turn, step, attempt.request))

    def on_chunks(self, message: io.Chunks) -> None:
        attempt = self._attempt
        if attempt is None:
            return
        place, seqs, emit = self._turn.place, attempt.chunk_seqs, self._turn.emit
        for chunk in message.chunks:
            seqs.append(emit("assistant/chunk", {**place, "chunk": chunk.to_json()}).seq)
            attempt.assembler.feed(chunk)
            if isinstance(chunk, Finish):
                self._on_finish(attempt, chunk)
                return

    def _on_finish(self, attempt: _Attempt, finish: Finish) -> None:
        if finish.kind in ("error", "aborted"):
            code = "ABORTED" if finish.kind == "aborted" else "UNKNOWN"
            self._recover(attempt, finish.failure or Failure("the model call failed", code))
            return
        blocks = attempt.assembler.blocks()
        calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
        has_text = any(isinstance(block, TextBlock) and block.text.strip() for block in blocks)
        must_speak = self._turn.env.require_text and finish.kind != "max-tokens" and not finish.continues
        if must_speak and not calls and not has_text:
            self._recover(attempt, Failure("the model's answer has no text", "EMPTY_RESPONSE"))
            return
        self._log_reply(attempt, blocks, attempt.assembler.replay_state())
        if finish.kind == "max-tokens":
            self._turn.end_step({"kind": "max-tokens"})
        elif calls:
            self._turn.run_tools(calls)
        elif finish.continues:
            self._turn.end_step(None)
        else:
            self._turn.end_step({"kind": "completed"})

    def log_interrupted(self) -> None:
        """Keep what was readable of a reply that is cut short here."""
        if self._attempt is not None:
            blocks = self._attempt.assembler.interrupted_blocks()
            if blocks:
                self._log_reply(self._attempt, blocks, None, interrupted=True)

    def _log_reply(
        self,
        attempt: _Attempt,
        blocks: tuple[Block, ...],
        replay_state: JsonObject | None,
        *,
        interrupted: bool = False,
    ) -> None:
        turn, usage = self._turn, attempt.assembler.usage
        source = ModelSource(attempt.provider, attempt.model, replay_state)
        message_id = derived_message_id(turn.state.header.id, turn.state.next_seq)
        data = {**turn.place, "message": Message(message_id, "assistant", blocks, source).to_json()}
        if usage is not None:
            data["usage"] = usage.to_json()
        if interrupted:
            data["interrupted"] = True
        turn.emit("assistant/message", data, surface="append", sources=tuple(attempt.chunk_seqs))
        if usage is not None and attempt.measured is not None and self._meter is not None:
            self._meter.anchor(attempt.request.header, attempt.measured.estimated, usage)
        self.drop()

    def _bill(self, attempt: _Attempt) -> None:
        """Count the cost of an attempt once, whatever became of it.

        One that the provider did not count is estimated for a limit on the cost, which must hold.
        """
        usage, env = attempt.assembler.usage, self._turn.env
        if usage is None and env.watch.limits.max_cost is not None:
            usage = self._estimated_usage(attempt)
        if usage is not None and not attempt.billed:
            attempt.billed = True
            env.watch.spend(env.cost_of(f"{attempt.provider}/{attempt.model}", usage, attempt.began))

    def _estimated_usage(self, attempt: _Attempt) -> Usage | None:
        """What an attempt took by estimate; None for one that brought nothing."""
        from dsh_actors.core.tokens import reply_usage

        assembler = attempt.assembler
        is_whole = assembler.finish is not None and assembler.finish.kind not in ("error", "aborted")
        blocks = assembler.blocks() if is_whole else assembler.interrupted_blocks()
        if not blocks and not is_whole:
            return None
        return reply_usage(self.measure(attempt.request.header, attempt.request.messages).tokens, blocks)

    # --- failure and retry -------------------------------------------------------------------

    def _recover(self, attempt: _Attempt, failure: Failure) -> None:
        attempt.failure = failure
        self._bill(attempt)
        step, turn = self._step, self._turn.state.last_turn
        of_code = step.retries_by_code.get(failure.code, 0)
        self._turn.start(
            Phase.RECOVERING,
            lambda ticket: io.AskRequestError(
                ticket, turn, step.number, attempt.provider, failure, step.retries, of_code
            ),
        )

    def on_error_decided(self, message: io.ErrorDecided) -> None:
        attempt, decision = self._attempt, message.decision
        if attempt is None or attempt.failure is None:
            return
        if not isinstance(decision, Retry):
            self._turn.fail(attempt.failure)
            return
        state = self._turn.state
        reached = self._turn.env.watch.before_retry(state.counters, state.unbilled)
        if reached is not None:
            self._turn.stop_at(reached)
            return
        self._log_retry(attempt.provider, attempt.failure, decision)
        self._step.max_output = decision.max_output or self._step.max_output
        if decision.nudge:
            source = PluginSource("empty-reply", "notice", {"summary": "the reply was empty"})
            message_id = derived_message_id(state.header.id, state.next_seq)
            self._turn.log_user_message(user_message(message_id, _NUDGE, source))
        self._turn.start(Phase.BACKOFF, lambda ticket: io.StartTimer(ticket, decision.delay_ms))

    def _log_retry(self, provider: str, failure: Failure, decision: Retry) -> None:
        step, state, most = self._step, self._turn.state, self._turn.env.watch.limits.max_retries
        step.retries += 1
        step.retries_by_code[failure.code] = step.retries_by_code.get(failure.code, 0) + 1
        step.retry_id = step.retry_id or f"{state.header.id}:{state.next_seq}"
        data = {
            "retryId": step.retry_id,
            **self._turn.place,
            "provider": provider,
            "mode": "normal",
            "policyKey": provider,
            "retry": step.retries,
            "maxRetries": limit if (limit := decision.max_retries) is not None else most,
            "delayMs": decision.delay_ms,
            "failure": failure.to_json(),
        }
        self._turn.emit("llm/retry", data)

    def on_timer(self) -> None:
        step = self._step
        data = {"retryId": step.retry_id, **self._turn.place, "retry": step.retries}
        self._turn.emit("llm/retry-started", data)
        self._prepare()


def _fitted(header: RequestHeader, window: int, prompt: Measurement) -> RequestHeader:
    """The header with a default output limit that the window has room for beside the prompt."""
    from dsh_actors.core.tokens import fitting_output

    wanted = header.config.max_tokens
    if wanted is None:
        return header
    limit = fitting_output(window, prompt, wanted)
    return header if limit == wanted else replace(header, config=replace(header.config, max_tokens=limit))
