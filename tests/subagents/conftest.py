"""A live harness whose model plays a script; after each test nothing may be left of any agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.subagents.kit import Troupe


@pytest.fixture
def troupe(tmp_path: Path) -> Iterator[Troupe]:
    troupe = Troupe(tmp_path)
    yield troupe
    troupe.close()
