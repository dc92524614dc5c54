"""Section B of the case collection: prompt input, options, resuming; and G1, the second writer."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.dsh_process import ONE_LINE, Dsh, assert_failed, assert_refused
from tests.model_server import STALL, C, T

# --- B1, B2, B3 -------------------------------------------------------------------------------


def test_b1_with_a_prompt_argument_standard_input_is_never_read(dsh: Dsh) -> None:
    dsh.server.script(T("ok"))
    reader, writer = os.pipe()
    try:
        running = dsh.begin("hi", stdin=reader)
        dsh.server.wait_for_requests(1)
        result = running.wait()
    finally:
        os.close(reader)
        os.close(writer)
    assert (result.code, result.out) == (0, "ok\n")


def test_b1_standard_input_may_be_missing(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "cat; echo alive"}), T("ok"))
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *dsh.command("run", "-m", dsh.model, "hi")]
    result = dsh.start(command=closed).wait()
    assert (result.code, result.out, result.err) == (0, "ok\n", "")
    assert "alive" in dsh.requests()[1].text


def test_b1_all_three_streams_may_be_missing(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "echo alive"}), T("ok"))
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *dsh.command("run", "-m", dsh.model, "hi")]
    code = dsh.start(command=closed).wait().code
    assert code in (0, 141)
    assert "alive" in dsh.requests()[1].text


BACKGROUND_OF_A_TERMINAL = """
import os, sys
os.setsid()
terminal = os.open(sys.argv[1], os.O_RDWR)  # becomes the controlling terminal
child = os.fork()
if child == 0:
    os.setpgid(0, 0)  # the terminal still belongs to the parent's group: reading it would stop us
    os.dup2(terminal, 0)
    os.execv(sys.argv[2], sys.argv[2:])
_, status = os.waitpid(child, os.WUNTRACED)
sys.exit(99 if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status))
"""


def test_b1_in_the_background_of_a_terminal_nothing_stops_it(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "cat; echo alive"}), T("ok"))
    master, slave = os.openpty()
    try:
        program = dsh.command("run", "-m", dsh.model, "hi")
        helper = [sys.executable, "-c", BACKGROUND_OF_A_TERMINAL, os.ttyname(slave), *program]
        process = subprocess.Popen(
            helper, env=dsh.env, cwd=dsh.cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = process.communicate(timeout=30)
    finally:
        os.close(master)
        os.close(slave)
    assert (process.returncode, out, err) == (0, b"ok\n", b"")


@pytest.mark.parametrize("text", ["", "  \n", "\n\n\t\n", "\u00a0 \u2003"])
def test_b2_a_blank_standard_input_is_a_usage_error(dsh: Dsh, text: str) -> None:
    assert_refused(dsh.run("-", text=text), dsh)


def test_b2_a_blank_argument_or_none_is_a_usage_error(dsh: Dsh) -> None:
    assert_refused(dsh.run("   "), dsh)
    assert_refused(dsh.run(), dsh)


def test_b2_two_prompts_are_a_usage_error(dsh: Dsh, tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("from the file")
    assert_refused(dsh.run("--prompt-file", str(file), "argument"), dsh)


def test_b2_no_prompt_on_a_terminal_is_a_usage_error(dsh: Dsh) -> None:
    master, slave = os.openpty()
    try:
        assert_refused(dsh.run(stdin=slave), dsh)
    finally:
        os.close(master)
        os.close(slave)


@pytest.mark.parametrize("dash", [("-",), ()])
def test_b3_new_and_resumed_runs_read_standard_input_alike(dsh: Dsh, dash: tuple[str, ...]) -> None:
    dsh.server.script(T("one"), T("two"))
    assert dsh.run("--session-id", "s", *dash, text="first").out == "one\n"
    assert dsh.run("--resume", "s", *dash, text="next\n").out == "two\n"
    messages = dsh.requests_with_stable_prefix()[1].messages
    said = [message["content"].strip() for message in messages]
    assert [text for text in said if text in ("first", "one", "next")] == ["first", "one", "next"]


# --- B5 ---------------------------------------------------------------------------------------

LARGE = "".join(f"line {n} 漢字 \N{GRINNING FACE}\n" for n in range(220_000))


def test_b5_a_prompt_of_megabytes_comes_through_whole(dsh: Dsh, tmp_path: Path) -> None:
    assert len(LARGE.encode()) > 5_000_000
    file = tmp_path / "prompt"
    file.write_text(LARGE, "utf-8")
    dsh.server.script(T("ok"), after="repeat")
    assert dsh.run("--prompt-file", str(file)).code == 0
    assert dsh.run("-", text=LARGE).code == 0
    for request in dsh.requests():
        assert LARGE.strip() in (message["content"].strip() for message in request.messages)


def test_b5_a_system_prompt_of_megabytes_comes_through_whole(dsh: Dsh, tmp_path: Path) -> None:
    file = tmp_path / "system"
    file.write_text(LARGE, "utf-8")
    dsh.server.script(T("ok"), after="repeat")
    assert dsh.run("--system-prompt-file", str(file), "x").code == 0
    assert dsh.run("--append-system-prompt-file", str(file), "x").code == 0
    first, second = dsh.requests()
    assert LARGE.strip() in first.messages[0]["content"]
    assert second.messages[0]["content"].strip().endswith(LARGE.strip())
    assert len(second.messages[0]["content"]) > len(first.messages[0]["content"])


@pytest.mark.parametrize(
    "option", ["--prompt-file", "--system-prompt-file", "--append-system-prompt-file", "--file"]
)
def test_b5_an_unreadable_file_is_a_usage_error(dsh: Dsh, option: str, tmp_path: Path) -> None:
    tail = () if option == "--prompt-file" else ("x",)
    assert_refused(dsh.run(option, str(tmp_path / "missing"), *tail), dsh)
    assert_refused(dsh.run(option, str(tmp_path), *tail), dsh)


def test_b5_an_attached_text_file_is_quoted_in_the_prompt(dsh: Dsh) -> None:
    (dsh.cwd / "notes.txt").write_text("remember 漢")
    dsh.server.script(T("ok"))
    assert dsh.run("--file", "notes.txt", "read it").code == 0
    messages = dsh.requests()[0].messages
    (said,) = [message["content"] for message in messages if "read it" in message["content"]]
    assert "remember 漢" in said and "notes.txt" in said


# --- B8, B9, B11 ------------------------------------------------------------------------------

OPTIONS = [
    ("--approve", "all"),
    ("--max-steps", "5"),
    ("--max-tool-calls", "5"),
    ("--max-tokens", "100000"),
    ("--timeout", "60"),
    ("--deadline", "1m"),
    ("--tool-timeout", "5s"),
    ("--max-retries", "1"),
    ("--tools", "read,bash"),
    ("--deny-tools", "bash"),
    ("--sandbox", "off"),
    ("--add-dir", "/"),
    ("--json",),
    ("--partial-ok",),
    ("--no-fail-on-denied",),
    ("--no-wait",),
    ("--heartbeat", "60"),
    ("--simple-exit",),
    ("--model", "openai/other"),
    ("--append-system-prompt", "more"),
    ("-C", "."),
]


def test_b8_a_resumed_run_takes_every_option_of_a_new_one(dsh: Dsh) -> None:
    dsh.server.script(T("ok"), after="repeat")
    options = [word for option in OPTIONS for word in option]
    new = dsh.run("--session-id", "s", *options, "x")
    resumed = dsh.run("--resume", "s", *options, "x")
    assert (new.code, new.err, resumed.code, resumed.err) == (0, "", 0, "")
    assert [request.json["model"] for request in dsh.requests()] == ["other", "other"]
    assert all(len(request.json["tools"]) == 1 for request in dsh.requests())


def test_b8_another_directory_on_resume_is_refused(dsh: Dsh, tmp_path: Path) -> None:
    dsh.server.script(T("ok"), C("bash", {"command": "pwd"}), T("ok"))
    dsh.run("--session-id", "s", "x")
    refused = dsh.run("--resume", "s", "-C", str(tmp_path), "x")
    assert refused.code == 2 and ONE_LINE.match(refused.err)
    assert dsh.server.count() == 1
    assert dsh.run("--resume", "s", "x", cwd=tmp_path).code == 0
    assert str(dsh.cwd) in next(iter(dsh.requests()[-1].results.values()))


@pytest.mark.parametrize("session", ["zzz", "../x", "", ".", "x" * 300])
def test_b9_an_unknown_session_is_a_usage_error_and_creates_nothing(dsh: Dsh, session: str) -> None:
    assert_refused(dsh.run("--resume", session, "hi"), dsh)


def test_b9_nothing_to_continue_is_a_usage_error(dsh: Dsh) -> None:
    assert_refused(dsh.run("--continue", "hi"), dsh)


def test_b9_continue_takes_the_newest_session_of_the_directory(dsh: Dsh, tmp_path: Path) -> None:
    dsh.server.script(T("ok"), after="repeat")
    dsh.run("--session-id", "old", "first")
    dsh.run("--session-id", "new", "second")
    dsh.run("--session-id", "elsewhere", "third", cwd=tmp_path)
    result = dsh.run("--continue", "--json", "more")
    assert (result.code, result.end["session_id"]) == (0, "new")
    assert "second" in dsh.requests()[-1].text


def test_b11_the_caller_chooses_and_learns_the_session_id(dsh: Dsh, tmp_path: Path) -> None:
    dsh.server.script(T("ok"), after="repeat")
    file = tmp_path / "result"
    result = dsh.run(
        "--session-id", "mine-1", "--json", "--result-file", str(file), "--print-session-id", "x"
    )
    assert result.events[0]["type"] == "run.start"
    assert result.events[0]["session_id"] == result.end["session_id"] == "mine-1"
    assert "schema_version" in result.events[0]
    assert json.loads(file.read_text()) == result.end | {"type": "run.end"} or (
        json.loads(file.read_text()) == {k: v for k, v in result.end.items() if k != "type"}
    )
    assert "mine-1" in result.err
    again = dsh.run("--session-id", "mine-1", "x")
    assert_failed(again, 8)
    assert dsh.run("--resume", "mine-1", "x").code == 0
    assert dsh.session_ids() == ["mine-1"]


def test_b11_the_answer_can_go_to_a_file(dsh: Dsh, tmp_path: Path) -> None:
    dsh.server.script(T("the answer"))
    result = dsh.run("-o", str(tmp_path / "last"), "x")
    assert (result.out, (tmp_path / "last").read_text().rstrip("\n")) == ("the answer\n", "the answer")


# --- B12 --------------------------------------------------------------------------------------


def _tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_b12_only_the_home_of_the_program_is_touched(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "echo x"}), T("ok"))
    assert dsh.run("x").code == 0
    assert [_tree(place) for place in (dsh.user_home, dsh.cwd, dsh.tmp)] == [[], [], []]
    assert stat.S_IMODE(dsh.home.stat().st_mode) == 0o700


def test_b12_a_missing_user_home_does_not_matter(dsh: Dsh) -> None:
    dsh.server.script(T("ok"))
    result = dsh.run("x", env={"HOME": "/nonexistent"})
    assert (result.code, result.err) == (0, "")
    assert not Path("/nonexistent").exists()


def test_b12_an_ephemeral_run_leaves_no_session(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "echo x"}), T("ok"), after="cycle")
    result = dsh.run("--ephemeral", "--json", "remember-nothing")
    assert (result.code, stream_ids(result.events)) == (0, [result.end["session_id"]] * 2)
    assert dsh.session_ids() == []
    assert "remember-nothing" not in dsh.stored_text()
    assert [_tree(place) for place in (dsh.user_home, dsh.cwd, dsh.tmp)] == [[], [], []]
    unwritable = {"HOME": "/nonexistent", "DSH_HOME": "/proc/no"}
    assert dsh.run("--ephemeral", "x", env=unwritable).code == 0
    assert dsh.run("x", env=unwritable).code == 2


def stream_ids(events: list[dict[str, object]]) -> list[object]:
    return [event["session_id"] for event in events if str(event["type"]).startswith("run.")]


# --- G1 ---------------------------------------------------------------------------------------


def test_g1_a_second_writer_is_told_who_holds_the_session(dsh: Dsh) -> None:
    dsh.server.script(STALL(60, "x"), T("later"))
    holder = dsh.begin("--session-id", "held", "--json", "x")
    holder.wait_for_event("assistant/chunk")
    second = dsh.run("--resume", "held", "y")
    assert_failed(second, 8)
    assert str(holder.process.pid) in second.err
    assert dsh.run("--continue", "y").code == 8
    assert dsh.call("session", "show", "held").code == 0
    assert dsh.server.count() == 1
    holder.kill()
    assert dsh.run("--resume", "held", "y").out == "later\n"


def test_g1_a_stopped_holder_still_holds(dsh: Dsh) -> None:
    dsh.server.script(STALL(60, "x"))
    holder = dsh.begin("--session-id", "held", "--json", "x")
    holder.wait_for_event("assistant/chunk")
    holder.send_signal(signal.SIGSTOP)
    assert dsh.run("--resume", "held", "y").code == 8
