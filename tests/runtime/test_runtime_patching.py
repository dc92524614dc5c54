"""Only the program's entry patches; everyone else is told how."""

from __future__ import annotations

import subprocess
import sys

from dsh_actors.runtime.patching import require_patched

IMPORT_ALL = """
import pkgutil, importlib, dsh_actors.runtime as runtime
for module in pkgutil.iter_modules(runtime.__path__):
    if not module.name.startswith("process"):
        importlib.import_module(f"dsh_actors.runtime.{module.name}")
import socket, time, threading
world = {"socket": socket.socket, "sleep": time.sleep, "event": threading.Event}
print([name for name, item in world.items() if "gevent" in item.__module__])
from dsh_actors.errors import HarnessError
from dsh_actors.runtime.patching import require_patched
try:
    require_patched()
except HarnessError as error:
    print(error.code, "|", error.message, "|", error.hint)
"""


def test_a_patched_process_is_accepted() -> None:
    require_patched()


def test_importing_the_runtime_patches_nothing_and_an_unpatched_process_is_refused() -> None:
    out = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, timeout=30)
    assert out.stderr == ""
    patched, refusal = out.stdout.splitlines()
    assert patched == "[]"
    assert refusal.startswith("NOT_PATCHED | This process is not patched for gevent (")
    assert "gevent.monkey.patch_all()" in refusal
    assert "`dsh`" in refusal
