"""Assistant messages on the chat-completions wire: text, calls, and reasoning where it belongs. Pure."""

from __future__ import annotations

from typing import Any

from dsh_actors.adapters.llm.tool_ids import nine_id, safe_id
from dsh_actors.adapters.llm.wire_parts import argument_object
from dsh_actors.config.profiles import Profile
from dsh_actors.core.messages import Message, ModelSource, ReasoningBlock, TextBlock, ToolCallBlock
from dsh_actors.core.text import JsonObject, clean_text

__all__ = ["THINK_TAGS", "assistant_messages", "wire_arguments"]

THINK_TAGS = "<think>"
"""In the place of a member's name: the reasoning stood in the text, between these tags."""

_MISSING_REASONING = {"empty": "", "placeholder": "(The reasoning of this step was not recorded.)"}


def assistant_messages(
    message: Message, provider: str, profile: Profile, model: str | None, ids: dict[str, str]
) -> list[JsonObject]:
    """At most one wire message. ``model``, ``ids``: as of `chat_request.wire_messages`."""
    text = "".join(block.text for block in message.content if isinstance(block, TextBlock))
    wire: JsonObject = {"role": "assistant", "content": clean_text(text)}
    source, is_own = message.source, False
    replay: JsonObject = {}
    if isinstance(source, ModelSource) and source.provider == provider:
        is_own, replay = True, _replay_of(source, source.model if model is None else model)
    calls = _tool_calls(message, is_own, profile, replay, ids)
    if is_own and profile.replay_reasoning != "never" and (calls or profile.replay_reasoning == "all"):
        wire |= _reasoning(message, replay, text)
    if not text and not calls and len(wire) == 2 and not wire["content"]:
        return []
    if calls:
        if len(wire) == 2 and profile.missing_reasoning != "omit":
            wire["reasoning_content"] = _MISSING_REASONING[profile.missing_reasoning]
        wire["tool_calls"] = calls
    return [wire]


def _replay_of(source: ModelSource, model: str) -> JsonObject:
    """What the adapter kept. Signatures and encrypted parts mean something to their own model only."""
    state = source.replay_state
    if not state:
        return {}
    response = state.get("response")
    if not isinstance(response, dict):
        response = {}
    if source.model != model:
        return {key: response[key] for key in ("reasoningKey", "thinkGap") if key in response}
    return {**response, "blocks": state.get("blocks")}


def _reasoning(message: Message, replay: JsonObject, text: str) -> JsonObject:
    """Reasoning goes back unchanged, in the place it came from."""
    if replay.get("reasoning_details"):
        return {"reasoning_details": replay["reasoning_details"]}
    thought = "".join(block.text for block in message.content if isinstance(block, ReasoningBlock))
    key = replay.get("reasoningKey", "reasoning_content")
    if not thought or key == "reasoning_details":
        return {}
    if key == THINK_TAGS:
        return {"content": clean_text(f"<think>{thought}</think>{replay.get('thinkGap', '')}{text}")}
    return {key: clean_text(thought)}


def _tool_calls(
    message: Message, is_own: bool, profile: Profile, replay: JsonObject, ids: dict[str, str]
) -> list[JsonObject]:
    extras: Any = replay.get("blocks") if profile.call_extras else None
    if not isinstance(extras, list) or len(extras) != len(message.content):
        extras = ()
    calls = []
    for position, block in enumerate(message.content):
        if not isinstance(block, ToolCallBlock):
            continue
        wire_id = _wire_id(block.id, is_own, profile)
        if wire_id != block.id:
            ids[block.id] = wire_id
        elif ids:
            ids.pop(block.id, None)
        function = {"name": clean_text(block.name), "arguments": wire_arguments(block.arguments)}
        call: JsonObject = {"id": wire_id, "type": "function", "function": function}
        extra = extras[position] if extras else None
        if isinstance(extra, dict) and "extra_content" in extra:
            call["extra_content"] = extra["extra_content"]
        calls.append(call)
    return calls


def _wire_id(call_id: str, is_own: bool, profile: Profile) -> str:
    if profile.tool_ids == "nine":
        return nine_id(call_id)
    return clean_text(call_id) if is_own else safe_id(call_id)


def wire_arguments(raw: str) -> str:
    """``raw`` as it came where it is a JSON object, what it holds where it is one inside a string.

    Anything else becomes ``{}``: some servers refuse the whole conversation otherwise.
    """
    found = argument_object(raw)
    return "{}" if found is None else clean_text(found[0])
