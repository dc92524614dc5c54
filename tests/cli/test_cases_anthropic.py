"""Runs against Anthropic's wire: the real program, its tools, its sessions, and changes of provider."""

from __future__ import annotations

import pytest

from tests.cli.dsh_process import SECRET, Dsh, assert_failed
from tests.model_server import CC, EOF, THINK, C, Entry, H, Request, T, prefix_faults

CLAUDE = ("-m", "anthropic/claude-x")
OPENAI = ("-m", "openai/test")
ECHO = C("bash", {"command": "echo x"})


def blocks(request: Request, kind: str) -> list[dict[str, object]]:
    """All blocks of one kind in a request of the Messages wire, in order."""
    return [block for message in request.messages for block in message["content"] if block["type"] == kind]


def test_a_task_with_tools_is_done_over_the_messages_wire(dsh: Dsh) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 90}}
    steps = CC(("bash", {"command": "echo one"}), ("write", {"path": "f", "content": "two\n"}))
    dsh.server.script({**steps, "pieces": 3}, T("done", pieces=2, usage=usage))
    result = dsh.run(*CLAUDE, "--json", "x")
    assert (result.code, result.end["answer"]) == (0, "done"), result.err
    assert (dsh.cwd / "f").read_text() == "two\n"
    first, second = dsh.requests_with_stable_prefix()
    assert first.path == "/v1/messages"
    assert (first.headers["x-api-key"], first.headers["anthropic-version"]) == (SECRET, "2023-06-01")
    assert "authorization" not in first.headers
    assert first.json["stream"] is True and first.json["max_tokens"] == 32_000
    outputs = list(second.results.values())
    assert "one" in outputs[0] and len(outputs) == 2
    assert second.messages[-1]["role"] == "user" and len(second.messages[-1]["content"]) == 2
    last = result.of("assistant/message")[-1]["data"]["usage"]
    assert last == {"inputTokens": 10, "outputTokens": 7, "cacheReadTokens": 90}


def test_thinking_goes_back_with_its_signature_also_after_a_resume(dsh: Dsh) -> None:
    thought = "  first\n\tthe 漢 plan \n"
    dsh.server.script(
        THINK(thought, {**ECHO, "signature": "c2VhbA=="}), THINK("then", T("ok")), T("later"), T("last")
    )
    assert dsh.run(*CLAUDE, "--session-id", "s", "x").code == 0
    assert dsh.run("--resume", "s", "more").code == 0
    assert dsh.run("--resume", "s", "and more").code == 0
    requests = dsh.requests_with_stable_prefix()
    assert len(requests) == 4
    for request in requests[1:]:
        first = blocks(request, "thinking")[0]
        assert first == {"type": "thinking", "thinking": thought, "signature": "c2VhbA=="}
    assert len(blocks(requests[-1], "thinking")) == 2
    assert dsh.call("session", "verify", "--requests", "s").code == 0


def test_thinking_survives_a_kill(dsh: Dsh) -> None:
    dsh.server.script(THINK("the plan", ECHO), T(["half", "way"], hold="never"), T("resumed"))
    running = dsh.begin(*CLAUDE, "--session-id", "s", "--json", "x")
    running.wait_for_event("tool/result")
    dsh.server.wait_for_requests(2)
    running.kill()
    assert dsh.run("--resume", "s", "go on").out == "resumed\n"
    (thought,) = blocks(dsh.requests_with_stable_prefix()[-1], "thinking")
    assert (thought["thinking"], thought["signature"]) == ("the plan", "signed-1")


def test_a_session_moves_to_another_provider_and_back(dsh: Dsh) -> None:
    odd = {**CC(("bash", {"command": "echo one"}), ("bash", "broken")), "text": "looking"}
    for index, call in enumerate(odd["calls"]):
        call["id"] = f"functions.bash:{index}"
    dsh.server.script(
        THINK("first plan", odd),
        T("said by openai"),
        THINK("second plan", C("bash", {"command": "echo two"})),
        THINK("third plan", T("said by claude")),
        T("back at openai"),
        T("back at claude"),
    )
    assert dsh.run(*OPENAI, "--session-id", "s", "one").out == "said by openai\n"
    assert dsh.run("--resume", "s", *CLAUDE, "two").out == "said by claude\n"
    assert dsh.run("--resume", "s", *OPENAI, "three").out == "back at openai\n"
    assert dsh.run("--resume", "s", *CLAUDE, "four").out == "back at claude\n"
    requests = dsh.requests()
    moved, stepped, returned, again = requests[2:]
    # What openai thought stays there; its ids become ones that this wire takes, in calls and results.
    assert "first plan" not in moved.text and "said by openai" in moved.text
    ids = [block["id"] for block in blocks(moved, "tool_use")]
    assert ids == [block["tool_use_id"] for block in blocks(moved, "tool_result")]
    inputs = [block["input"] for block in blocks(moved, "tool_use")]
    assert inputs == [{"command": "echo one"}, {"_raw": "broken"}]
    assert [block["thinking"] for block in blocks(stepped, "thinking")] == ["second plan"]
    assert "second plan" not in returned.text and "signed-" not in returned.text
    assert "first plan" in returned.text and "functions.bash:0" in returned.text
    assert [block["thinking"] for block in blocks(again, "thinking")] == ["second plan", "third plan"]
    assert "first plan" not in again.text
    for provider in ([requests[0], requests[1], returned], [moved, stepped, again]):
        assert prefix_faults([request.body for request in provider]) == []
    assert dsh.call("session", "verify", "--requests", "s").code == 0


def test_a_model_that_pauses_gets_its_own_words_back_and_goes_on(dsh: Dsh) -> None:
    dsh.server.script(T("I am not done", finish="pause_turn"), T("done"))
    assert dsh.run(*CLAUDE, "x").out == "done\n"
    first, second = dsh.requests_with_stable_prefix()
    assert second.messages[:-1] == first.messages
    said = [{"type": "text", "text": "I am not done"}]
    assert second.messages[-1] == {"role": "assistant", "content": said}


def refusal(status: int, kind: str, message: str = "x") -> Entry:
    """An error of this wire."""
    return H(status, body={"type": "error", "error": {"type": kind, "message": message}})


@pytest.mark.parametrize(
    "bad",
    [
        EOF("par"),
        refusal(409, "conflict_error"),
        {"frames": [{"type": "error", "error": {"type": "api_error", "message": "oops"}}]},
    ],
    ids=["breaks off", "409", "in the stream"],
)
def test_what_passes_is_tried_again_with_the_same_request(dsh: Dsh, bad: Entry) -> None:
    dsh.server.script(bad, T("full"))
    result = dsh.run(*CLAUDE, "x")
    assert (result.code, result.out, result.err) == (0, "full\n", "")
    assert len({request.body for request in dsh.requests()}) == 1


@pytest.mark.parametrize(
    ("entry", "code"), [(refusal(402, "billing_error"), 3), (T("half", finish="content_filter"), 1)]
)
def test_what_does_not_pass_is_not_tried_again(dsh: Dsh, entry: Entry, code: int) -> None:
    dsh.server.script(entry, after="repeat")
    assert_failed(dsh.run(*CLAUDE, "x"), code)
    assert dsh.server.count() == 1


def test_a_missing_key_and_an_unknown_effort_are_refused_before_anything_is_sent(dsh: Dsh) -> None:
    result = dsh.run(*CLAUDE, "x", env={"ANTHROPIC_API_KEY": None})
    assert_failed(result, 3)
    assert "ANTHROPIC_API_KEY" in result.err
    wrong = dsh.run(*CLAUDE, "--reasoning", "extreme", "x")
    assert wrong.code == 2 and "off, low, medium, high, max" in wrong.err
    assert dsh.server.count() == 0


def test_a_server_of_ones_own_speaks_the_wire_under_its_own_name(dsh: Dsh) -> None:
    dsh.home.mkdir()
    (dsh.home / "config.toml").write_text(
        f'[providers.mine]\ntype = "anthropic"\nbase_url = "{dsh.server.url}/v1"\n'
    )
    dsh.server.script(T("ok"))
    assert dsh.run("-m", "mine/any", "--reasoning", "low", "x").out == "ok\n"
    (request,) = dsh.requests()
    assert request.path == "/v1/messages" and "x-api-key" not in request.headers
    assert request.json["thinking"] == {"type": "enabled", "budget_tokens": 4096}


def test_the_key_is_nowhere_but_in_its_header(dsh: Dsh) -> None:
    told = refusal(401, "authentication_error", f"bad x-api-key {SECRET}")
    dsh.server.script(C("bash", {"command": "env"}), told)
    result = dsh.run(*CLAUDE, "--json", "--session-id", "s", "x")
    assert (result.code, result.end["reason"]) == (3, "auth")
    texts = [result.out, result.err, dsh.stored_text(), *(request.text for request in dsh.requests())]
    assert not any(SECRET in text for text in texts)
    assert SECRET not in dsh.call("config", "show").out
