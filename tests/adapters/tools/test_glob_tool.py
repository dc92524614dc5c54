"""The glob tool: what is found, in which order, and what is said about the rest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.adapters.tools.glob import MAX_RESULTS, GlobTool
from dsh_actors.errors import ToolError
from tests.adapters.tools.file_kit import Workspace, workspace_at


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    return workspace_at(tmp_path)


def found(work: Workspace, pattern: str, **more: str) -> list[str]:
    return [line for line in work.text(GlobTool(), pattern=pattern, **more).split("\n") if line[:1] != "["]


def footer(work: Workspace, pattern: str, **more: str) -> str:
    return work.text(GlobTool(), pattern=pattern, **more).split("\n")[-1]


def tree(work: Workspace, *names: str) -> None:
    for name in names:
        work.file(name, "x")


def test_files_are_found_in_the_order_of_paths(work: Workspace) -> None:
    tree(work, "b.py", "a/z.py", "a/b/c.py", "a.py", "a-b.py", "x.c", ".hidden/y.py")
    assert found(work, "**/*.py") == [".hidden/y.py", "a-b.py", "a.py", "a/b/c.py", "a/z.py", "b.py"]


def test_a_pattern_without_double_stars_also_lists_directories(work: Workspace) -> None:
    tree(work, "a/b/c", "f")
    assert found(work, "*") == ["a/", "f"]
    assert found(work, "**") == ["a/b/c", "f"]


def test_braces_classes_and_paths_work(work: Workspace) -> None:
    tree(work, "src/a.ts", "src/b.tsx", "lib/c.ts", "src/d.js", "src/deep/e.ts")
    assert found(work, "{src,lib}/*.{ts,tsx}") == ["lib/c.ts", "src/a.ts", "src/b.tsx"]
    assert found(work, "**/[ae].ts") == ["src/a.ts", "src/deep/e.ts"]
    assert found(work, "*.ts", path="src") == ["src/a.ts"]
    assert found(work, str(work.root / "src" / "*.js")) == ["src/d.js"]
    assert found(work, "../place/lib/*") == ["lib/c.ts"]


def test_ignored_entries_are_skipped_and_counted(work: Workspace) -> None:
    tree(work, ".git/config", "node_modules/a/b.js", "a.js", "a.log", "keep.log", "sub/x.tmp", "sub/y.js")
    work.file(".gitignore", "# comment\nnode_modules/\n*.log\n!keep.log\n\n")
    work.file("sub/.gitignore", "/x.tmp\n")
    assert found(work, "**/*") == [".gitignore", "a.js", "keep.log", "sub/.gitignore", "sub/y.js"]
    assert footer(work, "**/*") == "[3 entries skipped by ignore rules]"


def test_what_is_named_without_wildcards_is_found_although_ignored(work: Workspace) -> None:
    tree(work, "build/out/a.js", "build/b.js", ".git/config")
    work.file(".gitignore", "build/\n**/*.js\n")
    assert found(work, "build/b.js") == ["build/b.js"]
    assert found(work, "build") == ["build/"]
    assert found(work, "build/**/*.js") == ["build/b.js", "build/out/a.js"]
    assert found(work, ".git/*") == [".git/config"]


def test_the_rules_of_the_repository_around_the_start_hold(work: Workspace) -> None:
    tree(work, ".git/config", "src/a.o", "src/a.c")
    work.file(".gitignore", "*.o\n/src/b.c\n")
    tree(work, "src/b.c")
    assert found(work, "*", path="src") == ["src/a.c"]


def test_rules_above_a_tree_that_is_no_repository_do_not_hold(work: Workspace) -> None:
    work.file(".gitignore", "*.o\n")
    tree(work, "src/a.o")
    assert found(work, "*", path="src") == ["src/a.o"]


@pytest.mark.parametrize(
    ("rule", "ignored"),
    [
        ("x", ["d/x", "x"]),
        ("/x", ["x"]),
        ("d/x", ["d/x"]),
        ("x/", []),
        ("**/x", ["d/x", "x"]),
        ("d/**", ["d/x", "d/y"]),
        ("?", ["d/x", "d/y", "x"]),
        ("[xy]", ["d/x", "d/y", "x"]),
        ("x ", ["d/x", "x"]),
        ("\\x", ["d/x", "x"]),
        ("{x,y}", []),
        ("[z-", []),
    ],
)
def test_ignore_rules_mean_what_git_means(work: Workspace, rule: str, ignored: list[str]) -> None:
    tree(work, "x", "d/x", "d/y")
    work.file(".gitignore", rule + "\n")
    kept = found(work, "**")
    assert [name for name in ("d/x", "d/y", "x") if name not in kept] == ignored


def test_a_linked_worktree_inside_the_tree_is_left_out_and_a_submodule_is_not(work: Workspace) -> None:
    tree(work, "a", "trees/two/a", "sub/a")
    work.file("trees/two/.git", "gitdir: ../../.git/worktrees/two\n")
    work.file("sub/.git", "gitdir: ../.git/modules/sub\n")
    assert found(work, "**/a") == ["a", "sub/a"]
    assert found(work, "**/a", path="trees/two") == ["trees/two/a"]


def test_links_in_a_circle_are_not_followed(work: Workspace) -> None:
    tree(work, "d/a")
    (work.root / "d" / "up").symlink_to("..")
    (work.root / "self").symlink_to("self")
    (work.root / "dir").symlink_to("d")
    assert found(work, "**/a") == ["d/a"]
    assert found(work, "*") == ["d/", "dir/", "self"]
    assert found(work, "dir/*") == ["dir/a", "dir/up/"]


def test_results_are_capped_and_the_cap_is_announced(work: Workspace) -> None:
    tree(work, *(f"f{n:03}" for n in range(MAX_RESULTS + 1)))
    assert len(found(work, "*")) == MAX_RESULTS
    assert footer(work, "*").startswith(f"[the first {MAX_RESULTS} matches, there are more")
    (work.root / "f000").unlink()
    assert len(found(work, "*")) == MAX_RESULTS
    assert footer(work, "*")[0] != "["


def test_nothing_found_says_so(work: Workspace) -> None:
    assert work.text(GlobTool(), pattern="*.nope") == "[nothing below . matches]"
    with pytest.raises(ToolError, match="nope does not exist"):
        work.run(GlobTool(), pattern="*", path="nope")
    with pytest.raises(ToolError, match="blank"):
        work.run(GlobTool(), pattern=" ")


def test_odd_names_give_one_well_formed_line_each(work: Workspace) -> None:
    for raw in (b"a\nb", b"caf\xe9", "漢".encode()):
        (Path(os.fsdecode(os.fsencode(work.root) + b"/" + raw))).write_text("x")
    lines = work.text(GlobTool(), pattern="*").split("\n")
    assert lines == ["a\\nb", "caf\ufffd", "漢"]


def test_a_directory_that_vanishes_while_it_is_listed_is_noted(work: Workspace) -> None:
    from dsh_actors.adapters.tools.walk import Walk

    tree(work, "a/x", "b/y")
    walk = Walk(os.fsencode(work.root), work.context)
    names = []
    for entry in walk:
        names.append(entry.relative)
        if entry.relative == "a":
            shutil.rmtree(work.root / "b")
            shutil.rmtree(work.root / "a")
    assert names == ["a", "b"]
    assert walk.notes() == ["2 directories could not be read (a, b)"]


def test_a_cancelled_search_stops(work: Workspace) -> None:
    tree(work, "a")
    work.cancel.reason = "user"
    with pytest.raises(ToolError) as caught:
        work.run(GlobTool(), pattern="**")
    assert caught.value.code == "ABORTED"


NAMES = st.sampled_from(["a", "b", "a.c", "-", ".x", "a b"])


@settings(max_examples=30)
@given(st.sets(st.tuples(NAMES, NAMES) | st.tuples(NAMES), max_size=8))
def test_everything_is_found_once_and_sorted_by_path(tmp_path: Path, paths: set[tuple[str, ...]]) -> None:
    work = workspace_at(tmp_path)
    shutil.rmtree(work.root)
    work.root.mkdir()
    wanted = set()
    for path in sorted(paths, key=len, reverse=True):
        target = work.root.joinpath(*path)
        if not target.is_dir():
            tree(work, "/".join(path))
            wanted.add("/".join(path))
    assert [line for line in found(work, "**") if line] == sorted(wanted)
