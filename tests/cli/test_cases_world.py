"""What surrounds a run: homes that cannot be written, names that are not UTF-8, endless input, rule files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.cli.dsh_process import ONE_LINE, ROOT, Dsh, Result, assert_refused
from tests.model_server import C, T

STRICT = '[approval]\npolicy = "read-only"\n'


def as_user(dsh: Dsh, *arguments: str, **options: object) -> Result:
    """Without the rights of root, for which no folder is read-only."""
    command: Sequence[str] = dsh.command(*arguments)
    if os.getuid() == 0:
        setpriv = shutil.which("setpriv")
        assert setpriv is not None, "util-linux is everywhere where tests run as root"
        command = [setpriv, "--bounding-set=-all", *command]
    return dsh.call(command=command, **options)  # type: ignore[arg-type]


# --- a home that cannot be written --------------------------------------------------------------


def test_a_read_only_home_is_read_and_its_policy_holds(dsh: Dsh) -> None:
    dsh.server.script(T("kept"))
    assert dsh.run("--session-id", "one", "x").code == 0
    (dsh.home / "config.toml").write_text(STRICT)
    dsh.home.chmod(0o500)
    try:
        shown = as_user(dsh, "config", "show")
        assert str(dsh.home) in shown.out and "read-only" in shown.out
        for arguments in (("ls",), ("show", "one"), ("export", "one"), ("path", "one")):
            result = as_user(dsh, "session", *arguments)
            assert (result.code, result.err) == (0, "") and "one" in result.out, arguments
        dsh.server.script(C("write", {"path": "made", "content": ""}), T("no"))
        assert as_user(dsh, "run", "-m", dsh.model, "--ephemeral", "x").code == 6
        assert not (dsh.cwd / "made").exists()
        before = dsh.server.count()
        refused = as_user(dsh, "run", "-m", dsh.model, "x")
        assert refused.code == 2 and "not writable" in refused.err and dsh.server.count() == before
    finally:
        dsh.home.chmod(0o700)


def test_a_home_that_cannot_be_read_is_no_home_without_a_policy(dsh: Dsh) -> None:
    dsh.home.mkdir(mode=0o700)
    (dsh.home / "config.toml").write_text(STRICT)
    dsh.home.chmod(0)
    try:
        result = as_user(dsh, "run", "-m", dsh.model, "--ephemeral", "x")
    finally:
        dsh.home.chmod(0o700)
    assert result.code == 2 and ONE_LINE.match(result.err) and "cannot read" in result.err


# --- files that are none, or too much ------------------------------------------------------------


def test_a_configuration_nested_without_end_is_refused(dsh: Dsh, tmp_path: Path) -> None:
    deep = "a = " + "[" * 5_000
    (tmp_path / "rules.toml").write_text(deep)
    assert_refused(dsh.run("--approve", str(tmp_path / "rules.toml"), "x"), dsh)
    dsh.home.mkdir()
    (dsh.home / "config.toml").write_text(deep)
    assert_refused(dsh.run("x"), dsh)


def test_a_pipe_in_the_place_of_the_configuration_does_not_hang(dsh: Dsh) -> None:
    dsh.home.mkdir()
    os.mkfifo(dsh.home / "config.toml")
    assert_refused(dsh.run("x", timeout_s=10), dsh)


@pytest.mark.parametrize("option", ["--file", "--prompt-file", "--system-prompt-file"])
def test_a_file_without_end_is_refused(dsh: Dsh, option: str) -> None:
    prompt = () if option == "--prompt-file" else ("x",)
    result = dsh.run(option, "/dev/zero", *prompt, timeout_s=20)
    assert_refused(result, dsh)
    assert "64 MiB" in result.err


def test_standard_input_without_end_is_refused(dsh: Dsh) -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        result = dsh.run("--stdin-timeout", "5m", "-", stdin=endless.stdout.fileno(), timeout_s=20)
        endless.terminate()
    assert_refused(result, dsh)
    assert "--stdin-max-bytes" in result.err


def test_a_cut_keeps_whole_characters(dsh: Dsh) -> None:
    dsh.server.script(T("ok"))
    result = dsh.run("--stdin-max-bytes", "4", "--json", "-", text="aéé")
    assert result.end["warnings"] == ["standard input was cut after 3 bytes"]
    assert "aé" in dsh.requests()[0].text and "�" not in dsh.requests()[0].text


# --- names that are not UTF-8 ---------------------------------------------------------------------


def test_a_directory_that_is_not_utf8_is_refused_in_one_line(dsh: Dsh) -> None:
    folder = os.fsencode(dsh.cwd) + b"/b\xff"
    os.mkdir(folder)
    for arguments in (("run", "-m", dsh.model, "x"), ("run", "-m", dsh.model, "-C", ".", "--ephemeral", "x")):
        result = dsh.call(*arguments, cwd=Path(os.fsdecode(folder)))
        assert_refused(result, dsh)
        assert "not UTF-8" in result.err
    assert dsh.call("session", "ls", "--here", cwd=Path(os.fsdecode(folder))).code == 0


@pytest.mark.parametrize("argument", [("-m", "openai/\udcff"), ("-m", ""), ("--resume", "a\nb")])
def test_a_name_that_cannot_be_is_one_line(dsh: Dsh, argument: tuple[str, str]) -> None:
    assert_refused(dsh.call("run", *argument, "x"), dsh)


def test_names_are_utf8_whatever_the_locale(dsh: Dsh) -> None:
    folder = dsh.cwd / "ünï"
    folder.mkdir()
    (folder / "名").write_text("内容\n")
    dsh.server.script(C("read", {"path": "名"}), T("ok"))
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = dsh.run("質問", env=locale, cwd=folder)
    assert (result.code, result.out, result.err) == (0, "ok\n", "")
    assert all(word in dsh.requests()[1].text for word in ("ünï", "内容", "質問"))


def test_a_home_that_is_not_utf8_is_refused(dsh: Dsh) -> None:
    for arguments in (("session", "ls"), ("run", "-m", dsh.model, "--ephemeral", "x")):
        result = dsh.call(*arguments, env={"DSH_HOME": "/tmp/h\udcff"})
        assert result.code == 2 and ONE_LINE.match(result.err) and "not UTF-8" in result.err


def test_only_a_command_that_has_the_option_advises_to_do_without_a_home(dsh: Dsh, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"prompt": "x"}\n')
    for has_it, arguments in (
        (True, ("run", "-m", dsh.model, "x")),
        (True, ("batch", "-m", dsh.model, str(tasks))),
        (False, ("serve",)),
        (False, ("session", "ls")),
        (False, ("session", "import", str(tasks))),
    ):
        result = dsh.call(*arguments, env={"DSH_HOME": "/dev/null/home"})
        assert result.code == 2 and ONE_LINE.match(result.err), result.err
        assert "set DSH_HOME" in result.err and ("--ephemeral" in result.err) is has_it, result.err


# --- rules that match nothing ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "word"),
    [
        ('tool = "bsh"', "'bash'"),
        ('tool = "bash"\npath = "secrets/**"', "has no path"),
        ('tool = "read"\ncommand = "ls"', "has no command"),
        ('command = "git push["', "never closed"),
    ],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_rule_that_can_match_nothing_is_refused(
    dsh: Dsh, tmp_path: Path, rule: str, word: str, resumed: bool
) -> None:
    if resumed:
        dsh.server.script(T("ok"))
        assert dsh.run("--session-id", "one", "x").code == 0
    before = dsh.server.count()
    rules = tmp_path / "rules.toml"
    rules.write_text(f'default = "allow"\n[[rule]]\n{rule}\ndecision = "deny"\n')
    chosen = ("--resume", "one") if resumed else ()
    result = dsh.run(*chosen, "--approve", str(rules), "x")
    assert result.code == 2 and ONE_LINE.match(result.err) and word in result.err
    assert dsh.server.count() == before


def test_a_glob_may_match_no_tool(dsh: Dsh, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('default = "allow"\n[[rule]]\ntool = "mcp_*"\ndecision = "deny"\n')
    dsh.server.script(T("ok"))
    assert dsh.run("--approve", str(rules), "x").code == 0


# --- what the list shows ----------------------------------------------------------------------------


def test_the_list_is_one_line_a_session_whatever_its_directory(dsh: Dsh) -> None:
    folder = dsh.cwd / "a\nb\x1b[31m"
    folder.mkdir()
    dsh.server.script(T("ok"))
    assert dsh.run("x", cwd=folder).code == 0
    result = dsh.call("session", "ls", "-n", "9" * 21)
    assert (result.code, result.out.count("\n")) == (0, 1) and "\x1b" not in result.out


def test_a_broken_project_file_does_not_hide_the_sessions(dsh: Dsh) -> None:
    dsh.server.script(T("ok"))
    assert dsh.run("--session-id", "one", "x").code == 0
    (dsh.cwd / ".dsh").mkdir()
    (dsh.cwd / ".dsh" / "config.toml").write_text("broken = [")
    assert dsh.call("session", "ls").out.startswith("one ")
    assert dsh.run("x").code == 2


# --- whose modules are imported ---------------------------------------------------------------------


def test_the_path_of_the_user_is_for_commands_only(dsh: Dsh, tmp_path: Path) -> None:
    """As bin/dsh starts it: with modules in PYTHONPATH that would break the program."""
    for name in ("click", "requests", "json", "site"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'imported {__name__}')\n")
    start = (ROOT / "bin" / "dsh").read_text().splitlines()[-1]
    flags = start.partition('bin/python" ')[2].partition(' "$root')[0].split()
    # The environment of these tests finds the program by its own path, as the checkout's .pth does.
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.argv[0] = 'dsh'\n"
    main = f"exec(compile(open({str(ROOT / 'dsh_actors' / '__main__.py')!r}).read(), 'main', 'exec'))"
    command = [sys.executable, *flags, "-c", program + main, "run", "-m", dsh.model, "x"]
    dsh.server.script(C("bash", {"command": "echo path=$PYTHONPATH"}), T("ok"))
    result = dsh.call(command=command, env={"PYTHONPATH": str(tmp_path)})
    assert (result.code, result.out, result.err) == (0, "ok\n", "")
    assert f"path={tmp_path}" in dsh.requests()[1].text
