"""Opening and replacing files: nothing blocks, nothing escapes, nothing is half written."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from dsh_actors.adapters.tools.edit import EditTool
from dsh_actors.adapters.tools.grep import GrepTool
from dsh_actors.adapters.tools.paths import absolute, open_below, open_target, real_path, shown
from dsh_actors.adapters.tools.read import ReadTool
from dsh_actors.adapters.tools.write import WriteTool
from dsh_actors.errors import ToolDenied, ToolError
from dsh_actors.ports import Tool
from tests.adapters.tools.file_kit import Workspace, workspace_at


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    return workspace_at(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("tool", [ReadTool(), WriteTool(), EditTool()])
@pytest.mark.parametrize("kind", ["fifo", "socket", "/dev/zero", "/dev/null", "/dev/tty", "folder"])
def test_what_is_no_regular_file_is_refused_at_once(work: Workspace, tool: object, kind: str) -> None:
    name = str(work.root / kind) if kind[0] != "/" else kind
    os.mkfifo(work.root / "fifo")
    (work.root / "folder").mkdir()
    listener = socket.socket(socket.AF_UNIX)
    # A relative name keeps the address short enough for any temporary directory.
    here = os.open(work.root, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{here}/socket")
    begin = time.monotonic()
    with pytest.raises(ToolError):
        work.run(tool, path=name, content="x", old="a", new="b")  # type: ignore[arg-type]
    assert time.monotonic() - begin < 10  # what waits for the other end of a pipe waits for ever
    listener.close()
    os.close(here)


@pytest.mark.parametrize(
    "name", ["/proc/self/environ", "/proc/self/mem", "/proc/self/task/%d/environ", "link"]
)
def test_the_environment_and_memory_of_processes_are_refused(work: Workspace, name: str) -> None:
    (work.root / "link").symlink_to(f"/proc/{os.getpid()}/environ")
    with pytest.raises(ToolDenied) as caught:
        work.run(ReadTool(), path=name % os.getpid() if "%" in name else name)
    assert caught.value.rule == "process-secrets"


def test_reading_outside_the_workspace_is_allowed(work: Workspace, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("hello")
    assert "hello" in work.text(ReadTool(), path="../outside")
    assert "hello" in work.text(ReadTool(), path=str(tmp_path / "outside"))


@pytest.mark.parametrize(
    "path",
    ["../x", "{outside}/x", "sub/../../x", "link/x", "dangling", "file-link", "link-to-link", "~/../../x"],
)
def test_writing_outside_the_roots_is_denied_by_every_name(
    work: Workspace, tmp_path: Path, path: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (work.root / "sub").mkdir()
    (work.root / "link").symlink_to(outside)
    (work.root / "dangling").symlink_to(outside / "new")
    (work.root / "file-link").symlink_to(outside / "kept")
    (work.root / "link-to-link").symlink_to("dangling")
    with pytest.raises(ToolDenied) as caught:
        work.run(WriteTool(), path=path.replace("{outside}", str(outside)), content="evil")
    assert caught.value.rule == "workspace"
    assert caught.value.hint is not None and "--add-dir" in caught.value.hint
    assert names(tmp_path) == ["outside", "place"]
    assert names(outside) == ["kept"]
    assert (outside / "kept").read_text() == "kept"


def test_an_added_directory_and_the_whole_disk_can_be_roots(work: Workspace, tmp_path: Path) -> None:
    added = tmp_path / "added"
    added.mkdir()
    both = replace(work, context=replace(work.context, roots=(*work.context.roots, str(added.resolve()))))
    both.run(WriteTool(), path=str(added / "deep" / "a"), content="1")
    assert (added / "deep" / "a").read_text() == "1"
    everything = replace(work, context=replace(work.context, roots=("/",)))
    everything.run(WriteTool(), path=str(tmp_path / "b"), content="2")
    assert (tmp_path / "b").read_text() == "2"


def test_a_directory_with_the_roots_name_as_its_beginning_is_outside(work: Workspace, tmp_path: Path) -> None:
    (tmp_path / "work-2").mkdir()
    with pytest.raises(ToolDenied):
        work.run(WriteTool(), path="../work-2/x", content="")


def test_a_directory_swapped_for_a_link_after_the_check_is_not_followed(
    work: Workspace, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    work.file("sub/a", "old")
    with open_target("sub/a", work.context, create_parents=False) as target:
        (work.root / "sub").rename(work.root / "moved")
        (work.root / "sub").symlink_to(outside)
        target.replace(b"new")
    assert names(outside) == []
    assert (work.root / "moved" / "a").read_text() == "new"


@pytest.mark.parametrize("create", [True, False])
def test_the_way_down_from_a_root_follows_no_link(work: Workspace, tmp_path: Path, create: bool) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (work.root / "a").mkdir()
    (work.root / "a" / "link").symlink_to(outside)
    with pytest.raises(OSError):
        open_below(os.fsencode(work.root), [b"a", b"link", b"new"], create)
    assert names(outside) == []


def test_links_inside_the_workspace_are_written_through(work: Workspace) -> None:
    work.file("real/a", "old")
    (work.root / "link").symlink_to("real/a")
    (work.root / "new-link").symlink_to("real/b")
    work.run(WriteTool(), path="link", content="new")
    work.run(WriteTool(), path="new-link", content="made")
    assert (work.root / "link").is_symlink()
    assert (work.root / "real" / "a").read_text() == "new"
    assert (work.root / "real" / "b").read_text() == "made"


def test_a_file_that_changed_since_it_was_read_is_not_overwritten(work: Workspace) -> None:
    path = work.file("a", "old")
    with (
        pytest.raises(ToolError, match="changed by somebody else"),
        open_target("a", work.context, create_parents=False) as target,
    ):
        target.read(100)
        path.write_text("theirs, longer")
        target.replace(b"ours")
    assert path.read_text() == "theirs, longer"
    assert names(work.root) == ["a"]


def test_a_failed_write_leaves_the_old_file_and_no_temporary_one(work: Workspace) -> None:
    path = work.file("a", "old")
    with pytest.raises(ToolError), open_target("a", work.context, create_parents=False) as target:
        path.unlink()
        path.mkdir()
        target.replace(b"new")
    assert names(work.root) == ["a"]
    assert path.is_dir()


def test_a_missing_path_suggests_what_is_close(work: Workspace) -> None:
    work.file("src/server.py")
    with pytest.raises(ToolError, match=r"src/sever\.py does not exist; close to it: src/server\.py"):
        work.run(ReadTool(), path="src/sever.py")
    with pytest.raises(ToolError, match="no/such does not exist, and neither does no"):
        work.run(ReadTool(), path="no/such")
    with pytest.raises(ToolError, match=r"src/server\.py is not a directory"):
        work.run(ReadTool(), path="src/server.py/x")


def test_a_link_that_leads_nowhere_says_where_to(work: Workspace) -> None:
    (work.root / "link").symlink_to("gone/target")
    with pytest.raises(ToolError, match=r"^link is a symbolic link to gone/target, which does not exist$"):
        work.run(ReadTool(), path="link")


def test_odd_paths_are_refused_clearly(work: Workspace) -> None:
    (work.root / "loop").symlink_to("loop")
    for path, message in {
        "": "empty",
        "a\0b": "NUL",
        "loop": "circle",
        "x" * 300: "too long",
    }.items():
        with pytest.raises(ToolError, match=message):
            work.run(ReadTool(), path=path)
    for path in (".", "folder/", str(work.root)):
        with pytest.raises(ToolError, match="directory"):
            work.run(WriteTool(), path=path, content="")


def test_home_is_the_one_of_the_commands(work: Workspace) -> None:
    work.file("home/x", "in the home")
    assert "in the home" in work.text(ReadTool(), path="~/x")
    assert real_path("~/x", work.context) == str(work.root / "home/x")


def test_names_that_are_not_utf8_are_reachable_and_shown_well_formed(work: Workspace) -> None:
    raw = os.fsencode(work.root) + b"/caf\xe9"
    Path(os.fsdecode(raw)).write_text("x")
    text = shown(absolute("caf\udce9", work.context), work.context)
    assert text == "caf\ufffd"
    assert "x" in work.text(ReadTool(), path="caf\udce9")
    assert shown(raw + b"\n\x1b", work.context) == "caf\ufffd\\n\\x1b"


def test_the_harness_home_is_never_written_by_any_name(work: Workspace) -> None:
    home = work.root / ".dsh"
    work.file(".dsh/config.toml", "old")
    (work.root / "link").symlink_to(home)
    for roots in (work.context.roots, ("/",)):
        inner = replace(work, context=replace(work.context, roots=roots, protected=(str(home),)))
        names_of_it = ".dsh/config.toml", ".dsh/new/x", "link/config.toml", "a/../.dsh/x", f"{home}/x", ".dsh"
        for path in names_of_it:
            attempts: list[tuple[Tool, dict[str, str]]] = [
                (WriteTool(), {"content": "bad"}),
                (EditTool(), {"old": "old", "new": "bad"}),
                (EditTool(), {"old": "", "new": "bad"}),
            ]
            for tool, arguments in attempts:
                with pytest.raises(ToolDenied) as caught:
                    inner.run(tool, path=path, **arguments)
                assert caught.value.rule == "harness-home"
        inner.run(WriteTool(), path=".dsh2/config.toml", content="")
        assert (work.root / ".dsh2/config.toml").exists()
    assert (home / "config.toml").read_text() == "old"
    assert os.listdir(home) == ["config.toml"]
    assert "old" in inner.text(ReadTool(), path=".dsh/config.toml")


def test_secret_files_are_neither_read_nor_written_by_any_name(work: Workspace) -> None:
    secret = work.file("keys/credentials.toml", "sk-secret\n")
    work.file("keys/other", "sk-secret\n")
    (work.root / "link").symlink_to(secret)
    os.link(secret, work.root / "hard")
    places = (str(secret), str(work.root / "missing"))
    inner = replace(work, context=replace(work.context, secret_files=places))
    for path in ("keys/credentials.toml", "link", "hard", "keys/credentials.toml#byte=2"):
        calls: list[tuple[Tool, dict[str, str]]] = [(ReadTool(), {"path": path})]
        if "#" not in path:
            calls += [
                (GrepTool(), {"path": path, "pattern": "sk"}),
                (EditTool(), {"path": path, "old": "sk", "new": "x"}),
                (WriteTool(), {"path": path, "content": "x"}),
            ]
        for tool, arguments in calls:
            with pytest.raises(ToolDenied) as caught:
                inner.run(tool, **arguments)
            assert caught.value.rule == "harness-secrets"
    found = inner.text(GrepTool(), path="keys", pattern="sk")
    assert found == "keys/other:1:sk-secret\n[1 matches in 1 of 1 files; 1 files could not be read]"
    assert secret.read_text() == "sk-secret\n"
