"""Logs of other hands: what is odd in one is told or shown, and hurts no other session."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsh_actors.core.ids import SessionId
from tests.cli.dsh_process import Dsh, assert_failed
from tests.cli.session_kit import segment, sessions, store
from tests.image_samples import png

Change = Callable[[list[dict[str, Any]]], None]


def exported(dsh: Dsh, name: str) -> list[dict[str, Any]]:
    result = dsh.call("session", "export", name)
    assert (result.code, result.err) == (0, "")
    return [json.loads(line) for line in result.out.splitlines()]


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def set_reason(rows: list[dict[str, Any]]) -> None:
    next(row for row in rows if row["type"] == "turn/end")["data"]["reason"] = "odd"


def set_text(rows: list[dict[str, Any]]) -> None:
    next(row for row in rows if row["type"] == "user/message")["data"]["content"][0]["text"] = ["odd"]


@pytest.mark.parametrize("change", [set_reason, set_text])
def test_what_has_an_unexpected_shape_is_shown_as_it_is(dsh: Dsh, tmp_path: Path, change: Change) -> None:
    store(dsh.home, "pears")
    rows = exported(dsh, "pears")
    change(rows)
    assert dsh.call("session", "import", "--session-id", "odd", written(tmp_path / "x.jsonl", rows)).code == 0
    for form in (["show"], ["export", "--format", "markdown"], ["export", "--format", "html"]):
        result = dsh.call("session", *form, "odd")
        assert (result.code, result.err) == (0, "")
        assert "odd" in result.out
        assert "html" in form or "**Unreadable " in result.out


def test_a_number_that_no_database_holds_hurts_no_list_and_no_search(dsh: Dsh, tmp_path: Path) -> None:
    store(dsh.home, "pears")
    rows = exported(dsh, "pears")
    rows[0]["createdAt"] = rows[-1]["time"] = 10**30
    next(row for row in rows if row["type"] == "user/message")["time"] = 10**30
    path = written(tmp_path / "x.jsonl", rows)
    assert dsh.call("session", "import", "--session-id", "odd", path).code == 0
    for _ in range(2):
        listed = dsh.call("session", "ls", "--json")
        assert (listed.code, listed.err) == (0, "")
        assert {row["id"] for row in listed.events} == {"pears", "odd"}
    title = next(row["title"] for row in listed.events if row["id"] == "pears")
    found = dsh.call("session", "search", title.split()[0])
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("pears@")


@pytest.mark.parametrize("name", ["n\nl", "\x1b[31m", "q" * 201])
def test_an_id_that_no_option_takes_is_not_taken_from_a_file(dsh: Dsh, tmp_path: Path, name: str) -> None:
    store(dsh.home, "pears")
    rows = exported(dsh, "pears")
    rows[0]["id"] = name
    path = written(tmp_path / "x.jsonl", rows)
    result = dsh.call("session", "import", path)
    assert_failed(result, 2)
    assert "cannot be the id of a session; choose another with --session-id" in result.err
    assert dsh.call("session", "import", "--session-id", "other", path).code == 0


@pytest.mark.parametrize("order", [("type", "attachment", "data"), ("data", "attachment", "type")])
def test_images_are_read_from_an_export_that_was_written_anew(
    dsh: Dsh, tmp_path: Path, order: tuple[str, ...]
) -> None:
    (dsh.cwd / "a.png").write_bytes(png())
    dsh.home.mkdir(mode=0o700)
    config = '[[providers.scripted.models]]\nid = "demo"\ncapabilities = ["image"]\n'
    (dsh.home / "config.toml").write_text(config)
    shown = ("run", "--model", "scripted/demo", "--session-id", "pears", "--file", "a.png", "look")
    assert dsh.call(*shown).code == 0
    rows = exported(dsh, "pears")
    assert rows[-1]["type"] == "attachment"
    rows[-1] = {key: rows[-1][key] for key in order}
    path = written(tmp_path / "x.jsonl", rows)
    for image in dsh.home.glob("attachments/sha256/*/*"):
        image.unlink()
    assert dsh.call("session", "import", "--session-id", "again", path).code == 0
    assert dsh.call("session", "verify", "again").code == 0


def test_a_copy_without_one_event_of_its_source_is_not_made(dsh: Dsh) -> None:
    store(dsh.home, "pears")
    path = segment(dsh.home, "pears")
    data = path.read_bytes()
    start = data.find(b"\x28\xb5\x2f\xfd", 1)
    path.write_bytes(data[: start + 12] + bytes(len(data) - start - 12))
    result = dsh.call("session", "salvage", "pears")
    assert_failed(result, 1)
    assert "no event of session 'pears' can be read" in result.err
    assert "pears-salvaged" not in dsh.call("session", "ls").out


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(dsh: Dsh) -> None:
    store(dsh.home, "pears")
    path = segment(dsh.home, "pears")
    path.unlink()
    os.mkfifo(path)
    lock = Path(sessions(dsh.home).path(SessionId("pears")), "lock")
    for command in (
        ["session", "show", "pears"],
        ["session", "verify", "pears"],
        ["session", "salvage", "pears"],
        ["run", "--model", "scripted/demo", "--resume", "pears", "go on"],
    ):
        result = dsh.call(*command)
        assert result.code == 1 and result.err.count("\n") == 1
    assert dsh.call("session", "search", "pears").code == 0
    assert dsh.call("session", "ls", "--json").events[0]["status"] == "corrupt"
    lock.unlink()
    os.mkfifo(lock)
    assert dsh.call("session", "ls", "--json").events[0]["status"] == "corrupt"
    assert_failed(dsh.call("run", "--model", "scripted/demo", "--resume", "pears", "go on"), 1)
