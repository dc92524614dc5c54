"""What differs between servers of the chat-completions family: one row a vendor, one column a switch.

Pure data and its lookup. Read only where a provider is described or built.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, get_args, get_type_hints
from typing import Literal as L
from urllib.parse import urlsplit

from dsh_actors.config.keys import nearest
from dsh_actors.core.retry import CODES
from dsh_actors.errors import ConfigError

__all__ = ["PROFILES", "SWITCHES", "Profile", "changed_profile", "differences", "find_profile"]


@dataclass(frozen=True, slots=True)
class Profile:
    """How one kind of server wants its requests, and what its answers mean.

    ``max_tokens_field``: the member that holds the output limit.
    ``system_role``: the role of the first message, for all models or only ``reasoning_models``.
    ``reasoning_models``: beginnings of the names of models that take no temperature and, with the system
    role "reasoning", call the system message developer.
    ``thinking_style``: how a reasoning effort is written; "none" refuses one. ``effort_off``: the word for
    no reasoning in the style "effort"; empty sends none.
    ``replay_reasoning``: the assistant messages that carry their reasoning back. ``missing_reasoning``: what
    a message with tool calls carries where none is known.
    ``stream_options``: whether usage may be asked for. ``omit_temperature``: it has one of its own.
    ``auth_header``: where the key goes; ``Authorization`` gets it as a bearer token.
    ``tool_ids``: "nine" where ids must be nine letters or digits. ``merge_same_role``: a user message after
    another is appended to it. ``bridge_tool_results``: a user message must not follow a tool's result.
    ``call_extras``: members of a tool call that the server wants back (``extra_content``).
    ``think_tags``: reasoning stands in the text between <think> and </think>.
    ``json_object``: answers are to be one JSON object. ``strict_tools``: arguments must fit the schemas.
    ``beta_path``: the path that strict tools need, in place of ``/v1``.
    ``prompt_cut``: a prompt that is too long is cut in silence. ``balance_waits``: a 402 with a waiting
    time passes by itself. ``errors``: what its error codes, types or statuses mean, where the common table
    would misread them. ``extra_body``: members of every request.
    """

    name: str = "generic"
    max_tokens_field: L["max_tokens", "max_completion_tokens"] = "max_tokens"
    system_role: L["system", "developer", "reasoning"] = "system"
    reasoning_models: tuple[str, ...] = ()
    thinking_style: L["none", "effort", "deepseek", "switch", "qwen", "openrouter", "template"] = "effort"
    effort_off: str = ""
    replay_reasoning: L["never", "tool_turns", "all"] = "all"
    missing_reasoning: L["omit", "empty", "placeholder"] = "omit"
    stream_options: bool = True
    omit_temperature: bool = False
    auth_header: str = "Authorization"
    tool_ids: L["any", "nine"] = "any"
    merge_same_role: bool = False
    bridge_tool_results: bool = False
    call_extras: bool = False
    think_tags: bool = False
    json_object: bool = False
    strict_tools: bool = False
    beta_path: str = ""
    prompt_cut: bool = False
    balance_waits: bool = False
    errors: Mapping[str, str] = field(default_factory=dict, hash=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict, hash=False)
    retired: Mapping[str, str] = field(default_factory=dict, hash=False)
    hosts: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


_NO_SWITCHES = ("name", "reasoning_models", "extra_body", "retired", "hosts", "ports", "beta_path")

SWITCHES = tuple(f.name for f in dataclasses.fields(Profile) if f.name not in _NO_SWITCHES)
"""What ``[providers.NAME.quirks]`` may set."""

# OpenAI's and Azure's documentation of reasoning models.
_OPENAI_REASONING = ("o1", "o3", "o4", "gpt-5")

# The vendor's list of business codes; 1308 to 1310 are plans that are used up or over.
_GLM_ERRORS = {
    **dict.fromkeys(("1000", "1001", "1002", "1003", "1004"), "AUTH"),
    **dict.fromkeys(("1113", "1308", "1309", "1310"), "QUOTA"),
    **dict.fromkeys(("1302", "1303", "1305"), "RATE_LIMIT"),
    "1211": "INVALID_REQUEST",
    "1234": "TRANSPORT",
    "1261": "CONTEXT_WINDOW_EXCEEDED",
    "1301": "CONTENT_FILTER",
    "1312": "OVERLOADED",
}

# The vendor's list of error codes. Its compatible endpoint says insufficient_quota where tokens come too
# quickly, which is no matter of money.
_DASHSCOPE_ERRORS = {
    "insufficient_quota": "RATE_LIMIT",
    "throttling": "RATE_LIMIT",
    "throttling.ratequota": "RATE_LIMIT",
    "throttling.allocationquota": "RATE_LIMIT",
    "limit_requests": "RATE_LIMIT",
    "arrearage": "QUOTA",
    "data_inspection_failed": "CONTENT_FILTER",
    "datainspectionfailed": "CONTENT_FILTER",
}

# The vendor's list of error types.
_KIMI_ERRORS = {
    "engine_overloaded_error": "OVERLOADED",
    "rate_limit_reached_error": "RATE_LIMIT",
    "exceeded_current_quota_error": "QUOTA",
    "content_filter": "CONTENT_FILTER",
}

# The vendor's list of codes, sent with status 200 in base_resp.
_MINIMAX_ERRORS = {
    "1001": "TIMEOUT",
    "1002": "RATE_LIMIT",
    "1004": "AUTH",
    "1008": "QUOTA",
    "1026": "CONTENT_FILTER",
    "1027": "CONTENT_FILTER",
    "2013": "INVALID_REQUEST",
    "2049": "AUTH",
}

_ROWS = (
    Profile(),
    Profile(
        "openai",
        max_tokens_field="max_completion_tokens",
        system_role="reasoning",
        reasoning_models=_OPENAI_REASONING,
        replay_reasoning="never",
        # Padding against eavesdroppers on the lengths of tokens; costs bytes and says nothing.
        extra_body={"stream_options": {"include_usage": True, "include_obfuscation": False}},
        hosts=("api.openai.com",),
    ),
    Profile(
        "azure",
        max_tokens_field="max_completion_tokens",
        reasoning_models=_OPENAI_REASONING,
        replay_reasoning="never",
        auth_header="api-key",
        hosts=(".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com"),
    ),
    Profile(
        "deepseek",
        thinking_style="deepseek",
        missing_reasoning="empty",
        beta_path="/beta",
        retired={"deepseek-chat": "deepseek-flash", "deepseek-reasoner": "deepseek-flash"},
        hosts=("api.deepseek.com",),
    ),
    Profile("vllm", thinking_style="template"),
    Profile("sglang", thinking_style="template"),
    Profile("llamacpp", thinking_style="template"),
    Profile("ollama", effort_off="none", prompt_cut=True, ports=(11434,)),
    Profile("lmstudio", ports=(1234,)),
    Profile("openrouter", thinking_style="openrouter", balance_waits=True, hosts=("openrouter.ai",)),
    Profile(
        "dashscope",
        thinking_style="qwen",
        errors=_DASHSCOPE_ERRORS,
        hosts=("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", "dashscope-us.aliyuncs.com"),
    ),
    Profile(
        "kimi",
        thinking_style="switch",
        missing_reasoning="empty",
        omit_temperature=True,
        errors=_KIMI_ERRORS,
        hosts=("api.moonshot.ai", "api.moonshot.cn", "api.kimi.com"),
    ),
    Profile(
        "glm",
        thinking_style="switch",
        errors=_GLM_ERRORS,
        extra_body={"tool_stream": True},
        hosts=("open.bigmodel.cn", "api.z.ai"),
    ),
    Profile("together", hosts=("api.together.xyz", "api.together.ai")),
    Profile(
        "groq",
        max_tokens_field="max_completion_tokens",
        replay_reasoning="never",
        errors={"tool_use_failed": "TOOL_USE_FAILED", "498": "OVERLOADED"},
        hosts=("api.groq.com",),
    ),
    Profile(
        "gemini",
        effort_off="none",
        replay_reasoning="never",
        call_extras=True,
        # Its limits by the minute are worded like an empty account.
        errors={"resource_exhausted": "RATE_LIMIT"},
        hosts=("generativelanguage.googleapis.com",),
    ),
    Profile(
        "mistral",
        thinking_style="none",
        replay_reasoning="never",
        stream_options=False,
        tool_ids="nine",
        bridge_tool_results=True,
        hosts=("api.mistral.ai",),
    ),
    Profile("xai", replay_reasoning="never", hosts=("api.x.ai",)),
    Profile(
        "minimax",
        thinking_style="none",
        errors=_MINIMAX_ERRORS,
        extra_body={"reasoning_split": True},
        hosts=("api.minimax.io", "api.minimaxi.com", "api.minimax.chat"),
    ),
    Profile(
        "cerebras",
        max_tokens_field="max_completion_tokens",
        replay_reasoning="never",
        hosts=("api.cerebras.ai",),
    ),
    Profile("fireworks", hosts=("api.fireworks.ai",)),
)

PROFILES: Mapping[str, Profile] = MappingProxyType({row.name: row for row in _ROWS})
"""Every vendor by name; ``generic`` is plain OpenAI style with nothing that was not asked for."""


def find_profile(name: str | None, base_url: str) -> Profile:
    """The named profile; without a name the one of the URL's host or port, else ``generic``.

    Raises `ConfigError` for an unknown name.
    """
    if name is not None:
        if name not in PROFILES:
            raise ConfigError(f"there is no profile {name!r}; {nearest(name, PROFILES)}")
        return PROFILES[name]
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    for row in _ROWS:
        # A name with a dot before it stands for all hosts below it.
        named = any(host.endswith(h) if h.startswith(".") else host == h for h in row.hosts)
        if named or parts.port in row.ports:
            return row
    return PROFILES["generic"]


def changed_profile(profile: Profile, changes: Mapping[str, Any]) -> Profile:
    """``profile`` with single switches set. Raises `ConfigError` for an unknown switch or a wrong value."""
    types = get_type_hints(Profile)
    values = dict(changes)
    for name, value in changes.items():
        if name not in SWITCHES:
            raise ConfigError(f"unknown switch {name!r}; {nearest(name, SWITCHES)}")
        if name == "errors":
            values[name] = {**profile.errors, **_error_words(value)}
            continue
        words = get_args(types[name])
        if words and value not in words:
            raise ConfigError(f"{name} must be one of {', '.join(words)}, not {value!r}")
        if not words and type(value) is not types[name]:
            kind = "true or false" if types[name] is bool else "a text"
            raise ConfigError(f"{name} must be {kind}, not {value!r}")
    return dataclasses.replace(profile, **values)


def _error_words(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ConfigError('errors must be a table such as { "too_busy" = "OVERLOADED" }')
    for word, code in value.items():
        if not isinstance(code, str) or code not in CODES:
            hint = nearest(str(code), CODES)
            raise ConfigError(f"errors: {word} must be a failure code, not {code!r}; {hint}")
    return {word.lower(): code for word, code in value.items()}


def differences(profile: Profile) -> dict[str, Any]:
    """The switches in which a profile differs from ``generic``, by name."""
    plain = PROFILES["generic"]
    return {
        name: getattr(profile, name) for name in SWITCHES if getattr(profile, name) != getattr(plain, name)
    }
