"""`dsh session export`, `import` and `fork`, as real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from dsh_actors.adapters.storage.importing import ImportFile
from dsh_actors.cli.session_import import import_
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import UsageError
from tests.cli.dsh_process import ONE_LINE, Dsh
from tests.cli.session_kit import LOG, everything, flip, sessions, store
from tests.model_server import T


def exported(dsh: Dsh, name: str) -> str:
    result = dsh.call("session", "export", name)
    assert (result.code, result.err) == (0, "")
    return result.out


@pytest.mark.parametrize("way", ["file", "zstd", "stdin"])
def test_an_export_is_imported_elsewhere_as_the_same_session(dsh: Dsh, way: str) -> None:
    lineage = {"parent_session": SessionId("p"), "seed_length": 0, "delegation_depth": 1}
    store(dsh.home, "s", **lineage)
    text = exported(dsh, "s")
    other = {"DSH_HOME": str(dsh.home.parent / "other")}
    path = dsh.cwd / ("s.jsonl.zstd" if way == "zstd" else "s.jsonl")
    data = text.encode()
    if way == "zstd":
        lines = data.splitlines(keepends=True)
        data = b"".join(
            zstandard.ZstdCompressor().compress(b"".join(part)) for part in (lines[:1], lines[1:])
        )
    path.write_bytes(data)
    if way == "stdin":
        result = dsh.call("session", "import", "-", text=text, env=other)
    else:
        result = dsh.call("session", "import", str(path), "--json", env=other)
        assert result.events == [{"id": "s", "events": len(LOG), "left_out": []}]
    assert (result.code, result.err) == (0, "")
    assert dsh.call("session", "export", "s", env=other).out == text
    assert dsh.call("session", "verify", "s", "--requests", env=other).code == 0


def test_an_id_that_is_taken_is_busy_and_another_can_be_given(dsh: Dsh) -> None:
    store(dsh.home, "s")
    path = dsh.cwd / "s.jsonl"
    path.write_text(exported(dsh, "s"))
    before = everything(dsh.home)
    taken = dsh.call("session", "import", str(path))
    assert (taken.code, taken.out) == (8, "") and ONE_LINE.match(taken.err)
    assert everything(dsh.home) == before
    assert dsh.call("session", "import", str(path), "--session-id", "t").code == 0
    assert list(sessions(dsh.home).read(SessionId("t"))) == LOG


def test_what_cannot_be_imported_is_refused_with_the_line_and_leaves_nothing(dsh: Dsh) -> None:
    store(dsh.home, "s")
    lines = exported(dsh, "s").splitlines(keepends=True)
    unknown = json.dumps(Event("future/fact", len(LOG), 0, {}).to_json()) + "\n"
    cases = {
        "damaged": ([*lines[:6], "oops\n", *lines[7:]], "line 7"),
        "gap": ([*lines[:6], *lines[7:]], "line 7"),
        "unknown": ([*lines, unknown], f"line {len(lines) + 1}: event {len(LOG)} has the unknown type"),
        "newer": ([lines[0].replace('"version":0', '"version":1'), *lines[1:]], "version 1"),
        "foreign": (["<html>\n"], "line 1"),
    }
    other = dsh.home.parent / "other"
    for name, (content, reason) in cases.items():
        path = dsh.cwd / f"{name}.jsonl"
        path.write_text("".join(content))
        result = dsh.call("session", "import", str(path), env={"DSH_HOME": str(other)})
        assert (result.code, result.out) == (1, ""), name
        assert ONE_LINE.match(result.err) and reason in result.err and path.name in result.err, result.err
        assert not other.exists()


def test_an_imported_session_goes_on(dsh: Dsh) -> None:
    store(dsh.home, "s", cwd=str(dsh.cwd))
    text = exported(dsh, "s")
    result = dsh.call("session", "import", "-", "--session-id", "copy", text=text)
    assert result.out == f"copy: {len(LOG)} events\n"
    dsh.server.script(T("went on"))
    assert dsh.run("--resume", "copy", "-m", dsh.model, "more").out == "went on\n"


def test_an_export_into_a_file_is_there_whole_or_not_at_all(dsh: Dsh, tmp_path: Path) -> None:
    store(dsh.home, "s")
    target = tmp_path / "out.jsonl"
    assert dsh.call("session", "export", "s", "-o", str(target)).code == 0
    assert target.read_text() == exported(dsh, "s")
    flip(dsh.home, "s", 2)
    failed = dsh.call("session", "export", "s", "-o", str(tmp_path / "bad.jsonl"))
    assert failed.code == 1 and ONE_LINE.match(failed.err)
    assert [path.name for path in tmp_path.glob("*.jsonl")] == ["out.jsonl"]
    assert not list(tmp_path.glob(".dsh-*"))


# --- fork -------------------------------------------------------------------------------------


def test_a_fork_has_its_parents_beginning_and_says_where_it_came_from(dsh: Dsh) -> None:
    store(dsh.home, "s")
    end = next(event.seq for event in LOG if event.type == "turn/end")
    result = dsh.call("session", "fork", f"s@{end}", "--session-id", "child", "--json")
    assert result.events == [{"id": "child", "parent": "s", "seed_length": end + 1, "events": end + 2}]
    storage = sessions(dsh.home)
    header = storage.header(SessionId("child"))
    assert (header.parent_session, header.seed_length, header.cwd) == ("s", end + 1, "/srv/shop")
    events = list(storage.read(SessionId("child")))
    assert events[:-1] == LOG[: end + 1] and events[-1].type == "session/end-seed"
    assert dsh.call("session", "verify", "child", "--requests").code == 0


def test_a_fork_without_a_place_takes_all_and_prints_a_new_id(dsh: Dsh) -> None:
    store(dsh.home, "s@7")
    result = dsh.call("session", "fork", "s@7")
    child = SessionId(result.out.strip())
    assert (result.code, result.err) == (0, "")
    assert list(sessions(dsh.home).read(child))[:-1] == LOG


def test_a_place_where_no_fork_can_be_is_refused_and_a_taken_id_first(dsh: Dsh) -> None:
    store(dsh.home, "s")
    inside = next(event.seq for event in LOG if event.type == "tool/call")
    for place in (f"s@{inside}", f"s@{len(LOG)}"):
        refused = dsh.call("session", "fork", place)
        assert (refused.code, refused.out) == (2, "") and ONE_LINE.match(refused.err)
    taken = dsh.call("session", "fork", f"s@{inside}", "--session-id", "s")
    assert taken.code == 8
    assert dsh.session_ids() == ["s"]


def test_a_file_that_changes_while_it_is_stored_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ImportFile, "check", lambda _file: 5)
    path = tmp_path / "s.jsonl"
    header = {"type": "session", "version": 0, "id": "s", "createdAt": 1, "cwd": "/"}
    note = {"type": "run/note", "seq": 0, "time": 1, "ignorable": True, "data": {}}
    path.write_text(json.dumps(header) + "\n" + json.dumps(note) + "\n")
    with pytest.raises(UsageError, match="changed while it was read; nothing was stored"):
        import_.callback(file=str(path), session_id=None, as_json=False)
    assert not list(tmp_path.rglob("*.zst"))
