"""A provider for every server that speaks OpenAI's streaming chat completions."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import dsh_actors
from dsh_actors.adapters.llm.chat_request import ChatEncoder
from dsh_actors.adapters.llm.chat_stream import ChatStream
from dsh_actors.adapters.llm.dialect import Dialect, OpenAiDialect
from dsh_actors.adapters.llm.errors import error_of_text, http_failure, looks_like_events
from dsh_actors.adapters.llm.images import ImageReader
from dsh_actors.adapters.llm.settings import ModelFacts, ProviderConfig
from dsh_actors.adapters.llm.sse import EventSource, EventTooLarge
from dsh_actors.core.chunks import CallConfig, Chunk, Failure, Finish
from dsh_actors.errors import CredentialError, UsageError
from dsh_actors.ports import PreparedCall, StreamControl

if TYPE_CHECKING:
    from dsh_actors.adapters.llm.transport import Exchange, Transport

__all__ = ["OpenAiCompatibleProvider"]

FINISH_GRACE_S = 5.0
"""How long to wait for usage and ``[DONE]`` once the reply itself is complete."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A call to a chat-completions server, complete but for its messages."""

    config: CallConfig
    adapter_defaults: frozenset[str]
    context_window: int | None
    dialect: Dialect = field(repr=False)
    input_modalities: tuple[str, ...] = ("text",)
    read_image: ImageReader | None = field(default=None, repr=False, compare=False)

    def encoder(self) -> ChatEncoder:
        dialect, reader = self.dialect, self.read_image if "image" in self.input_modalities else None
        return ChatEncoder(self.config.provider, dialect.parameters, dialect.needs_reasoning, reader)


class OpenAiCompatibleProvider:
    """One route to such a server. Connections are shared by all calls and made on first use.

    ``transport`` replaces the network.
    """

    def __init__(
        self, config: ProviderConfig, dialect: Dialect | None = None, transport: Transport | None = None
    ) -> None:
        self.name = config.name
        self.retry_policy = config.retry_policy
        self._config = config
        self._dialect = dialect or OpenAiDialect()
        models = self._dialect.models if config.models is None else config.models
        self._models = None if models is None else {model.id: model for model in models}
        self._url = config.base_url.rstrip("/") + "/chat/completions"
        self._key = (config.api_key or "").strip()
        self._shared_transport = transport

    def prepare(self, config: CallConfig) -> PreparedCall:
        """Fill in the model's defaults. Raises `UsageError` or `CredentialError`; no I/O."""
        facts = self._facts(config.model)
        self._check_key()
        resolved = self._dialect.resolve(config, facts)
        filled = {
            name
            for name, before, after in (
                ("reasoningEffort", config.reasoning_effort, resolved.reasoning_effort),
                ("maxTokens", config.max_tokens, resolved.max_tokens),
            )
            if before is None and after is not None
        }
        window = None if facts is None else facts.context_window
        # Nobody has said that an unlisted model takes more than text.
        takes = ("text",) if facts is None else facts.input_modalities
        reader = self._config.read_image
        return ChatCall(resolved, frozenset(filled), window, self._dialect, takes, reader)

    def _facts(self, model: str) -> ModelFacts | None:
        if not model:
            raise UsageError(f"no model is named after {self.name}/", code="UNKNOWN_MODEL")
        if self._models is None:
            return None
        facts = self._models.get(model)
        if facts is None and self._config.builtin_url:
            import difflib  # only for the text of this error

            near = difflib.get_close_matches(model, self._models, 1, 0.4) or list(self._models)[:1]
            raise UsageError(
                f"{self.name} has no model {model!r}",
                code="UNKNOWN_MODEL",
                hint=f"did you mean {self.name}/{near[0]}?" if near else None,
            )
        return facts

    def _check_key(self) -> None:
        variable = self._config.api_key_env
        if not self._key:
            if variable is None:
                return
            raise CredentialError(f"{self.name}: no API key", hint=f"set {variable}")
        if not all("\x21" <= character <= "\x7e" for character in self._key):
            raise CredentialError(
                f"{self.name}: the API key holds a blank or a character that no key has",
                code="INVALID_CREDENTIAL",
                hint=None if variable is None else f"check {variable}",
            )

    def _transport(self) -> Transport:
        if self._shared_transport is None:
            from dsh_actors.adapters.llm.transport import Transport

            headers = {
                "User-Agent": f"dsh-actors/{dsh_actors.__version__}",
                "Accept": "text/event-stream",
                # Compressed events would wait for each other in the decoder.
                "Accept-Encoding": "identity",
                "Connection": "keep-alive",
                "Content-Type": "application/json",
                **self._config.headers,
            }
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            self._shared_transport = Transport(self._config, self._url, headers)
        return self._shared_transport

    def stream(self, call: PreparedCall, body: bytes, control: StreamControl) -> Iterator[Sequence[Chunk]]:
        """One HTTP attempt. The last chunk is a `Finish`, whatever happens.

        Iterate on after it: that leaves the connection to the next call, within a quarter second.
        """
        from dsh_actors.adapters.llm.transport import NETWORK_ERRORS, network_failure

        control.expect_within(self._config.first_event_timeout_s)
        exchange = None
        try:
            try:
                exchange = self._transport().exchange(control)
                control.on_abort(exchange.abort)
                response = exchange.send(body)
            except NETWORK_ERRORS as error:
                failure = network_failure(error, self._config.base_url, self._key)
                yield [_finish_of_abort(control) or Finish("error", failure)]
                return
            if response.status_code == 200:
                yield from self._read(exchange, response.headers, body, control)
            else:
                yield [self._refusal(exchange, response.status_code, response.headers, control)]
        finally:
            if exchange is not None:
                exchange.close()

    def _refusal(
        self, exchange: Exchange, status: int, headers: Mapping[str, str], control: StreamControl
    ) -> Finish:
        body = exchange.error_body()
        if control.aborted == "cancelled":
            return _CANCELLED
        now_ms = int(time.time() * 1000)
        return Finish("error", http_failure(status, headers, body, now_ms, self._key))

    def _read(
        self, exchange: Exchange, headers: Mapping[str, str], body: bytes, control: StreamControl
    ) -> Iterator[Sequence[Chunk]]:
        from dsh_actors.adapters.llm.transport import NETWORK_ERRORS, network_failure

        source = EventSource(exchange.read, lambda: control.aborted is not None)
        stream = ChatStream(headers, lambda: hashlib.sha256(body).hexdigest()[:12], self._key)
        failure: Failure | None = None
        try:
            yield from self._batches(source, stream, control)
        except EventTooLarge as error:
            stream.fail(Failure(str(error), "MALFORMED_RESPONSE"))
        except NETWORK_ERRORS as error:
            failure = network_failure(error, self._config.base_url, self._key)
        yield _ending(source, stream, control, failure)
        if stream.warnings:
            _log.info("%s: odd response: %s", self.name, ", ".join(sorted(stream.warnings)))
        if stream.is_over:
            exchange.drain()

    def _batches(
        self, source: EventSource, stream: ChatStream, control: StreamControl
    ) -> Iterator[Sequence[Chunk]]:
        config = self._config
        for events in source.batches():
            out: list[Chunk] = []
            for event in events:
                stream.feed(event.data, event.event, out, source.is_tail)
            if stream.is_silent:
                # Comments show that the request is queued and not forgotten.
                control.expect_within(config.first_event_timeout_s)
            elif events and not stream.is_over:
                control.expect_within(config.idle_timeout_s if stream.reason is None else FINISH_GRACE_S)
            if out:
                yield out
            if stream.is_over:
                return


_CANCELLED = Finish("aborted", Failure("the call was cancelled", "ABORTED"))


def _finish_of_abort(control: StreamControl) -> Finish | None:
    match control.aborted:
        case None:
            return None
        case "timeout":
            return Finish("error", Failure("the provider sent nothing in time", "TIMEOUT"))
    return _CANCELLED


def _ending(
    source: EventSource, stream: ChatStream, control: StreamControl, failure: Failure | None
) -> list[Chunk]:
    """The last chunks of a response that was read as far as it goes."""
    finish = _finish_of_abort(control)
    if finish is _CANCELLED:
        return stream.end_with(finish)
    if stream.is_over:
        return stream.close(was_cut=False)
    if stream.reason is not None:
        # The reply is complete; only its count of tokens may be missing.
        if finish is not None or failure is not None:
            stream.warnings.add("transport_after_finish")
        return stream.close(was_cut=True)
    if finish is not None:
        return stream.end_with(finish)
    if failure is not None:
        return stream.end_with(Finish("error", failure))
    if stream.is_silent:
        stream.fail(_failure_of_silence(source, stream))
    return stream.close(was_cut=True)


def _failure_of_silence(source: EventSource, stream: ChatStream) -> Failure:
    """What a body without a single event was."""
    if source.received == 0:
        return stream.failed("EMPTY_RESPONSE", "the response was empty")
    if looks_like_events(source.prefix):
        return stream.failed("STREAM_CLOSED", "the stream ended before the reply began")
    stream.warnings.add("non_sse_body")
    error = error_of_text(source.prefix)
    if error is None:
        return stream.failed("MALFORMED_RESPONSE", "the response is not an event stream; is base_url right?")
    return stream.failure_of(error)
