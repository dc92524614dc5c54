"""Sessions that this user may not read or remove, or that are there twice, are told as what they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsh_actors.core.ids import SessionId
from tests.cli.dsh_process import Dsh
from tests.cli.session_kit import everything, segment, sessions, store
from tests.cli.test_cases_world import as_user
from tests.model_server import T

DENIED = "Permission denied; check the owner and the permissions there"


def directory(dsh: Dsh, name: str = "pears") -> Path:
    return Path(sessions(dsh.home).path(SessionId(name)))


@contextmanager
def denied(path: Path, mode: int = 0) -> Iterator[None]:
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


def place(dsh: Dsh, what: str) -> Path:
    """The directory of the session, its log or the segment in it."""
    if what == "segment":
        return segment(dsh.home, "pears")
    return directory(dsh) / ("log" if what == "log" else "")


@pytest.mark.parametrize("what", ["session", "log", "segment"])
def test_what_may_not_be_read_is_told_so_and_not_called_damaged(dsh: Dsh, what: str) -> None:
    store(dsh.home, "pears")
    store(dsh.home, "apples")
    with denied(place(dsh, what)):
        listed = as_user(dsh, "session", "ls")
        assert listed.code == 0 and listed.err.count("\n") == 1 and DENIED in listed.err
        for arguments in (("verify", "--all"), ("salvage", "pears"), ("show", "pears")):
            result = as_user(dsh, "session", *arguments)
            assert result.code == 1 and result.err.count("\n") == 1
            assert DENIED in result.err and "salvage ID" not in result.err
    assert dsh.call("session", "verify", "--all").code == 0


def test_a_session_that_is_there_twice_is_not_said_to_need_salvage(dsh: Dsh) -> None:
    store(dsh.home, "pears")
    shutil.copytree(directory(dsh), dsh.home / "sessions" / "elsewhere" / "pears")
    listed = dsh.call("session", "ls", "--json")
    assert len(listed.events) == 2
    assert listed.code == 0 and listed.err.count("\n") == 1
    for result in (listed, dsh.call("session", "verify", "pears")):
        assert "exists more than once" in result.err and "; move all but one away\n" in result.err
        assert "salvage" not in result.err


def test_checkpoints_that_may_not_be_read_are_gone_on_without(dsh: Dsh) -> None:
    dsh.server.script(T("first"), T("second"))
    assert dsh.run("--session-id", "pears", "one").code == 0
    folder = directory(dsh) / "checkpoints"
    assert list(folder.iterdir())
    with denied(folder):
        result = as_user(dsh, "run", "-m", dsh.model, "--resume", "pears", "two")
        assert (result.code, result.out) == (0, "second\n")
        assert as_user(dsh, "session", "verify", "pears").code == 0


@pytest.mark.parametrize("what", ["session", "log", "project", "a folder of a tool", "the lock"])
@pytest.mark.parametrize("mode", [0, 0o500])
def test_what_may_not_be_removed_is_named_by_a_dry_run_and_stays_whole(
    dsh: Dsh, what: str, mode: int
) -> None:
    store(dsh.home, "pears")
    spill = directory(dsh) / "spill" / "call-1"
    spill.mkdir(parents=True)
    (spill / "output.txt").write_text("x")
    places = {
        "session": directory(dsh),
        "log": directory(dsh) / "log",
        "project": directory(dsh).parent,
        "a folder of a tool": spill,
        "the lock": directory(dsh) / "lock",
    }
    with denied(places[what], mode & (0o400 if what == "the lock" else 0o700)):
        for dry in (["--dry-run"], []):
            result = as_user(dsh, "session", "prune", "--keep", "0", *dry)
            assert result.code == 1 and result.err.count("\n") == 1 and "Permission denied" in result.err
            assert "would remove pears" not in result.out and "removed pears" not in result.out
    assert not list((dsh.home / "sessions").rglob(".gone-*"))
    assert dsh.call("session", "verify", "pears").code == 0


@pytest.mark.parametrize(
    ("cwd", "shown"), [("/srv/a\0b", r"/srv/a\x00b"), ("/srv/a\x1b[1mb", r"/srv/a\x1b[1mb"), ("/no", "/no")]
)
def test_a_directory_that_cannot_be_is_named_when_its_session_is_resumed(
    dsh: Dsh, cwd: str, shown: str
) -> None:
    store(dsh.home, "pears", cwd=cwd)
    before = everything(dsh.home)
    for option in ("--resume", "--fork"):
        result = dsh.run(option, "pears", "go on")
        assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
        assert f"session pears works in {shown}, which is not a directory here" in result.err
    assert everything(dsh.home) == before
