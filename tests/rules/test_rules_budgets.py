"""Sizes are budgets: functions, modules and package files of the product."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dsh_actors"

MAX_FUNCTION_LINES = 50
MAX_MODULE_LINES = 400
MAX_INIT_LINES = 40

EXCEPTIONS: dict[str, str] = {}
"""``path`` or ``path:function`` and the reason why it may be longer."""


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def line_count(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def test_every_function_fits_on_a_screen() -> None:
    too_long = []
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                name = f"{path.relative_to(ROOT)}:{node.name}"
                if lines > MAX_FUNCTION_LINES and name not in EXCEPTIONS:
                    too_long.append(f"{name} has {lines} lines")
    assert too_long == []


def test_every_module_stays_small() -> None:
    too_long = [
        f"{path.relative_to(ROOT)} has {line_count(path)} lines"
        for path in sources()
        if line_count(path) > (MAX_INIT_LINES if path.name == "__init__.py" else MAX_MODULE_LINES)
        and str(path.relative_to(ROOT)) not in EXCEPTIONS
    ]
    assert too_long == []


def test_every_exception_is_still_needed_and_has_a_reason() -> None:
    for name, reason in EXCEPTIONS.items():
        assert (ROOT / name.partition(":")[0]).is_file(), name
        assert len(reason) > 20, name


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert silent == []


def test_a_broad_except_says_what_can_reach_it() -> None:
    bare = []
    for path in sources():
        text = path.read_text("utf-8")
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or getattr(node.type, "id", "") in ("Exception", "BaseException")
            last = node.body[-1]
            # Cleaning up and passing the error on needs no reason.
            passed_on = isinstance(last, ast.Raise) and last.exc is None
            near = lines[node.lineno - 1 : node.body[0].end_lineno]
            if broad and not passed_on and not any("#" in line for line in near):
                bare.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert bare == []
