"""The program against servers of different kinds: profiles, switches of provider, retries by route."""

from __future__ import annotations

import json

import pytest

from tests.cli.dsh_process import Dsh, assert_failed
from tests.model_server import THINK, C, H, T, prefix_faults

ECHO = C("bash", {"command": "echo x"})
DEEPSEEK = ("-m", "deepseek/deepseek-flash")


def configure(dsh: Dsh, name: str, text: str = "") -> None:
    """A provider of the user's own at the scripted server."""
    dsh.home.mkdir(exist_ok=True)
    base = f'[providers.{name}]\nbase_url = "{dsh.server.url}/v1"\n{text}\n'
    (dsh.home / "config.toml").write_text(base)


def refused(message: str) -> dict[str, object]:
    return H(400, body={"error": {"message": message, "type": "invalid_request_error", "code": None}})


def test_a_session_moves_between_providers_and_each_gets_what_it_understands(dsh: Dsh) -> None:
    configure(dsh, "kimi", 'profile = "kimi"')
    call = {**ECHO, "calls": [{**ECHO["calls"][0], "id": "functions.bash:0"}]}
    dsh.server.script(THINK("the plan", call), T("one"), T("two"), T("three"))
    assert dsh.run("-m", "kimi/k2", "--session-id", "s", "x").code == 0
    assert dsh.run("-m", "openai/test", "--resume", "s", "y").out == "two\n"
    assert dsh.run("-m", "kimi/k2", "--resume", "s", "z").out == "three\n"
    first, away, back = (dsh.requests()[number] for number in (1, 2, 3))

    def told(request) -> tuple[str, str, object]:
        asked = next(m for m in request.messages if m.get("tool_calls"))
        answered = next(m for m in request.messages if m["role"] == "tool")
        return asked["tool_calls"][0]["id"], answered["tool_call_id"], asked.get("reasoning_content")

    assert told(first) == told(back) == ("functions.bash:0", "functions.bash:0", "the plan")
    wire_id, answered, thought = told(away)
    assert wire_id == answered != "functions.bash:0" and thought is None
    assert "the plan" not in away.text
    assert prefix_faults([first.body, back.body]) == []
    verified = dsh.call("session", "verify", "--requests", "s")
    assert (verified.code, verified.err) == (0, "")


def test_tool_turns_of_another_provider_are_made_acceptable_to_deepseek(dsh: Dsh) -> None:
    text = "The `reasoning_content` in the thinking mode must be passed back to the API."
    dsh.server.script(ECHO, T("one"), refused(text), T("two"), T("three"))
    assert dsh.run("--session-id", "s", "x").code == 0
    result = dsh.run(*DEEPSEEK, "--resume", "s", "--json", "y")
    assert (result.code, result.end["answer"], result.end["retries"]) == (0, "two", 1)
    (retry,) = result.of("llm/retry")
    assert (retry["data"]["failure"]["code"], retry["data"]["delayMs"]) == ("REFUSED_FORM", 0)
    before, after = dsh.requests()[2:4]
    thoughts = [
        next(m for m in request.messages if m.get("tool_calls"))["reasoning_content"]
        for request in (before, after)
    ]
    assert thoughts[0] == "" and thoughts[1] != ""
    assert dsh.call("session", "verify", "--requests", "s").code == 0


def test_a_request_is_made_to_fit_once_and_the_next_one_is_as_configured(dsh: Dsh) -> None:
    text = (
        "This model's maximum context length is 10000 tokens. However, you requested 12000 tokens "
        "(8000 in the messages, 4000 in the completion)."
    )
    configure(dsh, "lab")
    with (dsh.home / "config.toml").open("a") as file:
        file.write("[agent]\nmax_output = 4000\n")
    dsh.server.script(refused(text), ECHO, T("done"))
    result = dsh.run("-m", "lab/m", "--session-id", "s", "--json", "x")
    assert (result.code, result.end["answer"]) == (0, "done")
    assert [request.json["max_tokens"] for request in dsh.requests()] == [4000, 1936, 4000]
    headers = [e["data"]["header"]["config"]["maxTokens"] for e in result.of("request/header")]
    assert headers == [4000, 1936, 4000]
    filled = [e["data"]["header"].get("adapterDefaults") for e in result.of("request/header")]
    assert filled == [None, {"maxTokens": True}, None]
    assert dsh.call("session", "verify", "--requests", "s").code == 0


def test_a_limit_that_made_one_request_fit_does_not_outlive_its_step(dsh: Dsh) -> None:
    text = "maximum context length is 4096 tokens. However, your request has 2000 input tokens."
    dsh.server.script(refused(text), T(["half", "way"], hold="never"), T("two"))
    running = dsh.begin("--session-id", "s", "x")
    dsh.server.wait_for_requests(2)
    running.kill()
    assert dsh.run("--resume", "s", "y").out == "two\n"
    assert [request.json.get("max_tokens") for request in dsh.requests()] == [None, 2032, None]


def test_an_overflow_that_cannot_be_helped_is_not_repeated(dsh: Dsh) -> None:
    dsh.server.script(refused("maximum context length is 10 tokens, 12 in the messages"))
    assert_failed(dsh.run("x"), 1)
    assert dsh.server.count() == 1


@pytest.mark.parametrize(
    ("options", "count"), [((), 3), (("--max-retries", "1"), 2), (("--max-retries", "9"), 3)]
)
def test_a_route_has_its_own_patience_within_that_of_the_run(
    dsh: Dsh, options: tuple[str, ...], count: int
) -> None:
    configure(dsh, "lab", "retry = { max_retries = 2, initial_delay = 0.001, max_delay = 0.01 }")
    dsh.server.script(*[H(500)] * 10)
    result = dsh.run("-m", "lab/m", "--json", *options, "x")
    assert (result.code, result.end["reason"], dsh.server.count()) == (1, "provider_error", count)
    retries = result.of("llm/retry")
    assert [event["data"]["retry"] for event in retries] == list(range(1, count))
    assert {event["data"]["maxRetries"] for event in retries} == {count - 1}
    assert all(event["data"]["delayMs"] <= 11 for event in retries)
    assert len(result.of("llm/retry-started")) == count - 1


def test_the_servers_word_against_a_retry_is_obeyed(dsh: Dsh) -> None:
    dsh.server.script(H(503, {"x-should-retry": "false"}), T("never"))
    assert_failed(dsh.run("x"), 1)
    assert dsh.server.count() == 1


def test_headers_and_body_of_the_users_own_are_sent_and_stay_secret(dsh: Dsh) -> None:
    token = "header-canary-77"
    configure(
        dsh,
        "lab",
        f'extra_headers = {{ X-Api-Token = "{token}" }}\nextra_body = {{ user_id = "team" }}',
    )
    leak = C("bash", {"command": f"echo {token}"})
    dsh.server.script(leak, H(400, body={"error": {"message": f"bad {token}"}}))
    result = dsh.run("-m", "lab/m", "--json", "x")
    assert result.code == 1
    request = dsh.server.requests()[0]
    assert request.headers["x-api-token"] == token
    assert request.json["user_id"] == "team"
    stored = dsh.stored_text().replace((dsh.home / "config.toml").read_text(), "")
    assert token not in result.out + result.err + stored
    shown = dsh.call("config", "show")
    assert "extra_headers.X-Api-Token" in shown.out and token not in shown.out


def test_strict_tools_refuse_a_tool_that_does_not_fit_before_any_request(dsh: Dsh) -> None:
    dsh.home.mkdir(exist_ok=True)
    (dsh.home / "config.toml").write_text("[providers.deepseek.quirks]\nstrict_tools = true\n")
    result = dsh.run(*DEEPSEEK, "--ephemeral", "x")
    assert (result.code, result.out, dsh.server.count()) == (2, "", 0)
    assert result.err.startswith("dsh: usage: strict_tools: the tool ") and result.err.count("\n") == 1


def test_the_doctor_explains_the_profile_in_force(dsh: Dsh) -> None:
    configure(dsh, "lab", 'profile = "mistral"\nquirks = { think_tags = true }')
    with (dsh.home / "config.toml").open("a") as file:
        file.write('[agent]\nmodel = "lab/m"\n')
    (line,) = [line for line in dsh.call("doctor").out.splitlines() if "profile" in line]
    assert "profile mistral for lab: " in line
    assert "tool_ids nine" in line and "think_tags on" in line and "stream_options off" in line


def test_reasoning_in_tags_is_not_part_of_the_answer(dsh: Dsh) -> None:
    configure(dsh, "lab", "quirks = { think_tags = true }")
    text = ["<thi", "nk>secret pl", "an</thi", "nk>\n\nthe ans", "wer"]
    dsh.server.script(T(text), T("later"))
    assert dsh.run("-m", "lab/m", "--session-id", "s", "x").out == "the answer\n"
    assert dsh.run("--resume", "s", "y").code == 0
    (said,) = [m for m in dsh.requests()[1].messages if m["role"] == "assistant"]
    assert said == {"role": "assistant", "content": "".join(text)}
    assert json.loads(dsh.requests()[1].body)["model"] == "m"
