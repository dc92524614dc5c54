"""A provider for every server that speaks OpenAI's streaming chat completions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsh_actors.adapters.llm.chat_request import ChatEncoder
from dsh_actors.adapters.llm.chat_stream import ChatStream
from dsh_actors.adapters.llm.dialect import Dialect, OpenAiDialect
from dsh_actors.adapters.llm.http_provider import HttpProvider
from dsh_actors.adapters.llm.settings import ModelFacts, ProviderConfig
from dsh_actors.core.chunks import CallConfig
from dsh_actors.ports import PreparedCall

if TYPE_CHECKING:
    from dsh_actors.adapters.llm.transport import Transport

__all__ = ["OpenAiCompatibleProvider"]


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A call to a chat-completions server, complete but for its messages."""

    config: CallConfig
    adapter_defaults: frozenset[str]
    context_window: int | None
    dialect: Dialect = field(repr=False)

    def encoder(self) -> ChatEncoder:
        return ChatEncoder(self.config.provider, self.dialect.parameters, self.dialect.needs_reasoning)


class OpenAiCompatibleProvider(HttpProvider):
    """One route to such a server. ``transport`` replaces the network."""

    def __init__(
        self, config: ProviderConfig, dialect: Dialect | None = None, transport: Transport | None = None
    ) -> None:
        self._dialect = dialect or OpenAiDialect()
        url = config.base_url.rstrip("/") + "/chat/completions"
        super().__init__(config, url, self._dialect.models, transport)

    def _resolve(self, config: CallConfig, facts: ModelFacts | None) -> CallConfig:
        return self._dialect.resolve(config, facts)

    def _call(self, config: CallConfig, filled: frozenset[str], window: int | None) -> PreparedCall:
        return ChatCall(config, filled, window, self._dialect)

    def _headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def _reply(self, headers: Mapping[str, str], id_salt: Callable[[], str], secret: str) -> ChatStream:
        return ChatStream(headers, id_salt, secret)
