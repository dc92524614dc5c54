"""What is Anthropic's own in a request: members, markers, thinking, calls and results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dsh_actors.adapters.llm.anthropic import AnthropicProvider
from dsh_actors.adapters.llm.anthropic_request import model_family, wire_input
from dsh_actors.adapters.llm.settings import ModelFacts
from dsh_actors.adapters.llm.tool_ids import safe_id
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.messages import (
    Message,
    ModelSource,
    OpaqueBlock,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    UserSource,
    user_message,
)
from dsh_actors.core.request import ModelRequest, RequestHeader, ToolSchema
from dsh_actors.errors import UsageError
from tests.adapters.llm.llm_kit import KEY, config
from tests.model_server import request_faults

TOOLS = (ToolSchema("bash", "Run.", {"type": "object"}), ToolSchema("noop", "Nothing.", {}))
CALL = ToolCallBlock("c1", "bash", '{"command": "ls"}')


def provider(**changes: object) -> AnthropicProvider:
    return AnthropicProvider(config(**{"type": "anthropic", "models": None, **changes}))


def body_of(
    messages: list[Message],
    call: CallConfig | None = None,
    system: str | None = "Be brief.",
    tools: tuple[ToolSchema, ...] = TOOLS,
) -> Any:
    prepared = provider().prepare(call or CallConfig("test", "claude-x"))
    header = RequestHeader(prepared.config, prepared.adapter_defaults, system, tools)
    body = prepared.encoder().encode(ModelRequest(header, messages))
    return json.loads(body)


def assistant(*blocks: object, model: str = "claude-x", entries: list[object] | None = None) -> Message:
    state = None if entries is None else {"blocks": entries}
    return Message("a", "assistant", blocks, ModelSource("test", model, state))


def result(text: str, call: str = "c1", is_error: bool = False) -> Message:
    content = (TextBlock(text),) if text else ()
    return Message("r", "user", (ToolResultBlock(call, content, is_error),), ToolSource(call))


def content_of(message: Message, **more: Any) -> list[Any]:
    """The blocks of one message on the wire."""
    messages = body_of([message], **more)["messages"]
    return messages[0]["content"] if messages else []


def test_a_conversation_has_its_members_in_a_fixed_order_with_messages_last() -> None:
    prepared = provider().prepare(CallConfig("test", "claude-x", stop=("END",)))
    header = RequestHeader(prepared.config, frozenset(), "Be brief.", TOOLS)
    messages = [
        user_message("u", "héllo"),
        assistant(ReasoningBlock(" r\n"), CALL, entries=[{"signature": "s"}, None]),
        result("ok"),
    ]
    assert (
        prepared.encoder().encode(ModelRequest(header, messages))
        == (
            '{"model":"claude-x","max_tokens":32000,"stream":true,"stop_sequences":["END"],'
            '"cache_control":{"type":"ephemeral"},'
            '"tools":[{"name":"bash","description":"Run.","input_schema":{"type":"object"}},'
            '{"name":"noop","description":"Nothing.","input_schema":{"type":"object"},'
            '"cache_control":{"type":"ephemeral"}}],'
            '"system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],'
            '"messages":[{"role":"user","content":[{"type":"text","text":"héllo"}]},'
            '{"role":"assistant","content":[{"type":"thinking","thinking":" r\\n","signature":"s"},'
            '{"type":"tool_use","id":"c1","name":"bash","input":{"command":"ls"}}]},'
            '{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"ok"}]}]}'
        ).encode()
    )


def test_without_tools_and_system_prompt_there_are_no_empty_members() -> None:
    body = body_of([user_message("u", "x")], system=None, tools=())
    assert not {"system", "tools", "thinking", "temperature"} & set(body)
    assert "system" not in body_of([user_message("u", "x")], system=" \n")


# --- messages ---------------------------------------------------------------------------------


def test_results_of_a_turn_share_one_message_and_come_before_text() -> None:
    calls = assistant(ToolCallBlock("a", "f", "{}"), ToolCallBlock("b", "f", "{}"))
    both = Message(
        "m", "user", (TextBlock("first"), ToolResultBlock("b", (TextBlock("2"),))), UserSource()
    )
    body = body_of([user_message("u", "go"), calls, result("1", "a"), both, user_message("v", "and")])
    last = body["messages"][-1]["content"]
    assert [(b["type"], b.get("text") or b.get("content")) for b in last] == [
        ("tool_result", "1"),
        ("tool_result", "2"),
        ("text", "first"),
        ("text", "and"),
    ]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]


def test_roles_alternate_whatever_the_session_holds() -> None:
    spoken = assistant(TextBlock("a"))
    body = body_of([user_message("u", "1"), user_message("v", "2"), spoken, spoken, user_message("w", "3")])
    shape = [(message["role"], len(message["content"])) for message in body["messages"]]
    assert shape == [("user", 2), ("assistant", 2), ("user", 1)]


def test_blank_texts_are_left_out_and_empty_results_say_so() -> None:
    spoken = assistant(TextBlock(""), CALL)
    body = body_of([user_message("u", " \n"), user_message("v", "x"), spoken, result(" \n")])
    first, call, answer = body["messages"]
    assert [block["text"] for block in first["content"]] == ["x"]
    assert [block["type"] for block in call["content"]] == ["tool_use"]
    assert answer["content"][0]["content"] == "(no output)"


def test_an_error_result_is_marked_and_not_rewritten() -> None:
    wire = content_of(result("boom", is_error=True))[0]
    assert (wire["content"], wire["is_error"]) == ("boom", True)
    assert "is_error" not in content_of(result("fine"))[0]


def test_what_has_no_text_form_is_named() -> None:
    image = Message("m", "user", (TextBlock("see"), OpaqueBlock({"type": "image"})), UserSource())
    assert [block["text"] for block in content_of(image)] == ["see", "[image not shown]"]


# --- thinking ---------------------------------------------------------------------------------

THOUGHT = ReasoningBlock(" think\n")


def test_thinking_and_redacted_thinking_go_back_unchanged_and_in_order() -> None:
    entries = [{"signature": "s"}, {"redacted": "UkVE"}, None, None]
    wire = content_of(assistant(THOUGHT, ReasoningBlock(""), TextBlock("t"), CALL, entries=entries))
    assert wire[:2] == [
        {"type": "thinking", "thinking": " think\n", "signature": "s"},
        {"type": "redacted_thinking", "data": "UkVE"},
    ]
    assert [block["type"] for block in wire[2:]] == ["text", "tool_use"]


@pytest.mark.parametrize("entries", [None, [None, None], [{"signature": "s"}], [{"other": 1}, None], "x"])
def test_thinking_without_a_signature_is_left_out(entries: Any) -> None:
    assert [block["type"] for block in content_of(assistant(THOUGHT, CALL, entries=entries))] == ["tool_use"]


def test_thinking_goes_back_only_to_the_model_that_signed_it() -> None:
    def kinds(written_by: str, asked: str) -> list[str]:
        message = assistant(THOUGHT, CALL, model=written_by, entries=[{"signature": "s"}, None])
        return [block["type"] for block in content_of(message, call=CallConfig("test", asked))]

    assert kinds("claude-x", "claude-x") == ["thinking", "tool_use"]
    assert kinds("claude-x-20260101", "claude-x-latest") == ["thinking", "tool_use"]
    assert kinds("claude-y", "claude-x") == ["tool_use"]
    assert model_family("claude-x@20260101") == "claude-x"


def test_a_session_that_changes_its_model_drops_and_regains_thinking() -> None:
    encoder = provider().prepare(CallConfig("test", "claude-x")).encoder()
    message = assistant(THOUGHT, CALL, entries=[{"signature": "s"}, None])
    messages = [user_message("u", "go"), message, result("ok")]
    seen = []
    for model in ("claude-x", "claude-y", "claude-x"):
        header = RequestHeader(CallConfig("test", model, None, None, 100), frozenset(), "s", TOOLS)
        seen.append(encoder.encode(ModelRequest(header, messages)))
    assert b'"thinking"' in seen[0] and b'"thinking"' not in seen[1]
    assert seen[0] == seen[2]


def test_a_message_never_ends_with_thinking() -> None:
    cut = assistant(TextBlock("t"), THOUGHT, entries=[None, {"signature": "s"}])
    assert [block["type"] for block in content_of(cut)] == ["text"]
    assert content_of(assistant(THOUGHT, entries=[{"signature": "s"}])) == []


# --- calls ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "wire"),
    [
        ('{"a": 1.50}', {"a": 1.5}),
        ("", {}),
        ("  ", {}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ('{"a":', {"_raw": '{"a":'}),
        ("[1]", {"_raw": "[1]"}),
        ('{"a":NaN}', {"_raw": '{"a":NaN}'}),
        ('{"a":1e999}', {"_raw": '{"a":1e999}'}),
        ('{"a":"\\ud83d"}', {"a": "\ufffd"}),
        ("9" * 5000, {"_raw": "9" * 5000}),
    ],
)
def test_arguments_become_an_object_and_none_is_lost(raw: str, wire: object) -> None:
    assert json.loads(wire_input(raw)) == wire


def test_arguments_nested_too_deep_are_kept_as_text() -> None:
    raw = '{"a":' * 5000 + "1" + "}" * 5000
    assert json.loads(wire_input(raw)) == {"_raw": raw}


def test_ids_of_other_providers_are_made_portable_in_call_and_result_alike() -> None:
    messages = [
        user_message("u", "go"),
        assistant(ToolCallBlock("functions.bash:0", "f.g", "{}"), ToolCallBlock("x" * 80, "", "{}")),
        result("1", "functions.bash:0"),
        result("2", "x" * 80),
    ]
    wire = body_of(messages)["messages"]
    ids = [block["id"] for block in wire[1]["content"]]
    assert [block["tool_use_id"] for block in wire[2]["content"]] == ids
    assert [safe_id(identity) for identity in ids] == ids
    assert len(set(ids)) == 2
    assert [block["name"] for block in wire[1]["content"]] == ["f_g", "unnamed"]
    assert safe_id("a.b") != safe_id("a:b")
    assert safe_id("toolu_01-x") == "toolu_01-x"


def test_ids_that_come_again_in_a_later_turn_stay_apart() -> None:
    turn = [assistant(ToolCallBlock("call_0", "f", "{}")), result("ok", "call_0"), user_message("u", "on")]
    messages = [user_message("u", "go"), *turn * 3]
    prepared = provider().prepare(CallConfig("test", "claude-x"))
    body = prepared.encoder().encode(ModelRequest(RequestHeader(prepared.config, system="s"), messages))
    assert request_faults(body) == []
    blocks = [block for message in json.loads(body)["messages"] for block in message["content"]]
    assert len({block["id"] for block in blocks if block["type"] == "tool_use"}) == 3


# --- effort and limits ------------------------------------------------------------------------


def members(model: str, effort: str | None, limit: int | None = None) -> tuple[Any, Any]:
    body = body_of([user_message("u", "x")], CallConfig("test", model, effort, None, limit))
    return body.get("thinking"), body.get("output_config")


def test_no_effort_sends_nothing_and_off_says_so() -> None:
    assert members("claude-x", None) == (None, None)
    assert members("claude-x", "off") == members("claude-x", "none") == ({"type": "disabled"}, None)


@pytest.mark.parametrize(
    "model",
    ["claude-opus-4-6", "claude-sonnet-5", "claude-x", "claude-opus-4-15", "claude-haiku-4-6-20270101"],
)
def test_newer_models_get_a_word(model: str) -> None:
    assert members(model, "medium") == ({"type": "adaptive"}, {"effort": "medium"})
    assert members(model, "xhigh") == ({"type": "adaptive"}, {"effort": "max"})


@pytest.mark.parametrize(
    "model",
    [
        "claude-3-7-sonnet-latest",
        "claude-sonnet-4-20250514",
        "claude-opus-4-1-20250805",
        "claude-haiku-4-5",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "other-vendors-model",
    ],
)
def test_older_models_and_other_vendors_get_a_budget_below_the_limit(model: str) -> None:
    assert members(model, "low") == ({"type": "enabled", "budget_tokens": 4096}, None)
    assert members(model, "max") == ({"type": "enabled", "budget_tokens": 24_000}, None)
    assert members(model, "max", 1100) == ({"type": "enabled", "budget_tokens": 1024}, None)
    with pytest.raises(UsageError, match="above 1024"):
        members(model, "low", 1024)


def test_an_unknown_effort_and_a_temperature_beside_thinking_are_refused() -> None:
    with pytest.raises(UsageError, match="effort 'extreme'") as caught:
        provider().prepare(CallConfig("test", "claude-x", "extreme"))
    assert caught.value.hint == "use one of off, low, medium, high, max"
    with pytest.raises(UsageError, match="no temperature"):
        provider().prepare(CallConfig("test", "claude-x", "low", 0.5))
    assert body_of([user_message("u", "x")], CallConfig("test", "claude-x", "off", 0.5))["temperature"] == 0.5


def test_an_output_limit_is_always_sent_and_said_to_be_the_adapters() -> None:
    prepared = provider().prepare(CallConfig("test", "claude-x"))
    assert (prepared.config.max_tokens, prepared.adapter_defaults) == (32_000, {"maxTokens"})
    small = provider(models=(ModelFacts("claude-x", 200_000, 8_192),)).prepare(CallConfig("test", "claude-x"))
    assert (small.config.max_tokens, small.context_window) == (8_192, 200_000)
    chosen = provider().prepare(CallConfig("test", "claude-x", None, None, 77))
    assert (chosen.config.max_tokens, chosen.adapter_defaults) == (77, frozenset())


def test_the_key_goes_into_the_vendors_own_header() -> None:
    assert provider()._headers() == {"anthropic-version": "2023-06-01", "x-api-key": KEY}
    assert "x-api-key" not in provider(api_key=None)._headers()


@pytest.mark.parametrize("base", ["http://host", "http://host/", "http://host/v1", "http://host/v1/"])
def test_both_forms_of_the_base_url_lead_to_the_same_place(base: str) -> None:
    assert provider(base_url=base)._url == "http://host/v1/messages"
