"""Section A of the case collection: exit status, standard output and error, events.

The names carry the row's id.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.dsh_process import (
    ONE_LINE,
    Dsh,
    Fifo,
    Result,
    assert_failed,
    assert_refused,
    read_some,
    stream_faults,
)
from tests.model_server import CC, ERRFRAME, LEN, STALL, C, H, T

LS = C("bash", {"command": "echo step @@N@@"})
FAIL = 500


# --- A1 ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["nope", "nope/model", "", "/", "openai/"])
def test_a1_an_unknown_model_is_refused_before_any_work(dsh: Dsh, model: str) -> None:
    assert_refused(dsh.run("-m", model, "x"), dsh)


def test_a1_an_unknown_provider_names_the_nearest_one(dsh: Dsh) -> None:
    assert "deepseek" in dsh.run("-m", "depseek/deepseek-flash", "x").err


@pytest.mark.parametrize("key", [None, "", "  ", "sk-\u2603", "sk-a\nb"])
def test_a1_without_a_usable_key_the_exit_code_is_3_and_nothing_is_sent(dsh: Dsh, key: str | None) -> None:
    result = dsh.run("x", env={"OPENAI_API_KEY": key})
    assert_failed(result, 3)
    assert "OPENAI_API_KEY" in result.err
    assert dsh.server.count() == 0
    assert dsh.session_ids() == []


def test_a1_a_refused_key_is_3_after_one_request(dsh: Dsh) -> None:
    dsh.server.script(H(401), after="repeat")
    assert_failed(dsh.run("x"), 3)
    assert dsh.server.count() == 1


def test_a1_a_dead_provider_is_1_and_the_line_names_status_and_attempts(dsh: Dsh) -> None:
    dsh.server.script(H(FAIL), after="repeat")
    result = dsh.run("--max-retries", "2", "x")
    assert_failed(result, 1)
    assert dsh.server.count() == 3
    assert "500" in result.err and "3" in result.err


def test_a1_an_unreachable_base_url_is_1(dsh: Dsh) -> None:
    env = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}
    assert_failed(dsh.run("--max-retries", "1", "x", env=env), 1)


def test_a1_a_broken_base_url_is_a_usage_error(dsh: Dsh) -> None:
    assert_refused(dsh.run("x", env={"OPENAI_BASE_URL": "not a url"}), dsh)


def test_a1_an_error_that_a_retry_recovered_from_is_success(dsh: Dsh) -> None:
    dsh.server.script(H(FAIL), ERRFRAME(FAIL), T("fine"))
    result = dsh.run("--json", "x")
    assert (result.code, result.end["retries"], result.end["answer"]) == (0, 2, "fine")


# --- A4 ---------------------------------------------------------------------------------------

SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.mark.parametrize("number", SIGNALS)
def test_a4_a_signal_ends_the_run_with_its_code_and_a_session_to_resume(
    dsh: Dsh, number: signal.Signals
) -> None:
    dsh.server.script(STALL(60, "par"), T("went on"))
    running = dsh.begin("--json", "x")
    running.wait_for_event("assistant/chunk")
    running.send_signal(number)
    result = running.wait(5)
    assert result.code == SIGNALS[number] == result.end["exit_code"]
    assert (result.end["reason"], result.end["signal"]) == ("interrupted", number.name)
    assert stream_faults(result.events) == []
    dsh.server.wait_for_ends(1, 5)
    resumed = dsh.run("--resume", result.end["session_id"], "go on")
    assert (resumed.code, resumed.out) == (0, "went on\n")
    assert dsh.requests()[-1].messages[-1]["content"] == "go on"


def test_a4_a_signal_during_a_command_ends_the_command_too(dsh: Dsh) -> None:
    command = "trap 'touch ok; exit' TERM; echo up > pipe; sleep 99"
    dsh.server.script(C("bash", {"command": command}))
    with Fifo(dsh.cwd / "pipe") as pipe:
        running = dsh.begin("x")
        assert pipe.read() == "up\n"
    running.send_signal(signal.SIGTERM)
    assert_failed(running.wait(8), 143)
    assert (dsh.cwd / "ok").exists()
    assert dsh.survivors() == []


def test_a4_a_second_signal_forces_the_end(dsh: Dsh) -> None:
    stubborn = "trap '' TERM INT HUP; echo up > pipe; sleep 99; sleep 99"
    dsh.server.script(C("bash", {"command": stubborn}))
    with Fifo(dsh.cwd / "pipe") as pipe:
        running = dsh.begin("--json", "x")
        assert pipe.read() == "up\n"
    # Two of the same kind would become one when they come before the first is handled.
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGTERM)
    assert running.wait(4).code in (130, 143)
    assert dsh.survivors() == []


# --- A5, A6 -----------------------------------------------------------------------------------


def test_a5_the_step_limit_ends_with_4_and_every_event_of_every_step(dsh: Dsh) -> None:
    dsh.server.script(LS, after="repeat")
    result = dsh.run("--max-steps", "3", "--json", "x")
    assert (result.code, result.end["reason"]) == (4, "max_steps")
    assert result.end["limit"] == {"kind": "max_steps", "value": 3}
    assert len(dsh.requests()) == 3
    assert stream_faults(result.events) == []
    assert [len(result.of(kind)) for kind in ("step/start", "step/end", "tool/call", "tool/result")] == [
        3
    ] * 4


@pytest.mark.parametrize(
    ("options", "kind", "requests"),
    [(("--max-tool-calls", "2"), "max_tool_calls", 2), (("--max-tokens", "200"), "max_tokens", 2)],
)
def test_a5_other_limits_end_with_4_too(dsh: Dsh, options: tuple[str, str], kind: str, requests: int) -> None:
    dsh.server.script(LS, after="repeat")
    result = dsh.run(*options, "--json", "x")
    assert (result.code, result.end["limit"]["kind"]) == (4, kind)
    assert abs(len(dsh.requests()) - requests) <= 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-steps", "0"),
        ("--max-steps", "-1"),
        ("--max-steps", "many"),
        ("--max-tool-calls", "-1"),
        ("--max-tokens", "0"),
        ("--timeout", "0"),
        ("--timeout", "soon"),
        ("--max-retries", "-1"),
    ],
)
def test_a5_a_limit_of_nothing_is_a_usage_error(dsh: Dsh, option: str, value: str) -> None:
    assert_refused(dsh.run(option, value, "x"), dsh)


def test_a5_there_is_no_hidden_limit(dsh: Dsh) -> None:
    dsh.server.script(*[LS] * 60, T("done"))
    result = dsh.run("--json", "x")
    assert (result.code, result.end["steps"], result.end["tool_calls"]) == (0, 61, 60)


def test_a6_a_progress_report_at_the_limit_is_no_answer(dsh: Dsh) -> None:
    dsh.server.script(LS, C("bash", {"command": "echo b"}, text="I have reached"), after="repeat")
    assert_failed(dsh.run("--max-steps", "2", "x"), 4)
    partial = dsh.run("--max-steps", "1", "--partial-ok", "x")
    assert (partial.code, partial.out) == (4, "I have reached\n")


def test_a6_the_partial_text_is_marked_in_the_result(dsh: Dsh) -> None:
    dsh.server.script(LEN("half an ans"))
    result = dsh.run("--json", "x")
    assert (result.code, result.end["reason"]) == (1, "output_truncated")
    assert (result.end["answer"], result.end["partial"]) == ("half an ans", True)


# --- A8 ---------------------------------------------------------------------------------------


def _limit(dsh: Dsh) -> Result:
    dsh.server.script(LS, after="repeat")
    return dsh.run("--max-steps", "1", "x")


def _denied(dsh: Dsh) -> Result:
    dsh.server.script(C("write", {"path": "f", "content": "x"}), T("could not"))
    return dsh.run("--approve", "read-only", "x")


def _stuck(dsh: Dsh) -> Result:
    dsh.server.script(C("bash", {"command": "echo same"}), after="repeat")
    return dsh.run("x")


def _busy(dsh: Dsh) -> Result:
    dsh.server.script(T("a"), after="repeat")
    assert dsh.run("--session-id", "one", "x").code == 0
    return dsh.run("--session-id", "one", "x")


def _scripted(*arguments: str, entry: dict[str, object]) -> Callable[[Dsh], Result]:
    def outcome(dsh: Dsh) -> Result:
        dsh.server.script(entry, after="repeat")
        return dsh.run(*arguments, "x")

    return outcome


OUTCOMES: dict[str, tuple[int, str, Callable[[Dsh], Result]]] = {
    "failed": (1, "failed", _scripted("--max-retries", "0", entry=H(FAIL))),
    "usage": (2, "usage", _scripted("--no-such-option", entry=T("a"))),
    "auth": (3, "auth", _scripted(entry=H(401))),
    "balance": (3, "auth", _scripted(entry=H(402))),
    "limit": (4, "limit", _limit),
    "denied": (6, "denied", _denied),
    "stuck": (7, "stuck", _stuck),
    "busy": (8, "busy", _busy),
    "timeout": (124, "timeout", _scripted("--timeout", "1", entry=STALL(60))),
    "deadline": (124, "timeout", _scripted("--deadline", "1", entry=STALL(60))),
}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a8_every_failure_has_its_code_and_its_name(dsh: Dsh, outcome: str) -> None:
    code, name, act = OUTCOMES[outcome]
    result = act(dsh)
    assert result.code == code, result.err
    assert ONE_LINE.match(result.err) and result.err.startswith(f"dsh: {name}: "), result.err


def test_a8_success_is_0(dsh: Dsh) -> None:
    dsh.server.script(T("ok"))
    assert dsh.run("x").code == 0


def test_a8_a_reader_that_went_away_is_141(dsh: Dsh) -> None:
    dsh.server.script(LS, after="repeat")
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = dsh.run("--json", "--max-steps", "50", "x", stdout=writer)
    finally:
        os.close(writer)
    assert (result.code, result.out) == (141, "")


def test_a8_simple_exit_maps_every_failure_to_1(dsh: Dsh) -> None:
    dsh.server.script(H(401))
    assert dsh.run("--simple-exit", "x").code == 1
    dsh.server.script(T("ok"))
    assert dsh.run("--simple-exit", "x").code == 0


@pytest.mark.parametrize("outcome", ["failed", "auth", "limit", "denied", "stuck", "timeout"])
def test_a8_the_result_file_says_what_the_process_says(dsh: Dsh, outcome: str, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    run = dsh.run
    dsh.run = lambda *arguments, **options: run("--result-file", str(file), *arguments, **options)  # type: ignore[method-assign]
    result = OUTCOMES[outcome][2](dsh)
    ending = json.loads(file.read_text("utf-8"))
    assert ending["exit_code"] == result.code == OUTCOMES[outcome][0]
    assert ending["status"] == OUTCOMES[outcome][1]
    assert ending["session_id"] in dsh.session_ids()


def test_a8_the_codes_are_documented_by_the_program(dsh: Dsh) -> None:
    result = dsh.call("help", "exit-codes")
    assert (result.code, result.err) == (0, "")
    shown = set(re.findall(r"\d+", result.out))
    assert {str(code) for code, _, _ in OUTCOMES.values()} | {"0", "129", "130", "141", "143"} <= shown


# --- A9, A10 ----------------------------------------------------------------------------------


def test_a9_a_denied_call_is_6_and_the_line_says_how_to_allow_it(dsh: Dsh) -> None:
    dsh.server.script(C("write", {"path": "made", "content": "x"}), T("could not"))
    result = dsh.run("--approve", "read-only", "x")
    assert_failed(result, 6)
    assert not (dsh.cwd / "made").exists()
    assert all(word in result.err for word in ("write", "read-only", "--approve"))


def test_a9_a_denial_can_be_accepted_in_advance(dsh: Dsh) -> None:
    dsh.server.script(C("write", {"path": "made", "content": "x"}), T("could not"))
    result = dsh.run("--approve", "read-only", "--no-fail-on-denied", "--json", "x")
    assert (result.code, result.end["answer"]) == (0, "could not")
    assert [denial["tool"] for denial in result.end["denied"]] == ["write"]


def test_a9_writing_outside_the_workspace_is_denied(dsh: Dsh, tmp_path: Path) -> None:
    target = tmp_path / "outside"
    dsh.server.script(C("write", {"path": str(target), "content": "x"}), T("could not"))
    assert_failed(dsh.run("x"), 6)
    assert not target.exists()
    dsh.server.script(C("write", {"path": str(target), "content": "x"}), T("done"))
    assert dsh.run("--add-dir", str(tmp_path), "x").code == 0
    assert target.read_text() == "x"


RULES = """
default = "allow"
[[rule]]
tool = "read"
path = "secrets/**"
decision = "deny"
reason = "private"
[[rule]]
tool = "bash"
command = "git push*"
decision = "deny"
[[rule]]
tool = "wri*"
decision = "ask"
"""


def test_a10_every_kind_of_denial_is_in_the_one_list(dsh: Dsh, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    calls = (
        ("read", {"path": "secrets/deep/key"}),
        ("bash", {"command": "git push --force"}),
        ("write", {"path": "w", "content": ""}),
        ("bash", {"command": "echo allowed"}),
    )
    dsh.server.script(CC(*calls), T("could not"))
    result = dsh.run("--approve", str(rules), "--json", "x")
    assert result.code == 6
    assert [denial["tool"] for denial in result.end["denied"]] == ["read", "bash", "write"]
    results = list(dsh.requests()[1].results.values())
    assert len(results) == 4 and "allowed" in results[3] and "private" in results[0]


def test_h12_what_is_not_offered_cannot_be_approved(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "touch made"}), T("no such tool"))
    result = dsh.run("--tools", "read", "--approve", "all", "--json", "x")
    assert not (dsh.cwd / "made").exists()
    assert [tool["function"]["name"] for tool in dsh.requests()[0].json["tools"]] == ["read"]
    (refusal,) = result.of("tool/result")
    assert refusal["data"]["error"]["code"] == "UNKNOWN_TOOL"


# --- A11, A15 ---------------------------------------------------------------------------------


def test_a11_standard_output_is_the_answer_and_standard_error_is_empty(dsh: Dsh) -> None:
    (dsh.cwd / "AGENTS.md").write_text("instructions of the project")
    dsh.server.script(C("bash", {"command": "echo noise >&2; echo noise"}), T("answer 漢 line\n  two"))
    result = dsh.run("x")
    assert (result.code, result.out, result.err) == (0, "answer 漢 line\n  two\n", "")


@pytest.mark.parametrize("locale", [{"LANG": "C"}, {"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONUTF8": "0"}])
def test_a11_the_locale_changes_nothing(dsh: Dsh, locale: dict[str, str | None]) -> None:
    (dsh.cwd / "名").write_text("内容\n")
    dsh.server.script(C("bash", {"command": "cat 名"}), T("答え"))
    result = dsh.run("質問", env={"LANG": None, **locale})
    assert (result.code, result.out, result.err) == (0, "答え\n", "")
    last = dsh.requests()[-1]
    assert "内容" in last.text and "質問" in last.text


def test_a11_a_large_answer_reaches_a_slow_reader_whole(dsh: Dsh) -> None:
    text = "0123456789abcdef" * 40_000
    dsh.server.script(T(text, pieces=50))
    reader, writer = os.pipe()
    running = dsh.begin("x", stdout=writer)
    os.close(writer)
    dsh.server.wait_for_ends(1)
    try:
        taken = b"".join(iter(lambda: read_some(reader), b""))
    finally:
        os.close(reader)
    assert running.wait().code == 0
    assert taken.decode() == text + "\n"


@pytest.mark.parametrize("env", [{}, {"TERM": "xterm-256color"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a15_no_escape_codes_where_there_is_no_terminal(dsh: Dsh, env: dict[str, str | None]) -> None:
    dsh.server.script(LS, T("ok"))
    assert dsh.run("x", env=env).code == 0
    for arguments in (("--help",), ("run", "--help"), ("session", "ls"), ("doctor",), ("config", "show")):
        result = dsh.call(*arguments, env=env)
        assert "\x1b" not in result.out + result.err, arguments


def test_a15_progress_off_a_terminal_has_no_escape_codes(dsh: Dsh) -> None:
    dsh.server.script(LS, T("ok"))
    result = dsh.run("--progress", "x")
    assert (result.code, result.out) == (0, "ok\n")
    assert "\x1b" not in result.err


# --- A13 --------------------------------------------------------------------------------------


def test_a13_the_result_holds_the_whole_answer_and_every_start_has_an_end(dsh: Dsh) -> None:
    call = C("bash", {"command": "echo x"}, text=["let ", "me ", "see"])
    dsh.server.script(call, T(["the ", "whole ", "answer"]))
    result = dsh.run("--json", "x")
    assert stream_faults(result.events) == []
    end = result.end
    assert (result.code, end["answer"], end["partial"]) == (0, "the whole answer", False)
    assert (end["steps"], end["turns"], end["tool_calls"], end["tool_errors"]) == (2, 1, 1, 0)
    assert end["usage"]["own"]["output"] == 20


def test_a13_the_members_of_the_result_are_all_there(dsh: Dsh) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "prompt_cache_hit_tokens": 64,
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    dsh.server.script(T("ok", usage=usage))
    end = dsh.run("--json", "x").end
    members = (
        "status reason exit_code session_id answer structured partial turns steps tool_calls usage cost "
        "duration_ms denied tool_errors abandoned retries sandbox warnings"
    )
    assert set(members.split()) <= end.keys()
    own = end["usage"]["own"]
    assert {key: own[key] for key in ("input", "cache_read", "output", "reasoning")} == {
        "input": 36,
        "cache_read": 64,
        "output": 7,
        "reasoning": 3,
    }
    assert (end["status"], end["reason"], end["exit_code"]) == ("completed", "completed", 0)


# --- A14, A17 ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left", ["sleep 1000 &", "setsid sleep 1000 &", "(trap '' TERM HUP; sleep 1000) & disown"]
)
def test_a14_the_process_ends_whatever_a_command_left_behind(dsh: Dsh, left: str) -> None:
    dsh.server.script(C("bash", {"command": left + " echo started"}), T("done"))
    running = dsh.begin("x")
    dsh.server.wait_for_ends(2)
    result = running.wait(6)
    assert (result.code, result.out) == (0, "done\n")
    assert dsh.survivors() == []


def test_a17_heartbeats_show_that_a_silent_tool_is_alive(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "read -r line < gate"}), T("done"))
    with Fifo(dsh.cwd / "gate") as gate:
        running = dsh.begin("--json", "--heartbeat", "0.2", "x")
        running.wait_for(
            lambda run: sum(1 for e in run.events if e["type"] == "heartbeat" and e["tool"]) >= 3
        )
        gate.write("open\n")
        result = running.wait()
    beats = [beat for beat in result.of("heartbeat") if beat["tool"]]
    assert all(beat["elapsed_s"] > 0 and beat["step"] == beats[0]["step"] for beat in beats)
    assert beats == sorted(beats, key=lambda beat: beat["elapsed_s"])
    assert not any("elapsed_s" in request.text for request in dsh.requests())
    assert result.end["exit_code"] == 0


def test_a17_a_heartbeat_in_text_mode_goes_to_standard_error(dsh: Dsh) -> None:
    dsh.server.script(T(["o", "k"], hold="gate"))
    running = dsh.begin("--heartbeat", "0.2", "x")
    running.wait_for(lambda run: run.stderr.count("\n") >= 2)
    dsh.server.release("gate")
    result = running.wait()
    assert (result.code, result.out) == (0, "ok\n")
