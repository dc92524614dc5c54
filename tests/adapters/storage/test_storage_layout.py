"""Names on disk: one safe segment an id, private files, lookups that list nothing."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.adapters.storage.layout import id_of_name, name_of_id, project_name
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionCorrupt, SessionExists, UsageError
from tests.adapters.storage.samples import disk, header, segment, stored, turn

HARD_IDS = [
    "../x",
    ".",
    "..",
    "...",
    "a/b",
    "a\\b",
    "a:b",
    "~",
    "~002E",
    "x" * 300,
    "😀" * 9,
    "\x00",
    " ",
    "-rf",
    "é",
    ".new-1",
]


@pytest.mark.parametrize("session_id", HARD_IDS)
def test_a_hard_id_stays_inside_its_project_and_is_found_again(tmp_path: Path, session_id: str) -> None:
    storage = disk(tmp_path / "sessions")
    stored(storage, [turn(0)], session_id)
    path = Path(storage.path(SessionId(session_id)))
    assert path.parent.parent == tmp_path / "sessions"
    assert os.listdir(tmp_path) == ["sessions"]
    assert [one.id for one in storage.list()] == [session_id]
    assert [one.status for one in storage.list()] == ["ok"]
    assert list(storage.read(SessionId(session_id))) == turn(0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(st.sampled_from(".~0AEa/é😀\ud800"), min_size=1, max_size=6), min_size=2, max_size=2))
def test_different_ids_have_different_names_and_names_lead_back_to_ids(ids: list[str]) -> None:
    names = [name_of_id(one) for one in ids]
    assert (names[0] == names[1]) == (ids[0] == ids[1])
    for one, name in zip(ids, names, strict=True):
        assert not name.startswith(".") and name.isascii() and "/" not in name
        if "\ud800" not in one:
            assert id_of_name(name) == one


def test_long_ids_with_the_same_beginning_have_different_names() -> None:
    names = {name_of_id("x" * 250 + end) for end in "abc"}
    assert len(names) == 3 and all(len(name) < 255 for name in names)


def test_an_empty_id_has_no_name() -> None:
    with pytest.raises(UsageError):
        name_of_id("")


@pytest.mark.parametrize(
    ("cwd", "name"),
    [
        (None, "_no-cwd"),
        ("/", "root"),
        ("/srv/my-shop", "srv-my-shop"),
        ("/a//b/", "a-b"),
        ("/x.y_z", "x.y_z"),
    ],
)
def test_a_project_is_named_readably_after_its_directory(cwd: str | None, name: str) -> None:
    assert project_name(cwd) == name


@pytest.mark.parametrize(
    "cwd", ["/" + "deep/" * 200 + "end", "/srv/用户", "/.hidden", "/...", "/a b", "/\udcff"]
)
def test_a_project_name_is_bounded_plain_and_still_distinct(cwd: str) -> None:
    name = project_name(cwd)
    assert len(name) <= 110 and name.isascii() and "/" not in name and not name.startswith(".")
    assert name != project_name(cwd + "x")


def test_everything_is_private_to_the_user(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        storage = disk(tmp_path / "home" / "sessions")
        stored(storage, [turn(0)])
    finally:
        os.umask(old)
    modes = {}
    for base, directories, files in os.walk(tmp_path / "home"):
        for name in (*directories, *files):
            modes[name] = stat.S_IMODE(os.lstat(os.path.join(base, name)).st_mode)
    assert modes.pop("lock") == modes.pop("000000000000.jsonl.zst") == 0o600
    assert set(modes.values()) == {0o700}
    assert stat.S_IMODE(os.lstat(tmp_path / "home").st_mode) == 0o700


def test_a_session_that_was_copied_into_a_second_project_is_refused(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    original = Path(stored(storage, [turn(0)])).parents[1]
    shutil.copytree(original, tmp_path / "other-project" / "s1")
    with pytest.raises(SessionCorrupt, match="more than once"):
        storage.open(SessionId("s1"))
    with pytest.raises(SessionExists):
        storage.create(header())


def test_finding_a_session_does_not_list_the_sessions_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = disk(tmp_path)
    session = Path(stored(storage, [turn(0)])).parents[1]
    listed: list[str] = []

    def record(path: str) -> Any:
        listed.append(path)
        return scandir(path)

    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", record)
    storage.open(SessionId("s1")).close()
    assert storage.path(SessionId("s1")) == str(session)
    assert set(listed) == {str(tmp_path)}


def test_the_newest_of_a_directory_leaves_out_others_subagents_and_damage(tmp_path: Path) -> None:
    storage = disk(tmp_path)
    for session_id in ("old", "new", "broken"):
        stored(storage, [turn(0)], session_id)
    Path(segment(storage, "broken")).write_bytes(b"garbage")
    same_project = storage.create(header("alias", cwd="/work-shop"))
    same_project.append(turn(0))
    child = header("child")
    storage.create(type(child)(child.id, 1, child.cwd, SessionId("new"), None, "subagent", 1)).append(turn(0))
    assert storage.newest("/srv/shop") == [("new", False), ("old", False)]
    writer = storage.open(SessionId("old"))
    writer.append(turn(9, 2))
    assert storage.newest("/srv/shop", limit=1) == [("old", True)]
    assert storage.newest("/nowhere") == []
