"""Section A of the case collection, first half: exit status, signals and limits.

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
    stream_faults,
)
from tests.model_server import ERRFRAME, LEN, STALL, C, H, T

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


def test_sigusr1_shows_the_actors_and_changes_nothing(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "echo up > pipe; read _ < go; echo ran"}), T("fine"))
    with Fifo(dsh.cwd / "pipe") as pipe, Fifo(dsh.cwd / "go") as go:
        running = dsh.begin("--json", "x")
        pipe.read()
        for count in (1, 2):
            running.send_signal(signal.SIGUSR1)
            running.wait_for(lambda it, count=count: it.stderr.count("greenlets") == count)
        go.write("on\n")
        result = running.wait()
    assert (result.code, result.end["answer"]) == (0, "fine")
    lines = result.err.splitlines()
    assert re.match(r"supervisor \(SupervisorActor\) generation=0 mailbox=\d+ agents=1 ", lines[0])
    assert any(re.match(r"  session_store \(SessionStoreActor\) generation=0 mailbox=\d+$", x) for x in lines)
    agent = rf"  {result.end['session_id']} \(AgentActor\) generation=0 mailbox=\d+ tools turn=1 step=1 "
    assert any(re.match(f"{agent}tool=bash ", line) for line in lines), result.err


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
    dsh.server.wait_for_ends(1)
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
    assert_failed(running.wait(), 143)
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
        result = dsh.run("--json", "--max-steps", "5000", "x", stdout=writer)
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
