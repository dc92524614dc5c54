"""The layers of the package, as contracts that a machine checks (setup.cfg)."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dsh_actors"


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60
    )


def imported_roots(path: Path) -> set[str]:
    """The top-level packages that a file imports anywhere in it."""
    roots: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            roots.add(node.module.partition(".")[0])
    return roots


def test_the_import_contracts_hold() -> None:
    done = run_python("from importlinter.cli import lint_imports_command as run; run()", "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_the_runtime_and_the_entry_import_the_actor_library() -> None:
    allowed = {PACKAGE / "__main__.py", *(PACKAGE / "runtime").glob("*.py")}
    offenders = {
        str(path.relative_to(ROOT))
        for path in PACKAGE.rglob("*.py")
        if path not in allowed and imported_roots(path) & {"gevent", "pykka", "greenlet"}
    }
    assert offenders == set()


def test_nothing_is_asynchronous() -> None:
    offenders = {str(p.relative_to(ROOT)) for p in PACKAGE.rglob("*.py") if "asyncio" in imported_roots(p)}
    assert offenders == set()


def loaded_by_importing(names: list[str]) -> set[str]:
    code = (
        "import importlib, json, sys\n"
        "for name in json.loads(sys.argv[1]): importlib.import_module(name)\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = run_python(code, json.dumps(names))
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def test_importing_the_core_loads_nothing_of_the_outside_world() -> None:
    names = [f"dsh_actors.core.{path.stem}" for path in (PACKAGE / "core").glob("[!_]*.py")]
    loaded = loaded_by_importing(["dsh_actors", "dsh_actors.errors", "dsh_actors.ports", *names])
    outside = {"pykka", "gevent", "greenlet", "socket", "subprocess", "logging", "requests", "click"}
    assert loaded & outside == set()


def test_importing_the_package_patches_nothing() -> None:
    done = run_python("import dsh_actors, sys; print('gevent' in sys.modules, 'threading' in sys.modules)")
    assert done.stdout.split() == ["False", "False"]
