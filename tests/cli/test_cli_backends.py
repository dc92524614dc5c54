"""The program with its sessions in one database, and the index that many runs share."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.cli.dsh_process import Dsh, Running, assert_failed, assert_refused

BACKENDS = ["segments", "sqlite"]


def use(dsh: Dsh, backend: str) -> None:
    dsh.home.mkdir(mode=0o700)
    (dsh.home / "config.toml").write_text(f'[session]\nbackend = "{backend}"\n')


def listed(dsh: Dsh, *arguments: str) -> list[dict[str, object]]:
    done = dsh.call("session", "ls", "--json", *arguments)
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def is_sound(path: Path) -> bool:
    database = sqlite3.connect(path)
    try:
        return bool(database.execute("PRAGMA integrity_check").fetchone()[0] == "ok")
    finally:
        database.close()


@pytest.fixture
def one_file(dsh: Dsh) -> Dsh:
    use(dsh, "sqlite")
    return dsh


def test_a_session_in_the_database_is_run_resumed_continued_and_looked_at(one_file: Dsh) -> None:
    dsh = one_file
    dsh.server.script({"text": "first"}, {"text": "second"}, {"text": "third"})
    assert dsh.run("--session-id", "pears", "one").out == "first\n"
    assert dsh.run("--resume", "pears", "two").out == "second\n"
    assert dsh.run("--continue", "three").out == "third\n"
    assert not (dsh.home / "sessions").exists()
    last = dsh.server.requests()[-1].json["messages"]
    texts = [str(message["content"]) for message in last]
    assert all(any(word in text for text in texts) for word in ("one", "first", "two", "second", "three"))
    assert [(row["id"], row["turns"], row["status"]) for row in listed(dsh)] == [("pears", 3, "ok")]
    assert "third" in dsh.call("session", "show", "pears").out
    exported = dsh.call("session", "export", "--format", "jsonl", "pears").out.splitlines()
    assert [json.loads(line)["seq"] for line in exported[1:]] == list(range(len(exported) - 1))
    assert dsh.call("session", "path", "pears").out == f"{dsh.home / 'sessions.sqlite3'}\n"
    assert_failed(dsh.run("--session-id", "pears", "again"), 8)
    assert_failed(dsh.run("--resume", "apples", "again"), 2)


def test_a_live_session_in_the_database_is_busy_and_a_killed_one_resumes(one_file: Dsh) -> None:
    dsh = one_file
    dsh.server.script({"text": "slow", "hold": "gate"}, {"text": "done"})
    running: Running = dsh.begin("--json", "--session-id", "pears", "one")
    dsh.server.wait_for_requests(1)
    assert [row["status"] for row in listed(dsh)] == ["live"]
    busy = dsh.run("--resume", "pears", "two")
    assert_failed(busy, 8)
    assert str(running.process.pid) in busy.err
    running.kill()
    dsh.server.release("gate")
    assert [row["status"] for row in listed(dsh)] == ["interrupted"]
    assert dsh.run("--resume", "pears", "two").out == "done\n"
    events = [json.loads(line) for line in dsh.call("session", "show", "--json", "pears").out.splitlines()]
    ends = [event["data"]["reason"]["kind"] for event in events if event["type"] == "turn/end"]
    assert ends == ["interrupted", "completed"]


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda path: path.write_bytes(b"not a database, but long enough" * 200), "damaged"),
        (lambda path: _set_version(path, 99), "newer version"),
    ],
)
def test_a_database_that_cannot_be_read_is_named_and_left_as_it_is(one_file: Dsh, spoil, word: str) -> None:
    dsh = one_file
    dsh.server.script({"text": "first"})
    assert dsh.run("--session-id", "pears", "one").code == 0
    path = dsh.home / "sessions.sqlite3"
    spoil(path)
    before = path.read_bytes()
    for arguments in (("--resume", "pears", "two"), ("--session-id", "new", "two")):
        done = dsh.run(*arguments)
        assert_failed(done, 1)
        assert word in done.err and str(path) in done.err
    assert dsh.call("session", "show", "pears").code == 1
    assert path.read_bytes() == before
    assert dsh.server.count() == 1


def _set_version(path: Path, version: int) -> None:
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {version}")
    database.close()


def test_a_backend_that_there_is_not_and_one_that_a_project_wants_are_refused(dsh: Dsh) -> None:
    assert_refused(dsh.run("x", env={"DSH_SESSION_BACKEND": "postgres"}), dsh)
    (dsh.cwd / ".dsh").mkdir()
    (dsh.cwd / ".dsh" / "config.toml").write_text('[session]\nbackend = "sqlite"\n')
    assert_refused(dsh.run("x"), dsh)


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_runs_in_one_home_all_end_well_and_the_index_agrees(
    dsh: Dsh, backend: str, long_form: bool
) -> None:
    count = 100 if long_form else 10
    use(dsh, backend)
    config = (dsh.home / "config.toml").read_bytes()
    dsh.server.script(*({"text": f"answer {n}"} for n in range(count)))
    started = [dsh.begin("--session-id", f"s{n:03}", f"task {n}") for n in range(count)]
    ends = [running.wait(300) for running in started]
    assert [(end.code, end.err) for end in ends] == [(0, "")] * count
    assert (dsh.home / "config.toml").read_bytes() == config
    before = listed(dsh)
    assert sorted((row["id"], row["title"], row["turns"], row["status"]) for row in before) == [
        (f"s{n:03}", f"task {n}", 1, "ok") for n in range(count)
    ]
    assert is_sound(dsh.home / "index.sqlite3")
    (dsh.home / "index.sqlite3").unlink()
    assert listed(dsh) == before
    assert listed(dsh, "-n", "3") == before[:3]


def test_a_broken_index_disturbs_neither_the_run_nor_the_list(dsh: Dsh) -> None:
    dsh.server.script({"text": "first"}, {"text": "second"})
    dsh.home.mkdir(mode=0o700)
    (dsh.home / "index.sqlite3").write_bytes(b"no database here, whatever the name says" * 100)
    done = dsh.run("--session-id", "pears", "one")
    assert (done.code, done.out, done.err) == (0, "first\n", "")
    assert [row["id"] for row in listed(dsh)] == ["pears"]
    assert is_sound(dsh.home / "index.sqlite3")
    (dsh.home / "index.sqlite3").unlink()
    (dsh.home / "index.sqlite3").mkdir()
    done = dsh.run("--resume", "pears", "two")
    assert (done.code, done.out, done.err) == (0, "second\n", "")
    assert [(row["id"], row["turns"]) for row in listed(dsh)] == [("pears", 2)]
