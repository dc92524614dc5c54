"""Vendor profiles: how each kind of server wants its requests, and what its answers and errors mean."""

from __future__ import annotations

import dataclasses
import json

import pytest

from dsh_actors.adapters.llm.chat_request import BRIDGE, ChatEncoder, wire_messages
from dsh_actors.adapters.llm.deepseek import DeepSeekDialect
from dsh_actors.adapters.llm.dialect import ProfileDialect
from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.adapters.llm.registry import build_provider
from dsh_actors.adapters.llm.strict_schema import strict_fault
from dsh_actors.config.profiles import PROFILES, Profile, changed_profile, find_profile
from dsh_actors.core.chunks import CallConfig, Chunk, Finish
from dsh_actors.core.messages import (
    Message,
    ModelSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    user_message,
)
from dsh_actors.core.request import ModelRequest, RequestHeader, ToolSchema
from dsh_actors.errors import ConfigError, UsageError
from tests.adapters.llm.llm_kit import (
    DONE,
    HI,
    KEY,
    MemoryTransport,
    Server,
    answer,
    assemble,
    call,
    chunk,
    config,
    delta,
    failure_of,
    finish,
    head,
)

TOOL = ToolSchema("bash", "Run.", {"type": "object"})


def body_of(
    profile: Profile,
    *messages: Message,
    system: str | None = "Be brief.",
    tools: tuple[ToolSchema, ...] = (TOOL,),
    provider: str = "test",
    **members: object,
) -> dict:
    """The request that a server with this profile gets, as JSON."""
    dialect = ProfileDialect(profile)
    resolved = dialect.resolve(CallConfig(**{"provider": provider, "model": "m", **members}), None)
    header = RequestHeader(resolved, frozenset(), system, tools)
    return json.loads(ChatEncoder(provider, dialect).encode(ModelRequest(header, messages)))


def assistant(
    *blocks: object, provider: str = "test", model: str = "m", replay: dict | None = None
) -> Message:
    return Message("a", "assistant", blocks, ModelSource(provider, model, replay))


def result(text: str, call_id: str) -> Message:
    return Message("r", "user", (ToolResultBlock(call_id, (TextBlock(text),)),), ToolSource(call_id))


def provider_with(profile: Profile, pieces: list[bytes], status: int = 200, **headers: str):
    transport = MemoryTransport(pieces, status, headers or None)
    return OpenAiCompatibleProvider(config(profile=profile), transport=transport)


# --- choosing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://api.deepseek.com", "deepseek"),
        ("https://mine.openai.azure.com/openai/v1", "azure"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "dashscope"),
        ("https://api.moonshot.cn/v1", "kimi"),
        ("https://api.z.ai/api/paas/v4", "glm"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini"),
        ("https://api.mistral.ai/v1", "mistral"),
        ("https://api.x.ai/v1", "xai"),
        ("https://api.together.xyz/v1", "together"),
        ("https://api.minimax.io/v1", "minimax"),
        ("https://api.cerebras.ai/v1", "cerebras"),
        ("https://api.fireworks.ai/inference/v1", "fireworks"),
        ("http://127.0.0.1:11434/v1", "ollama"),
        ("http://localhost:1234/v1", "lmstudio"),
        ("http://127.0.0.1:8000/v1", "generic"),
        ("https://api.openai.com.example.org/v1", "generic"),
    ],
)
def test_a_profile_is_guessed_from_the_address(url: str, name: str) -> None:
    assert find_profile(None, url).name == name


def test_a_named_profile_comes_before_the_address_and_an_unknown_one_names_the_nearest() -> None:
    assert find_profile("vllm", "https://api.openai.com/v1").name == "vllm"
    with pytest.raises(ConfigError, match=r"no profile 'olama'; did you mean ollama\?"):
        find_profile("olama", "")


def test_single_switches_can_be_set_and_wrong_ones_are_refused() -> None:
    changed = changed_profile(PROFILES["vllm"], {"think_tags": True, "replay_reasoning": "never"})
    assert (changed.think_tags, changed.replay_reasoning, changed.thinking_style) == (
        True,
        "never",
        "template",
    )
    for changes, words in (
        ({"think_tag": True}, "did you mean think_tags"),
        ({"think_tags": "yes"}, "think_tags must be true or false"),
        ({"system_role": "boss"}, "system_role must be one of system, developer, reasoning"),
        ({"auth_header": 3}, "auth_header must be a text"),
        ({"errors": {"busy": "OVERLODED"}}, "did you mean OVERLOADED"),
        ({"hosts": ["x"]}, "unknown switch 'hosts'"),
    ):
        with pytest.raises(ConfigError, match=words):
            changed_profile(PROFILES["generic"], changes)


def test_own_meanings_of_errors_are_added_to_the_profiles() -> None:
    glm = changed_profile(PROFILES["glm"], {"errors": {"Busy_Now": "OVERLOADED"}})
    assert (glm.errors["busy_now"], glm.errors["1302"]) == ("OVERLOADED", "RATE_LIMIT")


# --- requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "effort", "members"),
    [
        ("generic", "high", {"reasoning_effort": "high"}),
        ("generic", "off", {}),
        ("gemini", "off", {"reasoning_effort": "none"}),
        ("ollama", "off", {"reasoning_effort": "none"}),
        ("vllm", "off", {"chat_template_kwargs": {"enable_thinking": False}}),
        ("llamacpp", "high", {"chat_template_kwargs": {"enable_thinking": True}}),
        ("dashscope", "high", {"enable_thinking": True}),
        ("kimi", "off", {"thinking": {"type": "disabled"}}),
        ("glm", "high", {"thinking": {"type": "enabled"}, "tool_stream": True}),
        ("glm", None, {"tool_stream": True}),
        ("openrouter", "low", {"reasoning": {"effort": "low"}}),
        ("openrouter", "off", {"reasoning": {"enabled": False}}),
        ("minimax", None, {"reasoning_split": True}),
        ("mistral", "off", {}),
    ],
)
def test_each_vendor_has_its_own_words_for_thinking(name: str, effort: str | None, members: dict) -> None:
    body = body_of(PROFILES[name], user_message("u", "hi"), reasoning_effort=effort)
    common = {"model", "stream", "stream_options", "tools", "messages"}
    assert {key: value for key, value in body.items() if key not in common} == members


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_every_profile_gives_a_body_whose_messages_come_last(name: str) -> None:
    body = body_of(PROFILES[name], user_message("u", "hi"), max_tokens=9)
    assert list(body)[-2:] == ["tools", "messages"]
    assert body[PROFILES[name].max_tokens_field] == 9
    assert ("stream_options" in body) is PROFILES[name].stream_options


def test_an_effort_is_refused_where_the_server_has_no_member_for_it() -> None:
    with pytest.raises(UsageError, match="test takes no reasoning effort") as caught:
        body_of(PROFILES["mistral"], reasoning_effort="high")
    assert (caught.value.code, "thinking_style" in caught.value.hint) == (
        "UNSUPPORTED_REASONING_EFFORT",
        True,
    )


def test_reasoning_models_of_openai_get_a_developer_message_and_no_temperature() -> None:
    openai = PROFILES["openai"]
    body = body_of(openai, user_message("u", "x"), model="o3-mini", temperature=0.5, max_tokens=7)
    assert body["messages"][0]["role"] == "developer"
    assert "temperature" not in body and body["max_completion_tokens"] == 7
    assert body["stream_options"] == {"include_usage": True, "include_obfuscation": False}
    plain = body_of(openai, user_message("u", "x"), model="gpt-4o", temperature=0.5)
    assert (plain["messages"][0]["role"], plain["temperature"]) == ("system", 0.5)
    assert "temperature" not in body_of(PROFILES["kimi"], temperature=0.5)


def test_own_members_of_the_body_are_sent_and_win() -> None:
    profile = dataclasses.replace(PROFILES["glm"], extra_body={"tool_stream": False, "user_id": "team"})
    body = body_of(profile, user_message("u", "x"))
    assert (body["tool_stream"], body["user_id"]) == (False, "team")


@pytest.mark.parametrize(
    ("replay", "with_calls", "without"),
    [("all", "r", "r"), ("tool_turns", "r", None), ("never", None, None)],
)
def test_reasoning_is_replayed_as_far_as_the_server_wants_it(
    replay: str, with_calls: str | None, without: str | None
) -> None:
    profile = dataclasses.replace(PROFILES["generic"], replay_reasoning=replay)
    calls = assistant(ReasoningBlock("r"), ToolCallBlock("c", "bash", "{}"))
    text = assistant(ReasoningBlock("r"), TextBlock("t"))
    assert wire_messages(calls, "test", profile)[0].get("reasoning_content") == with_calls
    assert wire_messages(text, "test", profile)[0].get("reasoning_content") == without


def test_sealed_reasoning_goes_back_to_the_model_that_made_it_only() -> None:
    replay = {"response": {"reasoningKey": "reasoning", "reasoning_details": [{"type": "x", "data": "s"}]}}
    sealed = assistant(ReasoningBlock("r"), TextBlock("t"), replay=replay)
    own, other = (body_of(PROFILES["openrouter"], sealed, model=model)["messages"][1] for model in ("m", "n"))
    assert own["reasoning_details"] == [{"type": "x", "data": "s"}]
    assert other == {"role": "assistant", "content": "t", "reasoning": "r"}


def test_another_model_makes_the_encoder_begin_anew() -> None:
    replay = {"response": {"reasoning_details": [{"data": "s"}]}}
    messages = [assistant(TextBlock("t"), replay=replay)]
    dialect = ProfileDialect(PROFILES["openrouter"])
    coder = ChatEncoder("test", dialect)
    bodies = []
    for model in ("m", "n", "m"):
        header = RequestHeader(CallConfig("test", model), frozenset(), None, ())
        bodies.append(json.loads(coder.encode(ModelRequest(header, messages)))["messages"][0])
    assert ["reasoning_details" in body for body in bodies] == [True, False, True]


def test_ids_of_another_providers_calls_are_made_acceptable_and_stay_paired() -> None:
    foreign = "functions.bash:0"
    messages = [assistant(ToolCallBlock(foreign, "bash", "{}"), provider="kimi"), result("ok", foreign)]
    _, called, told = body_of(PROFILES["generic"], *messages)["messages"]
    wire_id = called["tool_calls"][0]["id"]
    assert wire_id == told["tool_call_id"] != foreign
    assert wire_id.startswith("functions_bash_0_") and len(wire_id) <= 64
    assert body_of(PROFILES["generic"], *messages)["messages"][1]["tool_calls"][0]["id"] == wire_id
    own = body_of(PROFILES["kimi"], *messages, provider="kimi")["messages"]
    assert own[1]["tool_calls"][0]["id"] == own[2]["tool_call_id"] == foreign


def test_ids_that_differ_in_forbidden_characters_only_stay_different() -> None:
    calls = [ToolCallBlock(name, "bash", "{}") for name in ("a.b", "a:b", "a" * 80, "a" * 81, "ok_1")]
    wire = wire_messages(assistant(*calls, provider="other"), "test")[0]["tool_calls"]
    ids = [each["id"] for each in wire]
    assert len(set(ids)) == 5 and all(len(each) <= 64 for each in ids) and ids[-1] == "ok_1"


def test_an_id_used_again_by_the_own_provider_is_its_own_again() -> None:
    foreign = assistant(ToolCallBlock("a.b", "bash", "{}"), provider="other")
    own = assistant(ToolCallBlock("a.b", "bash", "{}"))
    told = body_of(PROFILES["generic"], foreign, result("1", "a.b"), own, result("2", "a.b"))["messages"]
    ids = [told[1]["tool_calls"][0]["id"], told[2]["tool_call_id"]]
    assert ids[0] == ids[1] != "a.b"
    assert told[3]["tool_calls"][0]["id"] == told[4]["tool_call_id"] == "a.b"


def test_mistral_gets_ids_of_nine_characters_and_a_word_between_results_and_user() -> None:
    call_id = "call_0123456789"
    messages = [
        assistant(ToolCallBlock(call_id, "bash", "{}")),
        result("ok", call_id),
        user_message("u", "on"),
    ]
    wire = body_of(PROFILES["mistral"], *messages)["messages"]
    assert [m["role"] for m in wire] == ["system", "assistant", "tool", "assistant", "user"]
    wire_id = wire[1]["tool_calls"][0]["id"]
    assert wire_id == wire[2]["tool_call_id"] and len(wire_id) == 9 and wire_id.isalnum()
    assert wire[3] == {"role": "assistant", "content": BRIDGE}
    kept = assistant(ToolCallBlock("abcdefgh9", "bash", "{}"))
    assert wire_messages(kept, "test", PROFILES["mistral"])[0]["tool_calls"][0]["id"] == "abcdefgh9"


def test_adjacent_user_messages_are_one_where_a_template_wants_turns_to_alternate() -> None:
    profile = changed_profile(PROFILES["vllm"], {"merge_same_role": True})
    messages = [
        user_message("1", "a"),
        user_message("2", "b"),
        assistant(TextBlock("c")),
        user_message("3", "d"),
    ]
    wire = body_of(profile, *messages, system=None)["messages"]
    assert [m["content"] for m in wire] == ["a\n\nb", "c", "d"]
    # One by one gives the same bytes as all at once.
    dialect = ProfileDialect(profile)
    header = RequestHeader(CallConfig("test", "m"), frozenset(), None, ())
    coder = ChatEncoder("test", dialect)
    for end in range(1, 5):
        last = coder.encode(ModelRequest(header, messages[:end]))
    assert json.loads(last)["messages"] == wire


def test_signatures_of_tool_calls_go_back_with_them() -> None:
    seal = {"google": {"thought_signature": "s=="}}
    raw = {"id": "", "function": {"name": "f", "arguments": "{}"}, "type": "function"}
    body = delta(content="t") + delta(tool_calls=[{**raw, "extra_content": seal}]) + delta(tool_calls=[raw])
    chunks = call(provider_with(PROFILES["gemini"], [body + finish("stop") + DONE]))
    blocks, state = assemble(chunks).blocks(), chunks[-1].replay_state
    assert state["blocks"] == [None, {"extra_content": seal}, None]
    wire = body_of(PROFILES["gemini"], assistant(*blocks, replay=state))["messages"][1]["tool_calls"]
    assert [each.get("extra_content") for each in wire] == [seal, None]
    elsewhere = body_of(PROFILES["generic"], assistant(*blocks, replay=state))["messages"][1]["tool_calls"]
    assert not any("extra_content" in each for each in elsewhere)


# --- strict tools, JSON mode, retired models ----------------------------------------------------

STRICT = changed_profile(PROFILES["deepseek"], {"strict_tools": True})
FITTING = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "kind": {"enum": ["a", "b"]}},
    "required": ["path", "kind"],
    "additionalProperties": False,
}


def test_strict_tools_mark_every_function_and_use_the_beta_address() -> None:
    body = body_of(STRICT, user_message("u", "x"), tools=(ToolSchema("t", "T.", FITTING),))
    assert body["tools"][0]["function"]["strict"] is True
    for base, path in (("", "/beta"), ("/v1", "/beta"), ("/beta", "/beta")):
        with Server(lambda connection, _: connection.sendall(head() + chunk(HI) + chunk(b""))) as server:
            url = server.url.removesuffix("/v1") + base
            call(build_provider(config(url, type="deepseek", profile=STRICT)))
            assert server.requests[0].startswith(f"POST {path}/chat/completions ".encode())


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"required": ["path"]}, "the schema does not require kind"),
        ({"additionalProperties": True}, "the schema lacks additionalProperties: false"),
        ({"properties": {"path": {"type": "string", "minLength": 1}, "kind": {}}}, "path has minLength"),
        ({"properties": {"path": {"type": "null"}, "kind": {}}}, "path has the type 'null'"),
        (
            {"properties": {"path": {"type": "string", "format": "date"}, "kind": {}}},
            "path has the format 'date'",
        ),
        ({"properties": {"path": {"type": "array", "items": {}}, "kind": {}}}, r"path\[\] has no type"),
        (
            {"properties": {"path": {"type": ["string", "null"]}, "kind": {}}},
            r"path has the type \['string', 'null'\]",
        ),
        (
            {"properties": {"path": {"type": "string", "format": ["uuid"]}, "kind": {}}},
            r"path has the format \['uuid'\]",
        ),
        ({"properties": ["path"]}, "the schema has properties that is no object"),
        ({"required": None}, "the schema has required that is no list"),
        ({"$defs": []}, r"the schema has \$defs that is no object"),
        ({"anyOf": None}, "the schema has anyOf that is no list"),
    ],
)
def test_a_tool_that_strict_mode_refuses_is_named_with_the_reason(change: dict, fault: str) -> None:
    assert strict_fault(FITTING) is None
    with pytest.raises(UsageError, match=f"the tool t does not fit: {fault}"):
        body_of(STRICT, user_message("u", "x"), tools=(ToolSchema("t", "T.", FITTING | change),))


def test_json_mode_is_asked_for_only_where_the_conversation_names_the_format() -> None:
    profile = changed_profile(PROFILES["deepseek"], {"json_object": True})
    body = body_of(profile, user_message("u", "Answer in JSON."))
    assert body["response_format"] == {"type": "json_object"}
    with pytest.raises(UsageError, match="needs the word json"):
        body_of(profile, user_message("u", "Answer."))


@pytest.mark.parametrize("model", ["deepseek-chat", "deepseek-reasoner"])
def test_a_retired_model_names_its_successor(model: str) -> None:
    settings = config("https://api.deepseek.com", name="deepseek", type="deepseek", builtin_url=True)
    with pytest.raises(UsageError, match="retired") as caught:
        build_provider(settings).prepare(CallConfig("deepseek", model))
    assert caught.value.hint == "use deepseek/deepseek-flash"
    own = build_provider(dataclasses.replace(settings, builtin_url=False))
    assert own.prepare(CallConfig("deepseek", model)).config.model == model


# --- the key and the address --------------------------------------------------------------------


def test_azure_gets_its_key_in_a_header_of_its_own_and_its_version_in_the_query() -> None:
    with Server(lambda connection, _: connection.sendall(head() + chunk(HI) + chunk(b""))) as server:
        url = server.url.removesuffix("/v1") + "/openai/deployments/d?api-version=2024-10-21"
        call(OpenAiCompatibleProvider(config(url, profile=PROFILES["azure"])))
        request = server.requests[0]
    assert request.startswith(b"POST /openai/deployments/d/chat/completions?api-version=2024-10-21 HTTP/1.1")
    assert f"\r\napi-key: {KEY}\r\n".encode() in request
    assert b"authorization" not in request.lower()


def test_an_azure_deployment_without_its_version_is_refused() -> None:
    url = "https://mine.openai.azure.com/openai/deployments/d"
    with pytest.raises(ConfigError, match="api-version") as caught:
        OpenAiCompatibleProvider(config(url, profile=PROFILES["azure"]))
    assert "api-version=DATE" in caught.value.hint


# --- answers ------------------------------------------------------------------------------------


def thinking(text: str, step: int) -> list[Chunk]:
    profile = changed_profile(PROFILES["generic"], {"think_tags": True})
    pieces = [text[start : start + step] for start in range(0, len(text), step)]
    body = b"".join(delta(content=piece) for piece in pieces) + finish("stop") + DONE
    return call(provider_with(profile, [body]))


@pytest.mark.parametrize("step", [1, 2, 5, 7, 100])
@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("<think>a < b</think>\n\nyes", (ReasoningBlock("a < b"), TextBlock("yes"))),
        ("\n <think></thin </think>yes", (ReasoningBlock("</thin "), TextBlock("yes"))),
        ("no <think>x</think>", (TextBlock("no <think>x</think>"),)),
        ("<thin", (TextBlock("<thin"),)),
        ("<think>cut </th", (ReasoningBlock("cut </th"),)),
        ("<think>r</think>\n", (ReasoningBlock("r"),)),
        ("<think></think>t</think>", (TextBlock("t</think>"),)),
    ],
)
def test_reasoning_between_tags_is_reasoning_wherever_it_is_cut(text: str, blocks: tuple, step: int) -> None:
    assert assemble(thinking(text, step)).blocks() == blocks


def test_reasoning_between_tags_goes_back_as_it_came() -> None:
    text = "<think>a\n</think>\n\nyes"
    chunks = thinking(text, 3)
    message = assistant(*assemble(chunks).blocks(), replay=chunks[-1].replay_state)
    assert wire_messages(message, "test") == [{"role": "assistant", "content": text}]
    assert wire_messages(message, "other") == [{"role": "assistant", "content": "yes"}]
    never = dataclasses.replace(PROFILES["generic"], replay_reasoning="never")
    assert wire_messages(message, "test", never) == [{"role": "assistant", "content": "yes"}]


def test_tags_stay_text_without_the_switch() -> None:
    body = delta(content="<think>r</think>t") + finish("stop") + DONE
    assert assemble(answer(body)).blocks() == (TextBlock("<think>r</think>t"),)


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status", "error", "code"),
    [
        ("dashscope", 429, {"error": {"message": "x", "code": "insufficient_quota"}}, "RATE_LIMIT"),
        ("generic", 429, {"error": {"message": "x", "code": "insufficient_quota"}}, "QUOTA"),
        ("dashscope", 400, {"code": "Arrearage", "message": "x", "request_id": "r"}, "QUOTA"),
        ("dashscope", 429, {"code": "Throttling.AllocationQuota", "message": "x"}, "RATE_LIMIT"),
        ("dashscope", 400, {"code": "data_inspection_failed", "message": "x"}, "CONTENT_FILTER"),
        (
            "dashscope",
            400,
            {"code": "x", "message": "Range of input length should be [1, 9]"},
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        ("glm", 429, {"error": {"message": "x", "code": "1302"}}, "RATE_LIMIT"),
        ("glm", 429, {"error": {"message": "x", "code": "1113"}}, "QUOTA"),
        ("glm", 429, {"error": {"message": "resets at 10:00", "code": "1308"}}, "QUOTA"),
        ("glm", 429, {"error": {"message": "x", "code": 1312}}, "OVERLOADED"),
        ("glm", 400, {"error": {"message": "x", "code": "1301"}}, "CONTENT_FILTER"),
        ("glm", 400, {"error": {"message": "x", "code": "1261"}}, "CONTEXT_WINDOW_EXCEEDED"),
        ("generic", 400, {"error": {"message": "x", "code": "1261"}}, "CONTEXT_WINDOW_EXCEEDED"),
        ("glm", 401, {"error": {"message": "x", "code": "1002"}}, "AUTH"),
        ("kimi", 429, {"error": {"message": "x", "type": "engine_overloaded_error"}}, "OVERLOADED"),
        ("kimi", 429, {"error": {"message": "x", "type": "exceeded_current_quota_error"}}, "QUOTA"),
        ("kimi", 403, {"error": {"message": "You exceeded your current quota"}}, "QUOTA"),
        (
            "kimi",
            400,
            {"error": {"message": "exceeded model token limit: 9 (requested: 10)"}},
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        ("groq", 400, {"error": {"message": "x", "code": "tool_use_failed"}}, "TOOL_USE_FAILED"),
        ("groq", 498, {"error": {"message": "x"}}, "OVERLOADED"),
        (
            "gemini",
            429,
            [
                {
                    "error": {
                        "code": 429,
                        "message": "You exceeded your current quota",
                        "status": "RESOURCE_EXHAUSTED",
                    }
                }
            ],
            "RATE_LIMIT",
        ),
        ("gemini", 503, [{"error": {"code": 503, "message": "x", "status": "UNAVAILABLE"}}], "OVERLOADED"),
        (
            "azure",
            400,
            {"error": {"message": "x", "code": "content_filter", "innererror": {}}},
            "CONTENT_FILTER",
        ),
        (
            "xai",
            400,
            {"code": "x", "error": "maximum prompt length is 9 but has 10"},
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        ("mistral", 422, {"object": "error", "message": {"detail": [{"msg": "x"}]}}, "INVALID_REQUEST"),
        ("ollama", 404, {"error": "model 'x' not found, try pulling it first"}, "INVALID_REQUEST"),
        ("llamacpp", 503, {"error": {"code": 503, "message": "Loading model"}}, "OVERLOADED"),
        (
            "llamacpp",
            400,
            {"error": {"code": 400, "message": "x", "type": "exceed_context_size_error"}},
            "CONTEXT_WINDOW_EXCEEDED",
        ),
        (
            "together",
            422,
            {"error": {"message": "`inputs` tokens + `max_new_tokens` must be <= 9"}},
            "CONTEXT_WINDOW_EXCEEDED",
        ),
    ],
)
def test_a_vendors_errors_mean_what_the_vendor_says(name: str, status: int, error: object, code: str) -> None:
    chunks = call(provider_with(PROFILES[name], [json.dumps(error).encode()], status))
    assert failure_of(chunks).code == code


@pytest.mark.parametrize(
    ("number", "code"), [(1002, "RATE_LIMIT"), (1008, "QUOTA"), (1004, "AUTH"), (7, "SERVER")]
)
def test_an_error_that_minimax_sends_with_status_200_is_seen(number: int, code: str) -> None:
    refused = {"choices": None, "base_resp": {"status_code": number, "status_msg": "sorry"}}
    body = b"data: " + json.dumps(refused).encode() + b"\n\n"
    failure = failure_of(call(provider_with(PROFILES["minimax"], [body + DONE])))
    assert (failure.code, failure.message) == (code, "sorry")
    fine = {"choices": [], "base_resp": {"status_code": 0, "status_msg": ""}}
    good = delta(content="a") + finish("stop") + b"data: " + json.dumps(fine).encode() + b"\n\n" + DONE
    assert call(provider_with(PROFILES["minimax"], [good]))[-1] == Finish("stop")
    assert failure_of(call(provider_with(PROFILES["minimax"], [json.dumps(refused).encode()]))).code == code


def test_an_empty_balance_waits_only_where_the_server_says_for_how_long() -> None:
    def refused(name: str, **headers: str) -> str:
        return failure_of(call(provider_with(PROFILES[name], [b"{}"], 402, **headers))).code

    assert refused("openrouter", **{"retry-after": "3"}) == "RATE_LIMIT"
    assert refused("openrouter") == refused("generic", **{"retry-after": "3"}) == "QUOTA"


def test_deepseek_keeps_its_rules_with_changed_switches() -> None:
    dialect = DeepSeekDialect(changed_profile(PROFILES["deepseek"], {"missing_reasoning": "placeholder"}))
    header = RequestHeader(CallConfig("deepseek", "deepseek-flash", "off"), frozenset(), None, ())
    foreign = assistant(ToolCallBlock("c", "bash", "{}"), provider="other")
    body = json.loads(ChatEncoder("deepseek", dialect).encode(ModelRequest(header, [foreign])))
    assert body["thinking"] == {"type": "disabled"}
    assert body["messages"][0]["reasoning_content"] == "(The reasoning of this step was not recorded.)"


def test_a_call_with_more_depth_than_the_log_holds_fails_the_reply() -> None:
    extra: dict = {}
    for _ in range(600):
        extra = {"a": extra}
    raw = {"id": "c", "function": {"name": "f", "arguments": "{}"}, "extra_content": extra}
    body = delta(tool_calls=[raw]) + finish("stop") + DONE
    assert failure_of(call(provider_with(PROFILES["gemini"], [body]))).code == "MALFORMED_RESPONSE"
