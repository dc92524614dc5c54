"""A provider for Anthropic's Messages API, and for the servers that speak it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dsh_actors.adapters.llm.anthropic_request import CACHE_MARK, MessagesEncoder
from dsh_actors.adapters.llm.anthropic_stream import MessagesStream
from dsh_actors.adapters.llm.dialect import effort_word, limited_output
from dsh_actors.adapters.llm.http_provider import HttpProvider
from dsh_actors.adapters.llm.images import ImageReader
from dsh_actors.adapters.llm.reply_stream import ReplyStream
from dsh_actors.adapters.llm.settings import ModelFacts, ProviderConfig, messages_endpoint
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import UsageError
from dsh_actors.ports import PreparedCall

if TYPE_CHECKING:
    from dsh_actors.adapters.llm.transport import Transport

__all__ = ["AnthropicProvider", "parameters"]

VERSION = "2023-06-01"
"""The ``anthropic-version`` of this wire; what is sent under it is legal under later ones too."""

DEFAULT_OUTPUT = 32_000
"""The wire demands an output limit, thinking included. Nothing larger suits every model in use."""

MIN_BUDGET = 1_024

_BUDGETS: Mapping[str, int] = {"low": 4_096, "medium": 10_000, "high": 20_000, "max": 64_000}
"""Thinking tokens by effort, for models that take a number and not a word."""

_EFFORTS = ("off", "low", "medium", "high", "max")

_ALIASES: Mapping[str, str] = {word: word for word in _EFFORTS} | {
    "none": "off",
    "minimal": "low",
    "xhigh": "max",
    "ultra": "max",
}

# Up to 4.5 the vendor's models want a budget; later ones decide for themselves and refuse it.
_WANTS_BUDGET = re.compile(
    r"claude-(?:[23]\b|instant|(?:opus|sonnet|haiku)-4(?:-[015])?(?![-.]?\d{1,2}(?!\d)))"
)


@dataclass(frozen=True, slots=True)
class MessagesCall:
    """A call to a Messages server, complete but for its messages."""

    config: CallConfig
    adapter_defaults: frozenset[str]
    context_window: int | None
    input_modalities: tuple[str, ...] = ("text",)
    read_image: ImageReader | None = field(default=None, repr=False, compare=False)

    def encoder(self) -> MessagesEncoder:
        reader = self.read_image if "image" in self.input_modalities else None
        return MessagesEncoder(self.config.provider, parameters, reader)


class AnthropicProvider(HttpProvider):
    """One route to such a server. ``transport`` replaces the network."""

    def __init__(self, config: ProviderConfig, transport: Transport | None = None) -> None:
        super().__init__(config, messages_endpoint(config.base_url, "/v1/messages"), None, transport)

    def _resolve(self, config: CallConfig, facts: ModelFacts | None) -> CallConfig:
        """Raises `UsageError` for what the wire would refuse."""
        asked = config.reasoning_effort or (None if facts is None else facts.default_effort)
        effort = None if asked is None else effort_word("anthropic", asked, _ALIASES)
        config = dataclasses.replace(limited_output(config, facts), reasoning_effort=effort)
        if config.max_tokens is None:
            most = None if facts is None else facts.max_output
            config = dataclasses.replace(config, max_tokens=min(DEFAULT_OUTPUT, most or DEFAULT_OUTPUT))
        _check_thinking(config)
        return config

    def _call(self, config: CallConfig, filled: frozenset[str], window: int | None) -> PreparedCall:
        return MessagesCall(
            config, filled, window, self._modalities(config.model), self._config.read_image
        )

    def _headers(self) -> Mapping[str, str]:
        key = {"x-api-key": self._key} if self._key else {}
        return {"anthropic-version": VERSION, **key}

    def _reply(self, headers: Mapping[str, str], id_salt: Callable[[], str], secret: str) -> ReplyStream:
        return MessagesStream(headers, id_salt, secret)


def parameters(config: CallConfig) -> JsonObject:
    """The body's members beside tools, system prompt and messages, for a resolved configuration."""
    members: JsonObject = {"model": config.model, "max_tokens": config.max_tokens, "stream": True}
    members |= _thinking(config)
    if config.temperature is not None:
        members["temperature"] = config.temperature
    if config.stop:
        members["stop_sequences"] = list(config.stop)
    # Marks the last block of whatever is sent, without a byte of the earlier messages changing.
    members["cache_control"] = CACHE_MARK
    return members


def _check_thinking(config: CallConfig) -> None:
    if config.reasoning_effort in (None, "off"):
        return
    if config.temperature is not None:
        raise UsageError(f"{config.model} takes no temperature while it reasons")
    if _wants_budget(config.model) and (config.max_tokens or 0) <= MIN_BUDGET:
        raise UsageError(
            f"{config.model} needs an output limit above {MIN_BUDGET} tokens to reason",
            hint="raise the limit, or set the reasoning effort to off",
        )


def _thinking(config: CallConfig) -> JsonObject:
    effort = config.reasoning_effort
    match effort:
        case None:
            return {}
        case "off":
            return {"thinking": {"type": "disabled"}}
    if _wants_budget(config.model):
        # Some of the limit must be left for the answer.
        most = max(MIN_BUDGET, (config.max_tokens or DEFAULT_OUTPUT) * 3 // 4)
        return {"thinking": {"type": "enabled", "budget_tokens": min(_BUDGETS[effort], most)}}
    return {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}


def _wants_budget(model: str) -> bool:
    """Also true of other vendors' models behind this wire: they know only its first form."""
    return "claude" not in model or _WANTS_BUDGET.search(model) is not None
