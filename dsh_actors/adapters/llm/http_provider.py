"""A provider over HTTP and server-sent events: all of it that does not depend on the vendor's wire."""

from __future__ import annotations

import hashlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import dsh_actors
from dsh_actors.adapters.llm.errors import error_of_text, http_failure, looks_like_events
from dsh_actors.adapters.llm.guards import overflow_of
from dsh_actors.adapters.llm.patience import Patience
from dsh_actors.adapters.llm.reply_stream import ReplyStream
from dsh_actors.adapters.llm.settings import ModelFacts, ProviderConfig
from dsh_actors.adapters.llm.sse import EventSource, EventTooLarge
from dsh_actors.config.addresses import shown_address
from dsh_actors.core.chunks import CallConfig, Chunk, Failure, Finish
from dsh_actors.errors import CredentialError, UsageError
from dsh_actors.ports import PreparedCall, StreamControl

if TYPE_CHECKING:
    from dsh_actors.adapters.llm.transport import Exchange, Transport

__all__ = ["HttpProvider"]

_log = logging.getLogger(__name__)


class HttpProvider(ABC):
    """One route to a server. Connections are shared by all calls and made on first use.

    ``models`` is the catalogue where the configuration has none; None where there is none at all.
    ``transport`` replaces the network.
    """

    def __init__(
        self,
        config: ProviderConfig,
        url: str,
        models: tuple[ModelFacts, ...] | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.name = config.name
        self.retry_policy = config.retry_policy
        self._config = config
        self._url = url
        known = models if config.models is None else config.models
        self._models = None if known is None else {model.id: model for model in known}
        self._key = (config.api_key or "").strip()
        self._shared_transport = transport
        self._place = shown_address(config.base_url)

    # --- what a wire adds ---------------------------------------------------------------------

    @abstractmethod
    def _resolve(self, config: CallConfig, facts: ModelFacts | None) -> CallConfig:
        """Fill in the model's defaults and settle on the vendor's words. Raises `UsageError`."""

    @abstractmethod
    def _call(self, config: CallConfig, filled: frozenset[str], window: int | None) -> PreparedCall: ...

    @abstractmethod
    def _headers(self) -> Mapping[str, str]:
        """The vendor's own headers, with the key if there is one."""

    @abstractmethod
    def _reply(self, headers: Mapping[str, str], id_salt: Callable[[], str], secret: str) -> ReplyStream:
        """The reader of one response; ``id_salt`` gives a text that no other response gets."""

    def _retired(self, model: str) -> str | None:
        """What the vendor offers in place of a model that it no longer serves."""
        return None

    def _meanings(self) -> Mapping[str, str]:
        """What the vendor's error codes mean where the common table would misread them."""
        return {}

    def _judged(self, failure: Failure, body: bytes, window: int | None) -> Failure:
        """A failure seen together with the request; ``window`` is the model's context in tokens."""
        return failure

    def _oddity(self, chunks: Sequence[Chunk], body: bytes) -> str | None:
        """A warning about a complete reply that is not what it seems."""
        return None

    # --- preparing ----------------------------------------------------------------------------

    def prepare(self, config: CallConfig) -> PreparedCall:
        """Fill in the model's defaults. Raises `UsageError` or `CredentialError`; no I/O."""
        facts = self._facts(config.model)
        self._check_key()
        resolved = self._resolve(config, facts)
        filled = {
            name
            for name, before, after in (
                ("reasoningEffort", config.reasoning_effort, resolved.reasoning_effort),
                ("maxTokens", config.max_tokens, resolved.max_tokens),
            )
            if before is None and after is not None
        }
        return self._call(resolved, frozenset(filled), None if facts is None else facts.context_window)

    def _modalities(self, model: str) -> tuple[str, ...]:
        """What a model takes; nobody has said that an unlisted one takes more than text."""
        facts = (self._models or {}).get(model)
        return ("text",) if facts is None else facts.input_modalities

    def _facts(self, model: str) -> ModelFacts | None:
        if not model:
            raise UsageError(f"no model is named after {self.name}/", code="UNKNOWN_MODEL")
        if self._models is None:
            return None
        facts = self._models.get(model)
        if facts is None and self._config.builtin_url:
            successor = self._retired(model)
            if successor is not None:
                raise UsageError(
                    f"{self.name} has retired the model {model!r}",
                    code="UNKNOWN_MODEL",
                    hint=f"use {self.name}/{successor}",
                )
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
                **self._headers(),
            }
            self._shared_transport = Transport(self._config, self._url, headers)
        return self._shared_transport

    # --- one attempt --------------------------------------------------------------------------

    def stream(self, call: PreparedCall, body: bytes, control: StreamControl) -> Iterator[Sequence[Chunk]]:
        """One HTTP attempt. The last chunk is a `Finish`, whatever happens.

        Iterate on after it: that leaves the connection to the next call, within a quarter second.
        """
        from dsh_actors.adapters.llm.transport import NETWORK_ERRORS

        patience = Patience(self._config, control, self._place)
        exchange = None
        try:
            try:
                exchange = self._transport().exchange(control)
                exchange.on_connected = patience.connected
                control.on_abort(exchange.abort)
                response = exchange.send(body)
                patience.connected()
            except NETWORK_ERRORS as error:
                failure = self._network_failure(error, patience)
                yield [_finish_of_abort(control, patience) or Finish("error", failure)]
                return
            if response.status == 200:
                yield from self._read(exchange, response.headers, call, body, control, patience)
            else:
                finish = self._refusal(exchange, response.status, response.headers, control)
                yield self._checked([finish], call, body)
        finally:
            if exchange is not None:
                exchange.close()

    def _network_failure(self, error: BaseException, patience: Patience) -> Failure:
        from dsh_actors.adapters.llm.transport import network_failure

        via = "" if self._shared_transport is None else self._shared_transport.via
        failure = network_failure(error, self._place + via, self._key)
        return patience.failure() if failure.code == "TIMEOUT" else failure

    def _refusal(
        self, exchange: Exchange, status: int, headers: Mapping[str, str], control: StreamControl
    ) -> Finish:
        body = exchange.error_body()
        if control.aborted == "cancelled":
            return _CANCELLED
        now_ms = int(time.time() * 1000)
        return Finish("error", http_failure(status, headers, body, now_ms, self._key, self._meanings()))

    def _checked(
        self, chunks: list[Chunk], call: PreparedCall, body: bytes, warnings: set[str] | None = None
    ) -> list[Chunk]:
        """The end of a reply, held against its request and its counts of tokens."""
        finish = chunks[-1]
        if not isinstance(finish, Finish) or finish.kind == "aborted":
            return chunks
        window = call.context_window
        if finish.failure is not None:
            judged = self._judged(finish.failure, body, window)
            return [*chunks[:-1], replace(finish, failure=judged)]
        overflow = overflow_of(chunks, window)
        if overflow is not None:
            return [*chunks[:-1], Finish("error", overflow)]
        odd = self._oddity(chunks, body)
        if odd is not None and warnings is not None:
            warnings.add(odd)
        return chunks

    def _read(
        self,
        exchange: Exchange,
        headers: Mapping[str, str],
        call: PreparedCall,
        body: bytes,
        control: StreamControl,
        patience: Patience,
    ) -> Iterator[Sequence[Chunk]]:
        from dsh_actors.adapters.llm.transport import NETWORK_ERRORS

        source = EventSource(exchange.read, lambda: control.aborted is not None)
        reply = self._reply(headers, lambda: hashlib.sha256(body).hexdigest()[:12], self._key)
        failure: Failure | None = None
        try:
            yield from self._batches(source, reply, patience)
        except EventTooLarge as error:
            reply.fail(Failure(str(error), "MALFORMED_RESPONSE"))
        except NETWORK_ERRORS as error:
            failure = self._network_failure(error, patience)
        finish = _finish_of_abort(control, patience)
        yield self._checked(_ending(source, reply, finish, failure), call, body, reply.warnings)
        if reply.warnings:
            _log.info("%s: odd response: %s", self.name, ", ".join(sorted(reply.warnings)))
        if reply.is_over:
            exchange.drain()

    def _batches(
        self, source: EventSource, reply: ReplyStream, patience: Patience
    ) -> Iterator[Sequence[Chunk]]:
        for events in source.batches():
            out: list[Chunk] = []
            for event in events:
                reply.feed(event.data, event.event, out, source.is_tail)
            if reply.is_silent:
                if source.is_foreign:
                    return
                patience.queued()
            elif events and not reply.is_over:
                patience.complete() if reply.is_complete else patience.moved()
            if out:
                yield out
            if reply.is_over:
                return


_CANCELLED = Finish("aborted", Failure("the call was cancelled", "ABORTED"))


def _finish_of_abort(control: StreamControl, patience: Patience) -> Finish | None:
    match control.aborted:
        case None:
            return None
        case "timeout":
            return Finish("error", patience.failure())
    return _CANCELLED


def _ending(
    source: EventSource, reply: ReplyStream, finish: Finish | None, failure: Failure | None
) -> list[Chunk]:
    """The last chunks of a response that was read as far as it goes; ``finish`` where it was aborted."""
    if finish is _CANCELLED:
        return reply.end_with(finish)
    if reply.is_over:
        return reply.close(was_cut=False)
    if reply.is_complete:
        # The reply is complete; only its count of tokens may be missing.
        if finish is not None or failure is not None:
            reply.warnings.add("transport_after_finish")
        return reply.close(was_cut=True)
    if finish is not None:
        return reply.end_with(finish)
    if failure is not None:
        return reply.end_with(Finish("error", failure))
    if not reply.is_silent:
        return reply.close(was_cut=True)
    out: list[Chunk] = []
    if source.rest.lstrip()[:1] == b"{":
        reply.feed_whole(source.rest.decode("utf-8", "replace"), out)
    if not reply.is_complete:
        reply.fail(_failure_of_silence(source, reply))
    return out + reply.close(was_cut=False)


def _failure_of_silence(source: EventSource, reply: ReplyStream) -> Failure:
    """What a body without a single event was."""
    if source.received == 0:
        return reply.failed("EMPTY_RESPONSE", "the response was empty")
    if not source.is_foreign and looks_like_events(source.prefix):
        return reply.failed("STREAM_CLOSED", "the stream ended before the reply began")
    reply.warnings.add("non_sse_body")
    error = error_of_text(source.prefix)
    if error is None:
        return reply.failed("MALFORMED_RESPONSE", "the response is not an event stream; is base_url right?")
    return reply.failure_of(error)
