"""What the streams of all wires have in common: how a response ends, and what its end means. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from dsh_actors.adapters.llm.errors import ErrorBody, body_failure, clean_message, request_id
from dsh_actors.core.chunks import Chunk, Failure, Finish, FinishKind, Usage, UsageChunk

__all__ = ["ReplyStream"]

_FAILED_FINISHES: Mapping[str, str] = {
    "content_filter": "CONTENT_FILTER",
    "sensitive": "CONTENT_FILTER",
    "refusal": "CONTENT_FILTER",
    "error": "SERVER",
    "abort": "SERVER",
    "aborted": "SERVER",
    "network_error": "TRANSPORT",
}

CONTEXT_FULL = "model_context_window_exceeded"


class ReplyStream(ABC):
    """One response. Feed events until `is_over`, then ask for the chunks that end it.

    ``reason`` is the wire's finish reason once it is known; ``is_silent`` until the first event;
    ``warnings`` names what was odd but could be used. ``meanings``: see `errors.body_failure`.
    ``finishes`` maps the wire's reasons for a reply that can be used.
    """

    finishes: ClassVar[Mapping[str, FinishKind]]

    def __init__(
        self,
        headers: Mapping[str, str],
        secret: str | None = None,
        meanings: Mapping[str, str] | None = None,
    ) -> None:
        self.is_over = False
        self.is_silent = True
        self.reason: str | None = None
        self.usage: Usage | None = None
        self.failure: Failure | None = None
        self.warnings: set[str] = set()
        self._headers = headers
        self._secret = secret
        self._meanings = meanings or {}
        self._count = 0

    @abstractmethod
    def feed(self, data: str, event: str, out: list[Chunk], is_tail: bool = False) -> None:
        """Take one event; append its chunks to ``out``. ``is_tail``: the body ended inside it."""

    def feed_whole(self, body: str, out: list[Chunk]) -> None:
        """Take a body that is one JSON object: servers that do not stream send the reply that way."""
        self.feed(body, "message", out)
        self.is_over |= self.is_complete

    @property
    def is_complete(self) -> bool:
        """Whether the whole reply is there, whatever may still be missing of its end."""
        return self.reason is not None

    @property
    @abstractmethod
    def _has_calls(self) -> bool: ...

    @abstractmethod
    def _success(self, kind: FinishKind) -> list[Chunk]:
        """The chunks that end a reply which can be used."""

    def _explain(self, reason: str) -> str:
        """What to say about a reply that ended for a reason outside `finishes`."""
        return f"the model stopped: {reason}"

    def _open_block(self) -> int:
        self._count += 1
        return self._count - 1

    def failed(self, code: str, message: str) -> Failure:
        return Failure(clean_message(message, self._secret), code, None, None, request_id(self._headers))

    def failure_of(self, error: ErrorBody) -> Failure:
        return body_failure(error, self._headers, self._secret, self._meanings)

    def fail(self, failure: Failure) -> None:
        """End the response with a failure; events that follow are ignored."""
        self.failure = failure
        self.is_over = True

    def end_with(self, finish: Finish) -> list[Chunk]:
        """``finish``, after the usage if any was reported."""
        return [finish] if self.usage is None else [UsageChunk(self.usage), finish]

    def close(self, was_cut: bool) -> list[Chunk]:
        """The chunks that end the response: at its last event, or where its body ended (``was_cut``)."""
        if self.failure is not None:
            return self.end_with(Finish("error", self.failure))
        if was_cut and not self.is_complete:
            return self._error("STREAM_CLOSED", "the stream ended before the reply was complete")
        if was_cut:
            self.warnings.add("missing_done")
        if self.reason is None:
            self.warnings.add("missing_finish_reason")
        reason = self.reason or "stop"
        kind = self.finishes.get(reason)
        if kind is None:
            code = _FAILED_FINISHES.get(reason, reason.upper()[:64])
            return self._error(code, self._explain(reason))
        if reason == CONTEXT_FULL:
            if self._count == 0:
                return self._error("CONTEXT_WINDOW_EXCEEDED", "the prompt fills the model's context window")
            self.warnings.add("context_window_full")
        if kind == "max-tokens":
            return self._success("max-tokens")
        if self._count == 0:
            return self._error("EMPTY_RESPONSE", "the model answered with nothing")
        if kind == "stop" and self._has_calls:
            self.warnings.add("finish_stop_with_tools")
        return self._success("tool-calls" if self._has_calls else "stop")

    def _error(self, code: str, message: str) -> list[Chunk]:
        return self.end_with(Finish("error", self.failed(code, message)))
