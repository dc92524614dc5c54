"""The loggers of the runtime. They keep quiet unless a handler is attached; see `debug.show_errors`."""

from __future__ import annotations

import logging

__all__ = ["LOGGER", "PYKKA_LOGGER"]

LOGGER = logging.getLogger("dsh_actors.runtime")
"""Failures that have no other listener: a failing callback, timer, observer or abandoned native call."""

PYKKA_LOGGER = logging.getLogger("pykka")

# With a handler of its own a logger never falls back to printing on stderr. A failing actor reports
# to its parent; the traceback is for whoever attaches a real handler.
for _logger in (LOGGER, PYKKA_LOGGER):
    _logger.addHandler(logging.NullHandler())
