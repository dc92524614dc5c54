"""A provider for every server that speaks OpenAI's streaming chat completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dsh_actors.adapters.llm.chat_request import ChatEncoder
from dsh_actors.adapters.llm.chat_stream import ChatStream
from dsh_actors.adapters.llm.dialect import Dialect, ProfileDialect
from dsh_actors.adapters.llm.guards import has_call_markup, is_prompt_cut, rough_tokens
from dsh_actors.adapters.llm.http_provider import HttpProvider
from dsh_actors.adapters.llm.other_form import other_form
from dsh_actors.adapters.llm.settings import ModelFacts, ProviderConfig, endpoint
from dsh_actors.core.chunks import CallConfig, Chunk, Failure
from dsh_actors.errors import ConfigError
from dsh_actors.ports import PreparedCall

if TYPE_CHECKING:
    from dsh_actors.adapters.llm.transport import Transport

__all__ = ["OpenAiCompatibleProvider"]

FULL_BODY = 0.9
"""A refusal without a word, of a request that fills this share of the window, is for its length."""


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A call to a chat-completions server, complete but for its messages."""

    config: CallConfig
    adapter_defaults: frozenset[str]
    context_window: int | None
    dialect: Dialect = field(repr=False)

    def encoder(self) -> ChatEncoder:
        return ChatEncoder(self.config.provider, self.dialect)


class OpenAiCompatibleProvider(HttpProvider):
    """One route to such a server. ``transport`` replaces the network."""

    def __init__(
        self, config: ProviderConfig, dialect: Dialect | None = None, transport: Transport | None = None
    ) -> None:
        self._dialect = dialect or ProfileDialect(config.profile)
        profile = self._dialect.profile
        url = endpoint(
            config.base_url, "/chat/completions", profile.beta_path if profile.strict_tools else ""
        )
        if profile.name == "azure" and "/deployments/" in url and "api-version=" not in url:
            raise ConfigError(
                f"provider {config.name}: the address of a deployment needs its api-version",
                hint='base_url = "https://HOST/openai/deployments/NAME?api-version=DATE", or "…/openai/v1"',
            )
        super().__init__(config, url, self._dialect.models, transport)

    def _resolve(self, config: CallConfig, facts: ModelFacts | None) -> CallConfig:
        return self._dialect.resolve(config, facts)

    def _call(self, config: CallConfig, filled: frozenset[str], window: int | None) -> PreparedCall:
        return ChatCall(config, filled, window, self._dialect)

    def _headers(self) -> Mapping[str, str]:
        name = self._dialect.profile.auth_header
        if not self._key:
            return {}
        return {name: f"Bearer {self._key}" if name == "Authorization" else self._key}

    def _reply(self, headers: Mapping[str, str], id_salt: Callable[[], str], secret: str) -> ChatStream:
        profile = self._dialect.profile
        if profile.think_tags or profile.call_extras:
            from dsh_actors.adapters.llm.vendor_stream import VendorStream

            return VendorStream(profile, headers, id_salt, secret)
        return ChatStream(headers, id_salt, secret, profile.errors)

    def _retired(self, model: str) -> str | None:
        return self._dialect.profile.retired.get(model)

    def _meanings(self) -> Mapping[str, str]:
        return self._dialect.profile.errors

    def _judged(self, failure: Failure, body: bytes, window: int | None) -> Failure:
        """A refusal for its form, for its length, or for the time being."""
        profile, code = self._dialect.profile, failure.code
        if code == "INVALID_REQUEST":
            form = other_form(profile, failure.message, body)
            if form is not None:
                self._dialect.profile, code = form, "REFUSED_FORM"
            elif failure.status in (400, 413) and failure.message.endswith(": no message"):
                # Some servers have no words for a prompt that is too long.
                is_full = window is not None and rough_tokens(body) > FULL_BODY * window
                code = "CONTEXT_WINDOW_EXCEEDED" if is_full else code
        elif failure.status == 402 and profile.balance_waits and failure.retry_after_ms is not None:
            code = "RATE_LIMIT"
        return failure if code == failure.code else replace(failure, code=code)

    def _oddity(self, chunks: Sequence[Chunk], body: bytes) -> str | None:
        if self._dialect.profile.prompt_cut and is_prompt_cut(chunks, body):
            return "prompt_cut"
        return "call_markup_in_text" if has_call_markup(chunks) else None
