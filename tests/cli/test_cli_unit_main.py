"""Commands that need no model: help, configuration, sessions, and errors of one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.cli.failures import one_line
from dsh_actors.cli.main import main
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.exit_codes import EXIT_TABLE
from dsh_actors.core.ids import SessionId


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a current directory of the test's own."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def store(home: Path, name: str, answer: str) -> None:
    header = SessionHeader(SessionId(name), 1000, str(home.parent / "work"))
    storage = SegmentStorage(str(home / "sessions"), "test", lambda: 1000)
    source = {"kind": "user"}
    user = {"id": "u", "role": "user", "content": [{"type": "text", "text": "do it"}], "source": source}
    blocks = [
        {"type": "reasoning", "text": "think"},
        {"type": "text", "text": answer},
        {"type": "tool-call", "id": "c", "name": "bash", "arguments": '{"command": "ls"}'},
    ]
    reply = {"id": "a", "role": "assistant", "content": blocks, "source": source}
    result = {"type": "tool-result", "toolCallId": "c", "content": [{"type": "text", "text": "``` x"}]}
    writer = storage.create(header)
    failure = {"message": "lost", "code": "SERVER"}
    facts: list[tuple[str, dict[str, object]]] = [
        ("turn/start", {"turn": 1}),
        ("user/message", user),
        ("assistant/message", {"turn": 1, "step": 1, "message": reply}),
        ("tool/result", {"turn": 1, "step": 1, "message": {"content": [result]}}),
        ("turn/end", {"turn": 1, "reason": {"kind": "error", "error": failure}}),
    ]
    surface = {"user/message", "assistant/message", "tool/result"}
    writer.append(
        [Event(k, seq, 1000, d, "append" if k in surface else None) for seq, (k, d) in enumerate(facts)]
    )
    writer.close()


@pytest.mark.parametrize(
    "arguments",
    [
        ["rnu"],
        ["run", "--bogus"],
        ["run", "a", "b"],
        ["run", "--max-steps"],
        ["session", "path", "absent"],
        ["session", "show", "absent"],
        ["session", "export", "absent"],
        ["session", "bogus"],
        ["session", "ls", "-n", "0"],
        ["help", "bogus"],
        ["config", "show", "extra"],
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    home: Path, capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code = main(arguments)
    out, err = capfd.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("dsh: usage: ")
    assert not home.exists()


def test_a_fault_of_ours_is_one_line_and_no_traceback(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import dsh_actors.cli.config_cmd as module

    def broken(**_options: object) -> None:
        raise ZeroDivisionError("at\nheart")

    monkeypatch.setattr(module, "load_config", broken)
    assert main(["config", "show"]) == 1
    err = capfd.readouterr().err
    assert err == (
        "dsh: failed: internal error: ZeroDivisionError: at heart; set DSH_DEBUG=1 for the details\n"
    )
    monkeypatch.setenv("DSH_DEBUG", "1")
    assert main(["config", "show"]) == 1
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["help"], ["help", "run"], ["--version"]]
)
def test_help_goes_to_standard_output(capfd: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code = main(arguments)
    out, err = capfd.readouterr()
    assert (code, err) == (0, "") and "dsh" in out and "\x1b" not in out


def test_every_exit_code_and_reason_is_explained(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "exit-codes"]) == 0
    out = capfd.readouterr().out
    for row in EXIT_TABLE:
        assert str(row.code) in out and row.name in out
        assert all(reason in out for reason in row.reasons)


def test_the_configuration_shows_values_and_origins_but_no_keys(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSH_LIMITS_MAX_STEPS", "7")
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-canary")
    assert main(["config", "show", "--json"]) == 0
    out = capfd.readouterr().out
    rows = {row["name"]: row for row in map(json.loads, out.splitlines())}
    assert rows["limits.max_steps"] == {
        "name": "limits.max_steps",
        "value": 7,
        "origin": "DSH_LIMITS_MAX_STEPS",
    }
    assert rows["providers.deepseek.api_key"]["value"] == "set" and "canary" not in out


def test_a_home_with_no_sessions_lists_nothing(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["session", "ls"]) == 0
    assert capfd.readouterr() == ("", "")
    assert not home.exists()


def test_sessions_are_listed_newest_first_and_limited(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store(home, "one", "first")
    store(home, "two", "second")
    assert main(["session", "ls", "--json", "-n", "1"]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(lines) == 1
    assert set(lines[0]) == {"id", "cwd", "title", "created", "updated", "turns", "status", "parent"}
    assert main(["session", "ls", "--here"]) == 0
    text = capfd.readouterr().out
    assert text.count("\n") == 2 and "do it" in text


def test_an_export_has_a_header_and_every_event(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store(home, "one", "答え")
    assert main(["session", "export", "one"]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (lines[0]["type"], lines[0]["id"], lines[0]["version"]) == ("session", "one", 0)
    assert [line["seq"] for line in lines[1:]] == [0, 1, 2, 3, 4]
    target = home / "out.jsonl"
    assert main(["session", "export", "one", "-o", str(target)]) == 0
    assert [json.loads(line) for line in target.read_text("utf-8").splitlines()] == lines


def test_a_transcript_reads_as_markdown(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store(home, "one", "答え")
    assert main(["session", "show", "one"]) == 0
    shown = capfd.readouterr().out
    assert main(["session", "export", "one", "--format", "markdown"]) == 0
    assert capfd.readouterr().out == shown
    assert "**User:**\n\ndo it" in shown and "**Assistant:**\n\n答え" in shown and "> think" in shown
    assert "````\n``` x\n````" in shown and "*Turn ended: error: lost*" in shown


def test_the_path_of_a_session_is_its_directory(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store(home, "one", "x")
    assert main(["session", "path", "one"]) == 0
    assert Path(capfd.readouterr().out.strip()).is_dir()


def test_the_doctor_names_what_is_missing_and_what_is_mistyped(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSH_LIMITS_MAX_STEP", "7")
    assert main(["doctor"]) == 2
    out = capfd.readouterr().out
    assert "set DEEPSEEK_API_KEY" in out and "did you mean DSH_LIMITS_MAX_STEPS?" in out
    monkeypatch.setenv("DEEPSEEK_API_KEY", "sk-canary-0123456789")
    assert main(["doctor"]) == 0
    assert "canary" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('type = "nope"', "there is no type 'nope'"),
        ('ca_file = "/none/ca.pem"', "there is no ca_file /none/ca.pem"),
        (f'ca_file = "{__file__}"', f"cannot read the certificates in {__file__}"),
        ('api_key_env = "LAB_KEY"', "the API key holds a blank"),
    ],
)
def test_the_doctor_finds_what_a_run_would_be_refused_for(
    table: str, words: str, home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAB_KEY", "canary 1")
    home.mkdir(exist_ok=True)
    text = f'[agent]\nmodel = "lab/m"\n[providers.lab]\nbase_url = "https://me:canary@h/v1"\n{table}\n'
    (home / "config.toml").write_text(text, "utf-8")
    assert main(["doctor"]) == 2
    out = capfd.readouterr().out
    (line,) = [line for line in out.splitlines() if line.startswith("bad")]
    assert line.startswith("bad   model lab/m: ") and words in line
    assert "canary" not in out and "internal error" not in out


def test_a_list_of_models_says_which_certificates_or_proxy_it_cannot_use(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(exist_ok=True)
    text = f'[providers.lab]\nbase_url = "https://h.invalid/v1"\nca_file = "{__file__}"\n'
    (home / "config.toml").write_text(text, "utf-8")
    assert main(["models", "lab", "--remote"]) == 1
    assert f"lab: GET /models: ca_file of lab: cannot read the certificates in {__file__}" in (
        capfd.readouterr().err
    )
    (home / "config.toml").write_text('[providers.lab]\nbase_url = "http://h.invalid/v1"\n', "utf-8")
    monkeypatch.setenv("http_proxy", "http://a..b:9")
    assert main(["models", "lab", "--remote"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("dsh: failed: lab: GET /models: the proxy cannot be used") and err.count("\n") == 1


def test_the_help_of_a_subcommand_is_found_by_all_its_words(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "session", "ls"]) == 0
    text = capfd.readouterr().out
    assert text.startswith("Usage: dsh session ls ")
    assert main(["session", "ls", "--help"]) == 0
    assert capfd.readouterr().out == text
    for words, hint in (
        (["session", "lss"], "did you mean ls?"),
        (["run", "fast"], "run has no subcommands"),
        (["session", "events"], "no help on 'session events'"),
        (["sesion"], "did you mean session?"),
    ):
        assert main(["help", *words]) == 2
        assert hint in capfd.readouterr().err


def test_one_line_shows_what_would_turn_the_rest_of_it_around() -> None:
    assert one_line("a\u202eb\u2066c\nd") == "a\\u202eb\\u2066c\\nd"
