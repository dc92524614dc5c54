"""Native threads that need the same module at once all get it, and wait for it as native threads do."""

from __future__ import annotations

import subprocess
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import gevent
import pytest
from gevent._hub_local import get_hub_if_exists
from gevent.monkey import get_original

from dsh_actors.runtime.files import NativePool

WAIT_S = 10.0
native_sleep = get_original("time", "sleep")


class SlowModules(MetaPathFinder, Loader):
    """Modules whose import goes on until ``importers`` threads want them."""

    def __init__(self, importers: int) -> None:
        self.importers = importers
        self.wanted: list[str] = []

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith("slow_module_") else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        for _ in range(5_000):
            if len(self.wanted) == self.importers:
                break
            native_sleep(0.001)
        native_sleep(0.01)  # the last of them is on its way from its mark to the lock
        module.answer = 42  # type: ignore[attr-defined]

    def import_here(self, name: str) -> tuple[int, bool]:
        """Import in the calling thread; whether its waiting made it a hub, which nothing would wake."""
        self.wanted.append(name)
        return __import__(name).answer, get_hub_if_exists() is not None


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> SlowModules:
    found = SlowModules(importers=4)
    monkeypatch.setattr(sys, "meta_path", [found, *sys.meta_path])
    return found


def test_threads_that_import_the_same_module_at_once_all_get_it(modules: SlowModules) -> None:
    pool = NativePool(4)
    waiting = [gevent.spawn(pool.run, modules.import_here, "slow_module_a") for _ in range(4)]
    with gevent.Timeout(WAIT_S):
        assert [each.get() for each in waiting] == [(42, False)] * 4
    pool.close()


def test_the_hub_and_threads_that_import_the_same_module_all_get_it(modules: SlowModules) -> None:
    pool = NativePool(3)
    waiting = [gevent.spawn(pool.run, modules.import_here, "slow_module_b") for _ in range(3)]
    gevent.sleep(0)
    with gevent.Timeout(WAIT_S):
        assert modules.import_here("slow_module_b")[0] == 42
        assert [each.get() for each in waiting] == [(42, False)] * 3
    pool.close()


PROGRAM = """
from gevent import monkey
monkey.patch_all()
from dsh_actors.runtime.files import run_native
print(run_native(int, "42"))
"""


def test_the_locks_can_change_in_the_middle_of_an_import(tmp_path) -> None:
    # A program that works while it is imported: its own lock is held, and given back afterwards.
    (tmp_path / "working_module.py").write_text(PROGRAM)
    code = "import working_module, threading; print(threading.active_count())"
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"},
    )
    assert (out.stdout.split(), out.stderr) == (["42", "1"], "")
