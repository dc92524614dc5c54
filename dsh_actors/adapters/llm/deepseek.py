"""What is DeepSeek's own: its thinking switch, and its rule about reasoning in history. Pure."""

from __future__ import annotations

import dataclasses

from dsh_actors.adapters.llm.dialect import effort_word, limited_output, request_members
from dsh_actors.adapters.llm.model_facts import catalogue_facts
from dsh_actors.adapters.llm.settings import ModelFacts
from dsh_actors.config.profiles import PROFILES, Profile
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.text import JsonObject

__all__ = ["DeepSeekDialect"]

# The server takes these words too, but what it makes of them has changed before.
_ALIASES = {
    "none": "off",
    "off": "off",
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "max",
    "max": "max",
    "ultra": "max",
}


class DeepSeekDialect:
    """Says explicitly whether to think and how much to write: the server's own defaults are small.

    Sends no ``user_id``: it would part the cache by session, and a forked session would pay for all that
    it shares with its parent.
    """

    models: tuple[ModelFacts, ...] | None = catalogue_facts("deepseek")

    def __init__(self, profile: Profile = PROFILES["deepseek"]) -> None:
        self.profile = profile

    def resolve(self, config: CallConfig, facts: ModelFacts | None) -> CallConfig:
        """Raises `UsageError` for an effort that DeepSeek has no word for."""
        asked = config.reasoning_effort or (facts and facts.default_effort) or "high"
        effort = effort_word("deepseek", asked, _ALIASES)
        return dataclasses.replace(limited_output(config, facts), reasoning_effort=effort)

    def parameters(self, config: CallConfig) -> JsonObject:
        effort = config.reasoning_effort
        thinking: JsonObject = {"thinking": {"type": "disabled" if effort == "off" else "enabled"}}
        if effort not in (None, "off"):
            thinking["reasoning_effort"] = effort
        return request_members(config, self.profile, thinking)
