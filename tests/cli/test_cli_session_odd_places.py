"""Directories that are no sessions, homes that cannot be written: each told as what it is."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.storage import SegmentStorage
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import StorageError
from dsh_actors.task_spec import session_exists
from tests.cli.dsh_process import Dsh, assert_failed
from tests.cli.session_kit import everything, flip, sessions, store
from tests.cli.test_cases_world import as_user
from tests.model_server import T


def listed(dsh: Dsh) -> dict[str, str]:
    result = dsh.call("session", "ls", "--json")
    assert (result.code, result.err) == (0, "")
    return {str(row["id"]): str(row["status"]) for row in result.events}


def test_a_directory_of_something_else_is_no_empty_session_and_is_never_removed(dsh: Dsh) -> None:
    store(dsh.home, "pears")
    project = Path(sessions(dsh.home).path(SessionId("pears"))).parent
    (project / "notes").mkdir()
    (project / "notes" / "mine.txt").write_text("mine")
    (project / "bare").mkdir()
    assert listed(dsh) == {"pears": "ok", "notes": "corrupt", "bare": "empty"}
    for dry in (["--dry-run"], []):
        result = dsh.call("session", "prune", "--keep", "0", *dry)
        assert result.code == 1 and result.err.count("\n") == 1
        assert "mine.txt is no part of session 'notes'" in result.err
        assert ("would remove" if dry else "removed") + " 2 sessions" in result.out
        assert "notes" not in result.out
    assert (project / "notes" / "mine.txt").read_text() == "mine"


def test_a_copy_of_a_session_beside_it_is_named_by_a_dry_run_as_by_a_real_one(dsh: Dsh) -> None:
    store(dsh.home, "pears")
    directory = Path(sessions(dsh.home).path(SessionId("pears")))
    shutil.copytree(directory, dsh.home / "sessions" / "elsewhere" / "pears")
    before = everything(dsh.home)
    for dry in (["--dry-run"], []):
        result = dsh.call("session", "prune", "--keep", "0", *dry)
        assert result.code == 1 and result.err.count("\n") == 1
        assert "exists more than once" in result.err and " 0 sessions" in result.out
    assert {path: data for path, data in everything(dsh.home).items() if "index" not in path} == {
        path: data for path, data in before.items() if "index" not in path
    }


def test_nothing_left_to_salvage_is_said_so(dsh: Dsh) -> None:
    store(dsh.home, "pears")
    shutil.rmtree(Path(sessions(dsh.home).path(SessionId("pears")), "log"))
    result = dsh.call("session", "salvage", "pears")
    assert_failed(result, 1)
    assert "can be read; put back a copy of it" in result.err


@pytest.mark.parametrize("backend", ["segments", "sqlite"])
def test_sessions_in_a_read_only_home_are_read_and_forked_without_being_kept(dsh: Dsh, backend: str) -> None:
    dsh.home.mkdir(mode=0o700)
    (dsh.home / "config.toml").write_text(f'[session]\nbackend = "{backend}"\n')
    dsh.server.script(T("first"), T("second"))
    assert dsh.run("--session-id", "pears", "one").code == 0
    before = everything(dsh.home)
    folders = [dsh.home, *(path for path in dsh.home.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o500)
    try:
        for arguments in (("ls",), ("show", "pears"), ("verify", "pears"), ("stats",), ("export", "pears")):
            result = as_user(dsh, "session", *arguments)
            assert (result.code, result.err) == (0, "") and "pears" in result.out + "pears", arguments
        found = as_user(dsh, "session", "search", "first")
        assert (found.code, found.err) == (0, "") and found.out.startswith("pears@")
        forked = as_user(dsh, "run", "-m", dsh.model, "--ephemeral", "--fork", "pears", "two")
        assert (forked.code, forked.out, forked.err) == (0, "second\n", "")
        refused = as_user(dsh, "run", "-m", dsh.model, "--fork", "pears", "three")
        assert_failed(refused, 2)
        assert_failed(as_user(dsh, "session", "fork", "pears"), 1)
    finally:
        for folder in folders:
            folder.chmod(0o700)
    assert everything(dsh.home) == before
    assert "first" in str(dsh.server.requests()[-1].json["messages"])


def test_what_cannot_be_looked_at_is_not_taken_for_an_id_in_use(
    dsh: Dsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(dsh.home, "pears")
    storage: SegmentStorage = sessions(dsh.home)
    assert session_exists(storage, SessionId("pears")) and not session_exists(storage, SessionId("apples"))
    flip(dsh.home, "pears", 0)
    assert session_exists(storage, SessionId("pears")), "a damaged one has its id too"

    def refuse(*_arguments: object, **_options: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StorageError, match="Input/output error"):
        session_exists(storage, SessionId("pears"))


def test_a_line_that_is_no_event_is_described_without_the_words_of_the_language(dsh: Dsh) -> None:
    path = dsh.home.parent / "odd.jsonl"
    path.write_text('{"type":"session","version":0,"id":"x","createdAt":1}\n{"kind":"odd"}\n')
    result = dsh.call("session", "import", str(path))
    assert_failed(result, 1)
    assert "not an event: 'type' is missing" in result.err and "KeyError" not in result.err


def test_an_export_that_cannot_be_written_says_whose_fault_it_is(dsh: Dsh) -> None:
    store(dsh.home, "pears")
    for path, code, word in (
        ("/nonexistent/x", 2, "choose another file"),
        (str(dsh.cwd), 2, "choose another file"),
        ("/dev/full", 1, "No space left"),
    ):
        result = dsh.call("session", "export", "-o", path, "pears")
        assert_failed(result, code)
        assert path in result.err and word in result.err
    shown = dsh.call("session", "export", "-o", "/dev/full", "pears", env={"DSH_DEBUG": "1"}).err
    assert "StorageFull" in shown
