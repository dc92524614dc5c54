"""Whether the process is fit for actors. The patching itself is done by the program's entry only."""

from __future__ import annotations

import _imp
import _thread
import importlib._bootstrap as bootstrap
from types import SimpleNamespace
from typing import Any

import gevent
from gevent.monkey import get_original, is_module_patched

from dsh_actors.errors import HarnessError

__all__ = ["NotPatched", "require_patched", "stop_birth_records", "use_native_import_locks"]

_NEEDED = ("os", "queue", "select", "signal", "socket", "ssl", "subprocess", "threading", "time")


class NotPatched(HarnessError):
    """Blocking calls would stop every agent of the process instead of one."""

    code = "NOT_PATCHED"


def require_patched() -> None:
    """Raise `NotPatched` unless gevent has patched the standard library in this process."""
    missing = [name for name in _NEEDED if not is_module_patched(name)]
    if missing:
        raise NotPatched(
            f"This process is not patched for gevent ({', '.join(missing)}).",
            hint="Run it through `dsh` or `python -m dsh_actors`, or call gevent.monkey.patch_all() "
            "before any other import.",
        )


def stop_birth_records() -> None:
    """Let gevent no longer record which greenlet started which, and where: it doubles the cost of a start."""
    gevent.config.track_greenlet_tree = False


def use_native_import_locks() -> None:
    """Let threads that import the same module at once wait for each other as native threads do.

    Patched, the locks of the import system are gevent's, and of several native threads that wait for
    one, some are never woken: their work never ends. The price: a greenlet that imports a module whose
    import waits in another greenlet gets it half made, as it would in a circular import.
    """
    imports: Any = bootstrap
    if isinstance(imports._thread, SimpleNamespace):
        return
    names = ("allocate_lock", "get_ident", "RLock")
    native = SimpleNamespace(**vars(_thread) | {name: get_original("_thread", name) for name in names})
    _imp.acquire_lock()
    try:
        held = [lock for ref in imports._module_locks.values() if (lock := ref()) is not None]
        for lock in held:
            lock.lock, lock.wakeup = native.RLock(), native.allocate_lock()
            if lock.owner is not None:
                lock.owner = native.get_ident()  # a greenlet of this thread
        imports._thread = native
    finally:
        _imp.release_lock()
