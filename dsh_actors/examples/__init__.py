"""Programs for `dsh script`, to run and to copy from."""

from __future__ import annotations

import os

__all__ = ["example_files"]


def example_files() -> list[str]:
    """The paths of the examples, by name."""
    folder = os.path.dirname(os.path.abspath(__file__))
    names = sorted(name for name in os.listdir(folder) if name.endswith(".py") and name[0] != "_")
    return [os.path.join(folder, name) for name in names]
