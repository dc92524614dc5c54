"""Words and habits that must not appear in what is kept."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SELF = Path(__file__).resolve()

KEPT = [
    path
    for folder in ("dsh_actors", "tests", "bin", ".ci")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path != SELF and "__pycache__" not in path.parts and path.suffix != ".zst"
] + [ROOT / name for name in ("pyproject.toml", "setup.cfg", "README.md", ".gitignore")]

FORBIDDEN = {
    "unfinished work": re.compile(r"\b(TODO|FIXME|XXX|HACK)\b"),
    "a path of one machine": re.compile(r"(?<![\w.$}])/(work/|root/|Users/|home/(?!user\b|me\b)\w)"),
    "the address of a package registry": re.compile(
        r"\b(pypi\.org|pythonhosted\.org|registry\.npmjs\.org|proxy\.golang\.org|crates\.io)\b"
    ),
}


def readable(path: Path) -> str:
    return path.read_text("utf-8", "replace")


@pytest.mark.parametrize("what", FORBIDDEN)
def test_kept_files_hold_no(what: str) -> None:
    assert len(KEPT) > 300
    pattern = FORBIDDEN[what]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in KEPT
        for number, line in enumerate(readable(path).splitlines(), 1)
        # `todo` is also the name of a tool; only the capitals mean unfinished work.
        if pattern.search(line)
    ]
    assert found == []


def calls(tree: ast.AST, name: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", None) == name or getattr(node.func, "attr", None) == name)
    ]


def is_yield_to_others(call: ast.Call) -> bool:
    """``sleep(0)`` gives the others a turn and waits for nothing."""
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


def test_no_test_waits_by_sleeping() -> None:
    sleeps = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != SELF
        for call in calls(ast.parse(readable(path)), "sleep")
        if not is_yield_to_others(call)
    ]
    assert sleeps == []


def test_no_test_is_skipped_or_expected_to_fail() -> None:
    marks = re.compile(r"mark\.(skip|skipif|xfail)\b|pytest\.(skip|xfail|importorskip)\(")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != SELF
        for number, line in enumerate(readable(path).splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


def test_test_files_have_unique_names() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []
