"""Section E of the case collection: what providers do; and C11, secrets stay where they belong."""

from __future__ import annotations

import base64
import email.utils
import json
import time

import pytest

from tests.cli.dsh_process import SECRET, Dsh, Fifo, assert_failed, stream_faults
from tests.model_server import CC, EOF, ERRFRAME, PING, THINK, C, H, T, prefix_faults

DEEPSEEK = ("-m", "deepseek/deepseek-flash")
ECHO = C("bash", {"command": "echo x"})


# --- E1 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [ECHO, {**ECHO, "text": "let me see"}], ids=["no text", "text"])
def test_e1_reasoning_goes_back_with_the_calls_it_led_to(dsh: Dsh, call: dict[str, object]) -> None:
    reasoning = "  first\n\tthe 漢 plan \n"
    dsh.server.script(THINK(reasoning, call), THINK("then", T("ok")), T("later"))
    assert dsh.run(*DEEPSEEK, "--session-id", "s", "x").code == 0
    assert dsh.run("--resume", "s", "more").code == 0
    for request in dsh.requests_with_stable_prefix()[1:]:
        thought = next(m for m in request.messages if m["role"] == "assistant")
        assert thought["reasoning_content"] == reasoning
        assert thought["content"] == call.get("text", "")


def test_e1_reasoning_survives_a_kill(dsh: Dsh) -> None:
    dsh.server.script(THINK("the plan", ECHO), T(["half", "way"], hold="never"), T("resumed"))
    running = dsh.begin(*DEEPSEEK, "--session-id", "s", "--json", "x")
    running.wait_for_event("tool/result")
    dsh.server.wait_for_requests(2)
    running.kill()
    assert dsh.run("--resume", "s", "go on").out == "resumed\n"
    thought = next(m for m in dsh.requests()[-1].messages if m["role"] == "assistant")
    assert thought["reasoning_content"] == "the plan"


def test_e1_reasoning_of_another_provider_is_not_sent(dsh: Dsh) -> None:
    dsh.server.script(THINK("private plan", ECHO), T("ok"), T("later"))
    assert dsh.run(*DEEPSEEK, "--session-id", "s", "x").code == 0
    assert dsh.run("--resume", "s", "-m", "openai/test", "more").code == 0
    assert "private plan" not in dsh.requests()[-1].text


# --- E2, E3 -----------------------------------------------------------------------------------


def test_e2_calls_that_a_kill_left_open_are_answered_with_what_is_known(dsh: Dsh) -> None:
    commands = ("echo first-result", "echo up > pipe; sleep 99", "touch third")
    dsh.server.script(CC(*(("bash", {"command": command}) for command in commands)), T("went on"))
    with Fifo(dsh.cwd / "pipe") as pipe:
        running = dsh.begin("--session-id", "s", "--json", "x")
        assert pipe.read() == "up\n"
        running.wait_for_event("tool/result")
        running.kill()
    assert dsh.survivors() == []
    resumed = dsh.run("--resume", "s", "go on")
    assert (resumed.code, resumed.out, resumed.err) == (0, "went on\n", "")
    first, second, third = dsh.requests()[-1].results.values()
    assert "first-result" in first
    assert_honest(second, "unknown")
    assert_honest(third, "not start")
    assert not (dsh.cwd / "third").exists()
    assert dsh.requests()[-1].messages[-1] == {"role": "user", "content": "go on"}


def assert_honest(result: str, cause: str) -> None:
    """E3: a made-up result names its cause, claims no success and blames nobody."""
    assert cause in result.lower()
    assert not any(word in result.lower() for word in ("success", "completed", "user cancel", "denied"))


def test_e3_the_result_of_a_command_out_of_time_says_so(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "echo partial; sleep 99"}), T("ok"))
    assert dsh.run("--tool-timeout", "1", "x").code == 0
    (result,) = dsh.requests()[1].results.values()
    assert "partial" in result and "time" in result.lower()


def test_e3_a_cancelled_call_is_answered_as_interrupted_on_resume(dsh: Dsh) -> None:
    dsh.server.script(
        CC(("bash", {"command": "echo up > pipe; sleep 99"}), ("bash", {"command": "echo 2"})), T("ok")
    )
    with Fifo(dsh.cwd / "pipe") as pipe:
        running = dsh.begin("--session-id", "s", "--json", "x")
        assert pipe.read() == "up\n"
    running.process.terminate()
    assert running.wait().code == 143
    assert dsh.run("--resume", "s", "go on").code == 0
    first, second = dsh.requests()[-1].results.values()
    for result in (first, second):
        assert any(
            word in result.lower() for word in ("interrupt", "cancel", "abort", "stopped", "not start")
        )
        assert "success" not in result.lower()


# --- E5, E6 -----------------------------------------------------------------------------------

BROKEN = [
    '{"a":',
    "",
    "null",
    "[1]",
    '"x"',
    "7",
    '{"a":1}{"b":2}',
    "{'command': 'touch made'}",
    '{"command": "touch made"',
    '{"command": "touch made',
    '{"command": ["touch", "made"]}',
    '{"command": NaN}',
    "x" * 2_000_000,
]


@pytest.mark.parametrize("arguments", BROKEN, ids=lambda text: text[:24] or "empty")
def test_e5_unusable_arguments_get_one_error_result_and_run_nothing(dsh: Dsh, arguments: str) -> None:
    dsh.server.script(C("bash", arguments), T("ok"))
    result = dsh.run("--json", "x")
    assert (result.code, result.end["tool_errors"]) == (0, 1)
    assert stream_faults(result.events) == []
    _, second = dsh.requests_with_stable_prefix()
    (text,) = second.results.values()
    assert len(text.encode()) <= 1500 and "command" in text
    assert [path.name for path in dsh.cwd.iterdir()] == []


def test_e5_the_session_stays_usable_after_them(dsh: Dsh) -> None:
    dsh.server.script(*[C("bash", text) for text in BROKEN[:-1]], T("ok"), T("later"))
    assert dsh.run("--session-id", "s", "x").code == 0
    assert dsh.run("--resume", "s", "go on").out == "later\n"
    dsh.requests_with_stable_prefix()


def test_e5_an_unknown_tool_is_an_error_result(dsh: Dsh) -> None:
    dsh.server.script(C("no_such_tool", {}), T("ok"))
    result = dsh.run("--json", "x")
    assert (result.code, result.end["tool_errors"]) == (0, 1)
    assert result.of("tool/result")[0]["data"]["error"]["code"] == "UNKNOWN_TOOL"


# --- E8, E9, E10 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cut",
    [
        EOF("par"),
        T("par", end="cut", finish=None, done=False),
        T("p" * 9999, end="reset", finish=None, done=False),
    ],
)
def test_e8_a_reply_that_breaks_off_is_asked_for_again(dsh: Dsh, cut: dict[str, object]) -> None:
    dsh.server.script(cut, T("full"))
    result = dsh.run("x")
    assert (result.code, result.out, result.err) == (0, "full\n", "")
    first, second = dsh.requests()
    assert first.json["messages"] == second.json["messages"]


def test_e8_a_provider_that_always_breaks_off_is_a_failure(dsh: Dsh) -> None:
    dsh.server.script(EOF("par"), after="repeat")
    assert_failed(dsh.run("--max-retries", "1", "x"), 1)
    assert dsh.server.count() == 2


def test_e8_calls_of_a_reply_that_broke_off_are_not_run(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "touch made"}, finish=None, done=False, end="close"), T("ok"))
    assert dsh.run("x").out == "ok\n"
    assert not (dsh.cwd / "made").exists()


@pytest.mark.parametrize("end", ["keep", "close", "cut"])
def test_e8_a_finish_reason_without_a_terminal_line_is_enough(dsh: Dsh, end: str) -> None:
    dsh.server.script(T("fine", done=False, end=end))
    result = dsh.run("x")
    assert (result.code, result.out) == (0, "fine\n")
    assert dsh.server.count() == 1


@pytest.mark.parametrize("empty", [T(""), T("", usage=None)])
def test_e9_an_empty_answer_is_nudged_once(dsh: Dsh, empty: dict[str, object]) -> None:
    dsh.server.script(empty, T("ok"))
    assert dsh.run("x").out == "ok\n"
    dsh.server.script(empty, after="repeat")
    result = dsh.run("--json", "x")
    assert (result.code, result.end["reason"]) == (1, "empty_response")
    assert dsh.server.count() == 2


def test_e9_an_empty_answer_after_tool_results_is_nudged_too(dsh: Dsh) -> None:
    dsh.server.script(ECHO, T(""), T("summed up"))
    assert dsh.run("x").out == "summed up\n"
    dsh.requests()


def test_e10_an_error_in_the_stream_is_treated_like_one_by_status(dsh: Dsh) -> None:
    dsh.server.script(ERRFRAME(429, "slow down", "rate_limit_error", text="half"), T("ok"))
    assert dsh.run("x").out == "ok\n"
    dsh.server.script(ERRFRAME(401, "bad key", "authentication_error"), after="repeat")
    assert_failed(dsh.run("x"), 3)
    assert dsh.server.count() == 1


def test_e10_only_comments_and_then_the_end_is_no_answer(dsh: Dsh) -> None:
    dsh.server.script(PING(3), T("ok"))
    assert dsh.run("x").out == "ok\n"


# --- E12, E13 ---------------------------------------------------------------------------------


def gap_s(dsh: Dsh) -> float:
    first, second = dsh.server.requests()
    assert first.first_sent is not None
    return second.arrived - first.first_sent


@pytest.mark.parametrize("header", [{"Retry-After": "1"}, {"retry-after-ms": "1000"}])
def test_e12_a_wait_that_the_provider_asks_for_is_kept(dsh: Dsh, header: dict[str, str]) -> None:
    dsh.server.script(H(429, header), T("ok"))
    assert dsh.run("x").out == "ok\n"
    assert 1.0 <= gap_s(dsh) <= 4.0  # with the jitter, and on a busy machine


def test_e12_a_wait_until_a_date_is_kept(dsh: Dsh) -> None:
    # A date holds whole seconds only; where the program takes so long to start there is nothing to wait for.
    until = int(time.time()) + 3
    dsh.server.script(H(429, {"Retry-After": email.utils.formatdate(until, usegmt=True)}), T("ok"))
    assert dsh.run("x").out == "ok\n"
    wall_minus_monotonic = time.time() - time.monotonic()
    first, resent = (request.arrived + wall_minus_monotonic for request in dsh.server.requests())
    assert until - 0.05 <= resent <= max(until, first) + 3.0


@pytest.mark.parametrize("seconds", ["7200", "30"])
def test_e12_a_wait_beyond_the_time_of_the_run_fails_at_once(dsh: Dsh, seconds: str) -> None:
    dsh.server.script(H(429, {"Retry-After": seconds}), after="repeat")
    result = dsh.run("--timeout", "20", "--json", "x")
    assert (result.code, result.end["reason"]) == (1, "rate_limited")
    assert dsh.server.count() == 1
    assert result.duration_s < 20


BALANCE = {
    "error": {"message": "Insufficient Balance", "type": "unknown_error", "code": "invalid_request_error"}
}
QUOTA = {
    "error": {
        "message": "You exceeded your current quota",
        "type": "insufficient_quota",
        "code": "insufficient_quota",
    }
}


@pytest.mark.parametrize(("status", "body"), [(402, BALANCE), (402, {}), (429, QUOTA), (403, QUOTA)])
def test_e13_an_empty_account_is_not_asked_again(dsh: Dsh, status: int, body: object) -> None:
    dsh.server.script(H(status, body=body), after="repeat")
    result = dsh.run("--json", "x")
    assert (result.code, result.end["reason"]) == (3, "balance")
    assert dsh.server.count() == 1


@pytest.mark.parametrize("status", [400, 404, 422])
def test_e13_a_refused_request_is_not_sent_again(dsh: Dsh, status: int) -> None:
    dsh.server.script(H(status), after="repeat")
    assert_failed(dsh.run("x"), 1)
    assert dsh.server.count() == 1


# --- E15 --------------------------------------------------------------------------------------

ODD = "漢字 \u2028 and \u2029, \u0085, é, \N{GRINNING FACE}, \x0b\x0c\x1c."


@pytest.mark.parametrize("how", [{}, {"per_byte": True}, {"crlf": True, "per_byte": True}, {"pieces": 7}])
def test_e15_text_is_the_same_however_its_bytes_arrive(dsh: Dsh, how: dict[str, object]) -> None:
    dsh.server.script(T(ODD, **how), T("ok"))  # type: ignore[arg-type]
    result = dsh.run("--session-id", "s", "--json", "x")
    assert result.end["answer"] == ODD
    assert dsh.run("--resume", "s", "more").code == 0
    assert dsh.requests()[1].messages[-2]["content"] == ODD


def test_e15_halves_of_a_character_in_two_deltas_become_one(dsh: Dsh) -> None:
    halves = [
        json.dumps({"choices": [{"index": 0, "delta": {"content": half}}]}) for half in ("a\ud83d", "\ude00b")
    ]
    finish = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    dsh.server.script({"frames": [*halves, finish, "[DONE]"]}, T("x\ufffd"))
    assert dsh.run("x").out == "a\N{GRINNING FACE}b\n"


def test_e15_the_first_delta_is_seen_before_the_second_is_sent(dsh: Dsh) -> None:
    dsh.server.script(T(["one ", "two"], hold="gate"))
    running = dsh.begin("--json", "x")
    seen = running.wait_for_event("assistant/chunk")
    assert dsh.server.requests()[0].ended is None
    assert seen["data"]["chunk"]
    dsh.server.release("gate")
    assert running.wait().end["answer"] == "one two"


# --- E16 --------------------------------------------------------------------------------------


def test_e16_each_request_extends_the_one_before_byte_for_byte(dsh: Dsh) -> None:
    steps = [
        C("bash", {"command": "echo @@N@@; date +%N"}),
        C("read", {"path": "f"}, text="reading"),
        CC(("glob", {"pattern": "*"}), ("grep", {"pattern": "x"})),
        C("todo_write", {"todos": [{"content": "a", "status": "in_progress"}]}),
        C("write", {"path": "f", "content": "1\n"}),
        C("edit", {"path": "f", "old": "1", "new": "2"}),
        C("bash", "broken"),
    ]
    dsh.server.script(*steps, T("one"), C("bash", {"command": "echo again"}), T("two"), T("three"))
    assert dsh.run("--session-id", "s", "first").code == 0
    assert dsh.run("--resume", "s", "second").code == 0
    assert dsh.run("--resume", "s", "third").code == 0
    assert len(dsh.requests_with_stable_prefix()) == len(steps) + 4
    assert (dsh.cwd / "f").read_text() == "2\n"


def test_e16_a_retried_request_is_the_same_request(dsh: Dsh) -> None:
    dsh.server.script(H(500), ERRFRAME(500), EOF("a"), T("ok"))
    assert dsh.run("x").code == 0
    assert len({request.body for request in dsh.requests()}) == 1


def test_e16_two_processes_send_the_same_bytes(dsh: Dsh) -> None:
    dsh.server.script(T("ok"), after="repeat")
    for seed in ("0", "1", "2"):
        assert dsh.run("x", env={"PYTHONHASHSEED": seed}).code == 0
    first, *others = [request.body for request in dsh.requests()]
    for other in others:
        assert prefix_faults([first, other]) == []


# --- C11 --------------------------------------------------------------------------------------


def test_c11_a_key_is_nowhere_but_in_the_authorization_header(dsh: Dsh) -> None:
    prying = (
        "env; cat /proc/$PPID/environ /proc/self/environ | tr '\\0' '\\n'; "
        "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
    )
    dsh.server.script(
        C("bash", {"command": prying}),
        C("read", {"path": "/proc/self/environ"}),
        C("bash", {"command": "cat leaked"}),
        C("read", {"path": "leaked"}),
        C("grep", {"pattern": "sk-", "path": "leaked"}),
        T("ok"),
    )
    encoded = base64.b64encode(SECRET.encode()).decode()
    (dsh.cwd / "leaked").write_text(f"key={SECRET}\n{encoded}\n")
    result = dsh.run("--json", "--progress", "--session-id", "s", "--no-fail-on-denied", "x")
    assert result.code == 0, result.err
    requests = dsh.requests()
    assert requests[0].headers["authorization"] == f"Bearer {SECRET}"
    exported = dsh.call("session", "export", "s", "--format", "jsonl").out
    places = {
        "requests": "".join(request.text for request in requests),
        "disk": dsh.stored_text(),
        "stdout": result.out,
        "stderr": result.err,
        "export": exported,
        "configuration": dsh.call("config", "show").out + dsh.call("doctor").out,
    }
    assert "DSH_TEST_MARK" in places["requests"]
    for place, text in places.items():
        assert SECRET not in text, place
        assert encoded not in text, place


def test_c11_an_error_that_repeats_the_key_does_not_leak_it(dsh: Dsh) -> None:
    body = {"error": {"message": f"Incorrect API key provided: {SECRET}", "type": "authentication_error"}}
    dsh.server.script(H(401, body=body))
    result = dsh.run("--json", "x")
    assert result.code == 3
    assert SECRET not in result.out + result.err + dsh.stored_text()
