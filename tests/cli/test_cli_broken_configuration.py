"""What works, and what is refused, while the user's own configuration has a mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.sqlite import SqliteStorage
from dsh_actors.cli.main import main
from dsh_actors.core.events import SessionHeader
from dsh_actors.core.ids import SessionId
from tests.cli.session_kit import LOG, everything, store

BROKEN = '[agent]\nmodle = "openai/x"\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with one session and a configuration that has a mistake."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    monkeypatch.setenv("DSH_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    store(home, "pears")
    (home / "config.toml").write_text(BROKEN)
    return home


@pytest.mark.parametrize(
    "arguments",
    [
        ("ls", "--json"),
        ("show", "pears"),
        ("verify", "--all"),
        ("stats", "pears"),
        ("export", "--format", "jsonl", "pears"),
        ("path", "pears"),
    ],
)
def test_sessions_are_read_and_the_mistake_is_told_in_one_line(
    home: Path, arguments: tuple[str, ...], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main(["session", *arguments]) == 0
    out, err = capfdbinary.readouterr()
    assert b"pears" in out or b"say" in out
    (line,) = err.decode().splitlines()
    assert line.startswith("dsh: warning: ") and "agent.modle" in line and str(home) in line


@pytest.mark.parametrize(
    "arguments", [("prune", "--keep", "0"), ("fork", "pears"), ("salvage", "pears"), ("import", "x.jsonl")]
)
def test_nothing_is_changed_while_the_configuration_has_a_mistake(
    home: Path, arguments: tuple[str, ...], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    before = everything(home)
    assert main(["session", *arguments]) == 2
    out, err = capfdbinary.readouterr()
    assert out == b"" and b"agent.modle" in err and err.count(b"\n") == 1
    assert everything(home) == before


def test_a_mistake_elsewhere_does_not_hide_the_database(
    home: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (home / "config.toml").write_text(BROKEN + '[session]\nbackend = "sqlite"\n')
    writer = SqliteStorage(str(home / "sessions.sqlite3"), "test", lambda: 1000).create(
        SessionHeader(SessionId("apples"), 1000, "/srv/shop")
    )
    writer.append(LOG)
    writer.close()
    assert main(["session", "ls", "--json"]) == 0
    rows = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [row["id"] for row in rows] == ["apples"]


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[agent", b"agent = 1\n"])
def test_a_file_that_is_no_configuration_at_all_does_not_hide_the_sessions(
    home: Path, text: bytes, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (home / "config.toml").write_bytes(text)
    assert main(["session", "ls", "--json"]) == 0
    out, err = capfdbinary.readouterr()
    assert json.loads(out)["id"] == "pears" and err.count(b"\n") == 1


def test_keys_that_others_may_read_do_not_hide_the_sessions(
    home: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (home / "config.toml").unlink()
    (home / "credentials.toml").write_text('[openai]\napi_key = "sk-secret"\n')
    (home / "credentials.toml").chmod(0o644)
    assert main(["session", "ls", "--json"]) == 0
    out, err = capfdbinary.readouterr()
    assert json.loads(out)["id"] == "pears"
    assert b"credentials.toml" in err and b"sk-secret" not in err


def test_a_wrong_variable_is_refused_as_it_is_at_hand(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("DSH_SESSION_BACKEND", "postgres")
    assert main(["session", "ls"]) == 2
    assert b"DSH_SESSION_BACKEND" in capfdbinary.readouterr().err


@pytest.mark.parametrize("arguments", [("config", "show"), ("doctor",), ("run", "-m", "scripted/demo", "x")])
def test_a_preset_is_refused_wherever_it_would_count(
    home: Path, arguments: tuple[str, ...], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (home / "config.toml").write_text('[agent]\npreset = "x"\n')
    assert main(list(arguments)) == 2
    out, err = capfdbinary.readouterr()
    assert b"there is no preset 'x'" in out + err and str(home).encode() in out + err
