"""The grep tool: matches with their places, bounded work, and no expression that never ends."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.adapters.tools.grep import SHOWN_CHARS, GrepTool
from dsh_actors.adapters.tools.regex_guard import compile_safely
from dsh_actors.errors import ToolError
from tests.adapters.tools.file_kit import Workspace, workspace_at
from tests.cpu_kit import cpu_seconds


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    return workspace_at(tmp_path)


def grep(work: Workspace, pattern: str, **more: object) -> list[str]:
    return work.text(GrepTool(), pattern=pattern, **more).split("\n")


def test_matches_carry_path_and_line_in_the_order_of_paths(work: Workspace) -> None:
    work.file("b.py", "x\nfoo(1)\n")
    work.file("a/c.py", "foo\nbar foo\r\n")
    assert grep(work, "foo") == [
        "a/c.py:1:foo",
        "a/c.py:2:bar foo",
        "b.py:2:foo(1)",
        "[3 matches in 2 of 2 files]",
    ]
    assert grep(work, "^foo$") == ["a/c.py:1:foo", "[1 matches in 1 of 2 files]"]
    assert grep(work, "nothing") == ["[no match in 2 files]"]


def test_options_narrow_and_widen(work: Workspace) -> None:
    work.file("src/a.py", "Foo\n")
    work.file("src/a.ts", "foo\n")
    work.file("b.py", "foo\n")
    assert grep(work, "foo", glob="*.py", ignore_case=True)[:-1] == ["b.py:1:foo", "src/a.py:1:Foo"]
    assert grep(work, "foo", glob="src/**")[:-1] == ["src/a.ts:1:foo"]
    assert grep(work, "foo", path="src")[:-1] == ["src/a.ts:1:foo"]
    assert grep(work, "foo", path="b.py")[:-1] == ["b.py:1:foo"]


def test_lines_around_are_marked_and_groups_are_separated(work: Workspace) -> None:
    work.file("a", "1\n2 x\n3\n4\n5\n6\n7 x\n8 x\n9\n")
    assert grep(work, "x", context=1)[:-1] == [
        "a-1-1",
        "a:2:2 x",
        "a-3-3",
        "--",
        "a-6-6",
        "a:7:7 x",
        "a:8:8 x",
        "a-9-9",
    ]


def test_the_limit_stops_and_says_so(work: Workspace) -> None:
    work.file("a", "x\n" * 10)
    lines = grep(work, "x", limit=3)
    assert lines[-1] == "[3 matches in 1 of 1 files; stopped at 3 matches, there are more]"
    assert len(lines) == 4
    assert grep(work, "x", limit=10)[-1] == "[10 matches in 1 of 1 files]"


def test_a_full_output_stops_and_says_so(work: Workspace) -> None:
    work = workspace_at(work.root.parent, output_limit_bytes=2000)
    work.file("a", f"{'x' * 100}\n" * 100)
    text = work.text(GrepTool(), pattern="x")
    assert len(text.encode()) <= 2000
    assert "stopped because the output is full" in text


def test_a_long_line_is_shown_around_its_match(work: Workspace) -> None:
    work.file("a", "x" * 5000 + "needle" + "y" * 5000)
    line = grep(work, "needle")[0]
    assert "needle" in line
    assert len(line) < SHOWN_CHARS + 20


def test_binary_special_and_ignored_files_are_skipped_and_counted(work: Workspace) -> None:
    work.file("a", "foo\n")
    work.file("bin", b"foo\0\n")
    work.file("out.log", "foo\n")
    work.file(".gitignore", "*.log\n")
    os.mkfifo(work.root / "pipe")
    (work.root / "link").symlink_to("a")
    begin = time.monotonic()
    assert grep(work, "foo") == [
        "a:1:foo",
        "[1 matches in 1 of 2 files; 1 binary files skipped; 1 entries skipped by ignore rules]",
    ]
    assert grep(work, "foo", path="out.log")[0] == "out.log:1:foo"
    with pytest.raises(ToolError, match="FIFO"):
        grep(work, "foo", path="pipe")
    with pytest.raises(ToolError, match="does not exist"):
        grep(work, "foo", path="missing")
    assert time.monotonic() - begin < 10  # what waits for the other end of a pipe waits for ever


def test_text_that_is_not_utf8_is_searched_and_shown_well_formed(work: Workspace) -> None:
    work.file("a", b"caf\xe9 foo\x1b\n")
    assert grep(work, "caf. foo")[0] == "a:1:caf\ufffd foo\\x1b"


@pytest.mark.parametrize("pattern", ["[", "(?P<x", "*a", "a{3,1}", "(" * 500, "", "a\nb", "x\\ny"])
def test_a_wrong_pattern_is_a_clear_error(work: Workspace, pattern: str) -> None:
    with pytest.raises(ToolError):
        grep(work, pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a*)*b",
        "(a|a)*b",
        "(a|aa)+$",
        "(a?)*$",
        "(x+x+)+y",
        r"(\w+\s?)*$",
        r"(\w*\s+)*x",
        r"(\w*\w*,)*x",
        r"^(([a-z])+.)+[A-Z]([a-z])+$",
        "(a{1,5}){20}b",
        "(?:(?=a)a+)+b",
        ".*.*.*.*x",
        "((a+)b?)*c",
    ],
)
def test_an_expression_that_may_never_end_does_not_start(work: Workspace, pattern: str) -> None:
    work.file("a", "a" * 60 + "!\n")
    with pytest.raises(ToolError, match="for ever"):
        grep(work, pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"def \w+\(.*\):",
        r"(?:[^/]+/)*x",
        r"(\w+::)+x",
        r"import (\w+\.)*\w+",
        r"(foo|bar)+",
        r"(\d{1,3}\.){3}\d{1,3}",
        r"\s*(\w+)\s*=\s*(\w+)",
        r"\bfoo\b.*bar.*baz",
        r"(\w+\s*=\s*\w+;)*",
        r"^(?!.*test).*def",
        r"(['\"]).*?\1",
    ],
)
def test_ordinary_expressions_are_accepted(pattern: str) -> None:
    compile_safely(pattern, ignore_case=False)


PIECES = st.lists(
    st.sampled_from(["a", "b", ".", "\\w", "[ab]", "(", ")", "*", "+", "?", "|", "{2}", "a{1,9}", ","]),
    min_size=1,
    max_size=7,
)


@settings(max_examples=200)
@given(PIECES)
def test_whatever_is_accepted_ends_soon(pieces: list[str]) -> None:
    try:
        safe = compile_safely("".join(pieces), ignore_case=False)
    except ToolError:
        return

    def search() -> None:
        for text in ("a" * 40 + "!", "ab" * 20 + "!", "a," * 20 + "!"):
            safe.regex.search(text)
            assert safe.needle in text or safe.regex.search(text) is None

    assert cpu_seconds(search, repeats=1) < 0.5


def test_very_long_lines_are_searched_in_part_and_that_is_said(work: Workspace) -> None:
    work.file("a", "y" * 30_000 + " foo\nfoo\n")
    assert grep(work, r"\w*foo") == [
        "a:2:foo",
        "[1 matches in 1 of 1 files; 1 long lines searched in their first 10000 characters only]",
    ]


def test_a_large_file_is_streamed(work: Workspace) -> None:
    with open(work.root / "big", "wb") as big:
        big.write(b"x" * 79 + b"\n")
        big.write((b"x" * 79 + b"\n") * 60_000)
        big.write(b"y" * (3 << 20) + b"\nneedle\n")
    assert grep(work, "needle")[0] == "big:60003:needle"


def test_a_search_that_takes_too_long_stops_with_what_it_has(work: Workspace) -> None:
    from dataclasses import replace

    work.context = replace(work.context, timeout_s=0.0)
    work.file("a", "x\n" * 2000)
    work.file("b", "x\n")
    assert "stopped because it took too long" in grep(work, "x", limit=1000)[-1]


def test_a_cancelled_search_stops(work: Workspace) -> None:
    work.file("a", "x\n" * 1000)
    work.cancel.reason = "user"
    for path in (".", "a"):
        with pytest.raises(ToolError) as caught:
            grep(work, "x", path=path, limit=5000)
        assert caught.value.code == "ABORTED"


@settings(max_examples=40)
@given(
    st.lists(st.text(alphabet="ab \tλ", max_size=6), max_size=12), st.sampled_from(["a", "a+b", "^b", "λ$"])
)
def test_the_same_lines_match_as_with_the_plain_matcher(
    tmp_path: Path, lines: list[str], pattern: str
) -> None:
    work = workspace_at(tmp_path)
    work.file("a", "".join(line + "\n" for line in lines))
    wanted = [f"a:{number}:{line}" for number, line in enumerate(lines, 1) if re.search(pattern, line)]
    assert grep(work, pattern)[:-1] == wanted
