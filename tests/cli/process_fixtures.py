"""The program and the scripted server as fixtures; a conftest imports them by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.dsh_process import Dsh
from tests.model_server import ModelServer


@pytest.fixture(scope="session")
def model_server_process() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture
def model_server(model_server_process: ModelServer) -> ModelServer:
    """The server, with an empty script and an empty log."""
    model_server_process.script()
    return model_server_process


@pytest.fixture
def dsh(tmp_path: Path, model_server: ModelServer) -> Iterator[Dsh]:
    """The program in a fresh home; everything it started is gone afterwards."""
    program = Dsh(tmp_path, model_server)
    yield program
    program.clean_up()
