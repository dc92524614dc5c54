"""Section A of the case collection, second half: denials, what is written where, liveness; and H12."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.dsh_process import Dsh, Fifo, assert_failed, read_some, stream_faults
from tests.model_server import CC, C, T

LS = C("bash", {"command": "echo step @@N@@"})


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
    result = running.wait(10)  # 6 s are promised, 5 of them for what is stubborn; a busy machine takes more
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
