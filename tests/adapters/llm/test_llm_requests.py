"""Request bodies: what a message becomes on the wire, and the stable prefix."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.adapters.llm.chat_assistant import wire_arguments
from dsh_actors.adapters.llm.chat_request import ChatEncoder, wire_messages
from dsh_actors.adapters.llm.deepseek import DeepSeekDialect
from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.adapters.llm.registry import build_provider
from dsh_actors.adapters.llm.settings import ModelFacts, ProviderConfig
from dsh_actors.config.profiles import PROFILES
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
from dsh_actors.errors import ConfigError, CredentialError, UsageError
from tests.adapters.llm.llm_kit import KEY, config

CONFIG = CallConfig("deepseek", "deepseek-flash", "high", None, 100)


def request(
    messages: list[Message], config: CallConfig = CONFIG, system: str | None = "Be brief."
) -> ModelRequest:
    tools = (ToolSchema("bash", "Run.", {"type": "object"}),)
    return ModelRequest(RequestHeader(config, frozenset(), system, tools), messages)


def assistant(*blocks: object, provider: str = "deepseek", replay: dict | None = None) -> Message:
    return Message("a", "assistant", blocks, ModelSource(provider, "m", replay))


def result(text: str, is_error: bool = False, call: str = "c1") -> Message:
    content = (TextBlock(text),) if text else ()
    return Message("r", "user", (ToolResultBlock(call, content, is_error),), ToolSource(call))


def encoder() -> ChatEncoder:
    return ChatEncoder("deepseek", DeepSeekDialect())


CALL = ToolCallBlock("c1", "bash", '{"command": "ls"}')


def test_a_conversation_has_its_members_in_a_fixed_order_with_messages_last() -> None:
    messages = [user_message("u", "héllo"), assistant(ReasoningBlock(" r\n"), CALL), result("ok")]
    body = encoder().encode(request(messages))
    assert (
        body
        == (
            '{"model":"deepseek-flash","stream":true,"stream_options":{"include_usage":true},'
            '"thinking":{"type":"enabled"},"reasoning_effort":"high","max_tokens":100,'
            '"tools":[{"type":"function","function":{"name":"bash","description":"Run.",'
            '"parameters":{"type":"object"}}}],"messages":[{"role":"system","content":"Be brief."},'
            '{"role":"user","content":"héllo"},{"role":"assistant","content":"","reasoning_content":" r\\n",'
            '"tool_calls":[{"id":"c1","type":"function","function":{"name":"bash",'
            '"arguments":"{\\"command\\": \\"ls\\"}"}}]},{"role":"tool","tool_call_id":"c1","content":"ok"}]}'
        ).encode()
    )


def test_reasoning_goes_back_only_to_the_provider_it_came_from() -> None:
    foreign = assistant(ReasoningBlock("r"), TextBlock("t"), provider="other")
    assert wire_messages(foreign, "deepseek") == [{"role": "assistant", "content": "t"}]
    own = assistant(ReasoningBlock("r"), TextBlock("t"))
    assert wire_messages(own, "deepseek")[0]["reasoning_content"] == "r"


def test_reasoning_goes_back_under_the_name_it_came_with() -> None:
    named = assistant(ReasoningBlock("r"), TextBlock("t"), replay={"response": {"reasoningKey": "reasoning"}})
    assert wire_messages(named, "deepseek") == [{"role": "assistant", "content": "t", "reasoning": "r"}]
    details = [{"type": "reasoning.text", "text": "r", "signature": "s"}]
    detailed = assistant(ReasoningBlock("r"), replay={"response": {"reasoning_details": details}})
    assert wire_messages(detailed, "deepseek") == [
        {"role": "assistant", "content": "", "reasoning_details": details}
    ]


def test_a_tool_turn_without_reasoning_gets_an_empty_one_where_it_is_required() -> None:
    (wire,) = wire_messages(assistant(CALL, provider="other"), "deepseek", PROFILES["deepseek"])
    assert wire["reasoning_content"] == ""
    assert "reasoning_content" not in wire_messages(assistant(CALL), "deepseek")[0]


def test_an_assistant_message_of_nothing_is_left_out() -> None:
    assert wire_messages(assistant(), "deepseek") == []
    assert wire_messages(assistant(ReasoningBlock("r"), provider="other"), "deepseek") == []
    assert wire_messages(assistant(ReasoningBlock("r")), "deepseek") != []


def test_tool_results_say_that_they_are_empty_or_errors() -> None:
    def shown(message: Message) -> str:
        return wire_messages(message, "x")[0]["content"]

    assert shown(result("")) == "(no output)"
    assert shown(result("boom", is_error=True)) == "Error: boom"
    assert shown(result("Error: boom", is_error=True)) == "Error: boom"


def test_text_comes_before_the_tool_results_of_the_same_message() -> None:
    both = Message("m", "user", (ToolResultBlock("c", (TextBlock("r"),)), TextBlock("t")), UserSource())
    assert [wire["role"] for wire in wire_messages(both, "x")] == ["user", "tool"]


def test_what_has_no_text_form_is_named() -> None:
    image = Message("m", "user", (TextBlock("see "), OpaqueBlock({"type": "image"})), UserSource())
    assert wire_messages(image, "x")[0]["content"] == "see [image not shown]"


@pytest.mark.parametrize(
    ("raw", "wire"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        ('{"a":', "{}"),
        ("null", "{}"),
        ("[1]", "{}"),
        ('"x"', "{}"),
        ('{"a":1}{"b":2}', "{}"),
        ("{'a': 1}", "{}"),
        ('{"a":NaN}', "{}"),
        ('"{\\"a\\": 1}"', '{"a": 1}'),
        ("[" * 100_000, "{}"),
        ("9" * 5000, "{}"),
    ],
)
def test_arguments_on_the_wire_are_always_an_object(raw: str, wire: str) -> None:
    assert wire_arguments(raw) == wire


def test_half_surrogate_pairs_never_reach_the_wire() -> None:
    messages = [
        user_message("u", "a\ud800"),
        assistant(ToolCallBlock("c\udc00", "f\ud800", '{"a":"\ud83d"}')),
    ]
    body = encoder().encode(request(messages, system="s\udfff"))
    assert b"\\ud" not in body
    texts = json.loads(body.decode())["messages"]
    assert [texts[0]["content"], texts[1]["content"]] == ["s\ufffd", "a\ufffd"]


TEXT = st.text(st.characters(), max_size=8)
MESSAGE = st.one_of(
    TEXT.map(lambda text: user_message("u", text)),
    st.tuples(TEXT, TEXT).map(lambda pair: assistant(ReasoningBlock(pair[0]), TextBlock(pair[1]))),
    st.tuples(TEXT, TEXT).map(lambda pair: assistant(TextBlock(pair[0]), ToolCallBlock("c1", "f", pair[1]))),
    st.tuples(TEXT, st.booleans()).map(lambda pair: result(*pair)),
)


@given(
    messages=st.lists(MESSAGE, max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=5),
    system=st.booleans(),
)
def test_a_request_that_extends_another_extends_its_bytes(
    messages: list[Message], cuts: list[int], system: bool
) -> None:
    incremental = encoder()
    previous = b""
    header = request([], system="s" if system else None).header
    for end in [*sorted(cuts), len(messages)]:
        body = incremental.encode(ModelRequest(header, messages[:end]))
        assert body == encoder().encode(ModelRequest(header, messages[:end]))
        assert json.loads(body)["model"] == "deepseek-flash"
        if previous:
            assert body.startswith(previous[:-2])
        previous = body


def test_a_changed_history_or_header_is_encoded_anew() -> None:
    coder, messages = encoder(), [user_message("u", "one"), user_message("v", "two")]
    coder.encode(request(messages))
    shorter = [user_message("w", "summary"), messages[1]]
    assert coder.encode(request(shorter)) == encoder().encode(request(shorter))
    other = dataclasses.replace(CONFIG, model="deepseek-v4-pro")
    assert coder.encode(request(shorter, other)) == encoder().encode(request(shorter, other))


def test_the_list_of_messages_may_grow_in_place() -> None:
    coder, messages = encoder(), [user_message("u", "one")]
    first = coder.encode(request(messages))
    messages.append(user_message("v", "two"))
    assert coder.encode(request(messages)).startswith(first[:-2])


def test_a_late_step_costs_no_more_encoding_than_an_early_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Message] = []
    messages = [user_message(str(number), "text") for number in range(500)]
    coder = encoder()
    coder.encode(request(messages))
    from dsh_actors.adapters.llm import chat_request

    def counted(message: Message, *rest: object) -> list[dict]:
        seen.append(message)
        return wire_messages(message, *rest)

    monkeypatch.setattr(chat_request, "wire_messages", counted)
    messages.append(user_message("new", "text"))
    coder.encode(request(messages))
    assert seen == messages[-1:]


# --- preparing --------------------------------------------------------------------------------


def deepseek(**changes: object) -> OpenAiCompatibleProvider:
    values = {
        "name": "deepseek",
        "type": "deepseek",
        "base_url": "https://api.deepseek.com",
        "api_key": KEY,
        "api_key_env": "DEEPSEEK_API_KEY",
        "builtin_url": True,
    }
    return build_provider(ProviderConfig(**values | changes))


def test_deepseek_fills_in_effort_and_output_and_says_so() -> None:
    prepared = deepseek().prepare(CallConfig("deepseek", "deepseek-flash"))
    assert prepared.config == CallConfig("deepseek", "deepseek-flash", "high", None, 256_000)
    assert prepared.adapter_defaults == {"reasoningEffort", "maxTokens"}
    assert prepared.context_window == 1_048_576
    chosen = deepseek().prepare(CallConfig("deepseek", "deepseek-flash", "xhigh", 0.5, 10))
    assert (chosen.config.reasoning_effort, chosen.adapter_defaults) == ("max", frozenset())


def test_deepseek_without_thinking_says_disabled_and_no_effort() -> None:
    body = json.loads(encoder().encode(request([], dataclasses.replace(CONFIG, reasoning_effort="off"))))
    assert body["thinking"] == {"type": "disabled"}
    assert "reasoning_effort" not in body


def test_wrong_efforts_and_limits_are_refused() -> None:
    with pytest.raises(UsageError, match="effort 'extreme'") as caught:
        deepseek().prepare(CallConfig("deepseek", "deepseek-flash", "extreme"))
    assert caught.value.hint == "use one of off, low, high, max"
    with pytest.raises(UsageError, match="at most 393216"):
        deepseek().prepare(CallConfig("deepseek", "deepseek-flash", max_tokens=400_000))
    with pytest.raises(UsageError, match="at least 1"):
        deepseek().prepare(CallConfig("deepseek", "deepseek-flash", max_tokens=0))


def test_an_unknown_model_is_refused_where_the_catalogue_is_the_vendors() -> None:
    with pytest.raises(UsageError, match="no model 'deepseek-flahs'") as caught:
        deepseek().prepare(CallConfig("deepseek", "deepseek-flahs"))
    assert caught.value.hint == "did you mean deepseek/deepseek-flash?"
    own = deepseek(base_url="http://127.0.0.1:1", builtin_url=False).prepare(CallConfig("deepseek", "mine"))
    assert (own.config.max_tokens, own.context_window) == (None, None)


def test_models_of_the_configuration_replace_the_catalogue() -> None:
    provider = deepseek(models=(ModelFacts("mine", 1000, 100, 50),), builtin_url=False)
    prepared = provider.prepare(CallConfig("deepseek", "mine"))
    assert (prepared.config.max_tokens, prepared.context_window) == (50, 1000)


@pytest.mark.parametrize("key", [None, "", "  "])
def test_a_missing_key_names_its_variable(key: str | None) -> None:
    with pytest.raises(CredentialError) as caught:
        deepseek(api_key=key).prepare(CallConfig("deepseek", "deepseek-flash"))
    assert (caught.value.code, caught.value.hint) == ("MISSING_CREDENTIAL", "set DEEPSEEK_API_KEY")


@pytest.mark.parametrize("key", ["sk-sécret", "sk-one two", "sk-a\nb"])
def test_a_key_that_cannot_be_one_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(CredentialError) as caught:
        deepseek(api_key=key).prepare(CallConfig("deepseek", "deepseek-flash"))
    assert caught.value.code == "INVALID_CREDENTIAL"
    assert key not in str(caught.value) + str(caught.value.hint)


def test_blanks_around_a_key_do_not_matter_and_a_server_may_need_none() -> None:
    assert deepseek(api_key=f" {KEY}\n").prepare(CallConfig("deepseek", "deepseek-flash"))
    open_server = OpenAiCompatibleProvider(config(api_key=None))
    assert open_server.prepare(CallConfig("test", "any")).adapter_defaults == frozenset()


def test_settings_never_show_the_key() -> None:
    assert KEY not in repr(config(headers={"x-key": KEY}))


@pytest.mark.parametrize("url", ["", "api.example.com", "ftp://x", "http://", "http://x:port", "http://[::1"])
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="base_url"):
        config(url)


def test_a_provider_type_is_found_by_name_or_refused() -> None:
    with pytest.raises(ConfigError, match="no type 'magic'") as caught:
        build_provider(config(type="magic"))
    assert "deepseek, openai_compatible" in caught.value.hint
