"""Looking after sessions that are kept in one database."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.cli.dsh_process import Dsh, Result, assert_failed

ANSWERS = ({"text": "first"}, {"text": "second"}, {"text": "third"})


@pytest.fixture
def pears(dsh: Dsh) -> Dsh:
    """A session of three turns in the database."""
    dsh.home.mkdir(mode=0o700)
    (dsh.home / "config.toml").write_text('[session]\nbackend = "sqlite"\n')
    dsh.server.script(*ANSWERS)
    assert dsh.run("--session-id", "pears", "one").code == 0
    assert dsh.run("--resume", "pears", "two").code == 0
    assert dsh.run("--resume", "pears", "three").code == 0
    return dsh


def spoil(dsh: Dsh, statement: str) -> None:
    with sqlite3.connect(dsh.home / "sessions.sqlite3") as database:
        database.execute(statement)
    database.close()


def rows(done: Result) -> list[dict[str, object]]:
    assert done.code == 0, done.err
    return [json.loads(line) for line in done.out.splitlines()]


def test_a_damaged_session_is_salvaged_in_the_middle_and_the_copy_goes_on(pears: Dsh) -> None:
    dsh = pears
    database = sqlite3.connect(dsh.home / "sessions.sqlite3")
    firsts = [first for (first,) in database.execute("SELECT first_seq FROM batches ORDER BY first_seq")]
    database.close()
    lost = firsts[len(firsts) // 2]
    spoil(dsh, f"UPDATE batches SET crc = crc + 1 WHERE first_seq = {lost}")
    assert_failed(dsh.run("--resume", "pears", "four"), 1)
    (report,) = rows(dsh.call("session", "salvage", "--json", "pears"))
    assert report["id"] == "pears-salvaged"
    gaps = report["gaps"]
    assert isinstance(gaps, list) and gaps[0]["first_seq"] <= lost
    assert any(f"events from {lost}" in damage["place"] for gap in gaps for damage in gap["damages"])
    assert dsh.call("session", "verify", "pears-salvaged").code == 0
    shown = dsh.call("session", "show", "pears-salvaged").out
    assert "one" in shown and "third" in shown
    dsh.server.script({"text": "fourth"})
    assert dsh.run("--resume", "pears-salvaged", "four").out == "fourth\n"


def test_a_session_that_is_being_written_is_not_salvaged(pears: Dsh) -> None:
    dsh = pears
    dsh.server.script({"text": "slow", "hold": "gate"})
    running = dsh.begin("--resume", "pears", "four")
    dsh.server.wait_for_requests(1)
    assert_failed(dsh.call("session", "salvage", "pears"), 8)
    dsh.server.release("gate")
    assert running.wait(30).code == 0


def test_the_oldest_are_pruned_until_the_rest_fits_and_the_file_shrinks(pears: Dsh) -> None:
    dsh = pears
    for name in ("apples", "plums"):
        exported = dsh.home.parent / "pears.jsonl"
        assert dsh.call("session", "export", "--format", "jsonl", "-o", str(exported), "pears").code == 0
        assert dsh.call("session", "import", "--session-id", name, str(exported)).code == 0
    before = (dsh.home / "sessions.sqlite3").stat().st_size
    prune = ("session", "prune", "--json", "--max-bytes")
    *would, total = rows(dsh.call(*prune, "1", "--keep", "1", "--dry-run"))
    assert [row["id"] for row in would] == ["pears", "apples"]
    sizes = [row["bytes"] for row in would]
    assert all(isinstance(size, int) and size > 1000 for size in sizes)
    assert total["total"] == {"sessions": 2, "bytes": sum(sizes), "dry_run": True}  # type: ignore[arg-type]
    assert len(rows(dsh.call("session", "ls", "--json"))) == 3
    limit = str(sum(sizes) + 2000)  # type: ignore[arg-type]
    *gone, _ = rows(dsh.call(*prune, limit))
    assert [row["id"] for row in gone] == ["pears"]
    *gone, _ = rows(dsh.call(*prune, "1", "--keep", "1"))
    assert [row["id"] for row in gone] == ["apples"]
    assert [row["id"] for row in rows(dsh.call("session", "ls", "--json"))] == ["plums"]
    assert dsh.call("session", "verify", "--all").code == 0
    assert (dsh.home / "sessions.sqlite3").stat().st_size < before
