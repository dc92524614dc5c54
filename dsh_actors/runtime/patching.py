"""Whether the process is fit for actors. The patching itself is done by the program's entry only."""

from __future__ import annotations

import gevent
from gevent.monkey import is_module_patched

from dsh_actors.errors import HarnessError

__all__ = ["NotPatched", "require_patched", "stop_birth_records"]

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
