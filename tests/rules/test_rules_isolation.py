"""Directory and environment are per agent: nothing in the process changes those that all agents share."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGERS = frozenset({"chdir", "fchdir", "chroot", "putenv", "unsetenv"})
ENVIRON_CHANGERS = frozenset({"update", "pop", "popitem", "clear", "setdefault"})
ALLOWED = {("dsh_actors/runtime/process_guard.py", "chdir"): "a process of its own, which serves no agent"}


def shared_state_changes(source: str) -> list[str]:
    """What a module does to the directory, the environment or the like of its process."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(attr=name, value=ast.Name(id="os")) if name in CHANGERS:
                found.append(name)
            case ast.ImportFrom(module="os", names=names):
                found += [each.name for each in names if each.name in CHANGERS | {"environ", "environb"}]
            case ast.Subscript(value=target, ctx=ast.Store() | ast.Del()) if is_environ(target):
                found.append("environ[…]")
            case ast.Call(func=ast.Attribute(attr=name, value=target)) if (
                is_environ(target) and name in ENVIRON_CHANGERS
            ):
                found.append(f"environ.{name}")
            case ast.Assign(targets=targets) if any(map(is_environ, targets)):
                found.append("environ =")
            case ast.AugAssign(target=target) if is_environ(target):
                found.append("environ |=")
            case ast.Attribute(attr="chdir", value=ast.Name(id="contextlib")):
                found.append("contextlib.chdir")
    return found


def is_environ(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ("environ", "environb")


def test_no_module_changes_the_directory_or_the_environment_of_the_process() -> None:
    found = {
        (str(path.relative_to(ROOT)), change)
        for path in sorted((ROOT / "dsh_actors").rglob("*.py"))
        for change in shared_state_changes(path.read_text("utf-8"))
    }
    assert found == ALLOWED.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.chdir('/')",
        "from os import chdir",
        "import contextlib\nwith contextlib.chdir('/'): pass",
        "import os\nos.environ['A'] = 'b'",
        "import os\ndel os.environ['A']",
        "import os\nos.environ.update(A='b')",
        "import os\nos.environ |= {}",
        "import os\nos.putenv('A', 'b')",
        "from os import environ",
    ],
)
def test_the_rule_finds_every_way_of_changing_them(source: str) -> None:
    assert len(shared_state_changes(source)) == 1


def test_the_rule_lets_them_be_read() -> None:
    assert shared_state_changes("import os\nprint(os.getcwd(), os.environ['A'], dict(os.environ))") == []
