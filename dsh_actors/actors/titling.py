"""A title being written: a stream of the gateway beside the turn that ends in one message to the agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dsh_actors.actors import protocol as p
from dsh_actors.actors.boundary import failure_of, let_exits_pass
from dsh_actors.actors.wiring import Wiring
from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import CallConfig, Failure
from dsh_actors.core.request import ModelRequest
from dsh_actors.core.stream import BlockAssembler
from dsh_actors.core.titles import TITLE_TIMEOUT, judge_title
from dsh_actors.errors import HarnessError, UsageError
from dsh_actors.ports import LlmProvider, PreparedCall
from dsh_actors.runtime.timers import Timer, after

__all__ = ["TitleCall", "prepare_title"]

TIMEOUT_S = 60.0


def prepare_title(provider: LlmProvider, config: CallConfig) -> PreparedCall:
    """A call without thinking; the model's own way where it has no word for that. Raises as ``prepare``."""
    try:
        return provider.prepare(config)
    except UsageError as error:
        if error.code != "UNSUPPORTED_REASONING_EFFORT":
            raise
        return provider.prepare(replace(config, reasoning_effort=None))


class TitleCall:
    """``answer`` hears of the end exactly once, unless `cancel` comes first."""

    def __init__(
        self,
        wiring: Wiring,
        owner: p.Owner,
        effect: io.WriteTitle,
        answer: Callable[[io.TitleWritten], None],
    ) -> None:
        self._wiring = wiring
        self._owner = owner
        self.ticket = effect.ticket
        self._answer = answer
        self._assembler = BlockAssembler()
        self._is_over = False
        self._timer: Timer | None = None
        try:
            self._open(effect.request)
        except BaseException as error:  # a provider is foreign code
            let_exits_pass(error)
            self._end(failure_of(error))

    def cancel(self) -> None:
        """Give it up: nothing is heard of it any more."""
        self._close()
        self._wiring.gateway.tell(p.AbortModelStream(self._owner, self.ticket))

    def _open(self, request: ModelRequest) -> None:
        provider = self._wiring.providers.get(request.config.provider)
        if provider is None:
            raise HarnessError(f"there is no provider {request.config.provider!r}", code="NO_ADAPTER")
        call = prepare_title(provider, request.config)
        resolved = replace(request, header=replace(request.header, config=call.config))
        self._timer = after(TIMEOUT_S, self._expired)
        self._wiring.gateway.tell(
            p.OpenModelStream(
                self._owner, self.ticket, call, call.encoder(), resolved, (), self._on_chunks
            )
        )

    def _on_chunks(self, message: io.Chunks) -> None:
        assembler = self._assembler
        try:
            for chunk in message.chunks:
                assembler.feed(chunk)
            if assembler.finish is not None:
                failed = assembler.finish.kind in ("error", "aborted")
                self._end(judge_title(assembler.finish, () if failed else assembler.blocks()))
        except HarnessError as error:
            self._end(failure_of(error))

    def _expired(self) -> None:
        self._end(Failure(f"no title after {TIMEOUT_S:g} s", TITLE_TIMEOUT))
        self._wiring.gateway.tell(p.AbortModelStream(self._owner, self.ticket))

    def _end(self, outcome: str | Failure) -> None:
        if not self._is_over:
            self._close()
            self._answer(io.TitleWritten(self.ticket, outcome, self._assembler.usage))

    def _close(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
