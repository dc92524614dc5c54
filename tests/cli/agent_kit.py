"""`dsh serve` in a place of its own, and `dsh agent` called in the process of the test, which is quick."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dsh_actors.cli.main import main
from tests.cli.dsh_process import Dsh, Result, Running
from tests.model_server import ModelServer

__all__ = ["ASKING", "Agents", "Served", "agents", "served", "serving"]

ASKING = """default = "allow"
[[rule]]
tool = "bash"
decision = "ask"
reason = "a person decides"
"""


class Served:
    """A daemon: its program, where it listens, and a rule file under which commands ask."""

    def __init__(self, dsh: Dsh, running: Running) -> None:
        self.dsh = dsh
        self.running = running
        self.socket = str(dsh.home / "daemon" / "socket")
        found = re.search(r"http://[\w.:]+", running.stderr)
        assert found is not None, running.stderr
        self.url = found[0]
        self.token = (dsh.home / "daemon" / "token").read_text().strip()
        self.rules = dsh.cwd / "rules.toml"
        self.rules.write_text(ASKING)


@contextmanager
def serving(root: Path, server: ModelServer, *options: str) -> Iterator[Served]:
    """A daemon while the block runs."""
    dsh = Dsh(root, server)
    running = dsh.start("serve", "--listen", "127.0.0.1:0", *options)
    try:
        running.wait_for(lambda run: "serving at" in run.stderr)
        yield Served(dsh, running)
    finally:
        dsh.clean_up()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, model_server_process: ModelServer) -> Iterator[Served]:
    """One daemon for all tests of a module."""
    with serving(tmp_path_factory.mktemp("daemon"), model_server_process) as daemon:
        yield daemon


class Agents:
    """`dsh agent` for one test."""

    def __init__(self, served: Served, capfd: pytest.CaptureFixture[str]) -> None:
        self.served = served
        self._capfd = capfd

    def __call__(self, *arguments: str) -> Result:
        self._capfd.readouterr()
        code = main(["agent", *arguments])
        out, err = self._capfd.readouterr()
        return Result(code, out, err, 0.0)

    def ok(self, *arguments: str) -> str:
        """A call that must succeed and say nothing else; what it printed."""
        done = self(*arguments)
        assert (done.code, done.err) == (0, ""), done
        return done.out

    def json(self, *arguments: str) -> list[Any]:
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]

    def create(self, *arguments: str) -> str:
        """A new agent with the test's model; its id."""
        return self.ok("create", "-m", Dsh.model, *arguments).removesuffix("\n")

    def question(self, agent_id: str) -> str:
        """The question that the agent asks, when it comes."""
        from dsh_actors.daemon.client import DaemonClient

        with DaemonClient(self.served.socket) as client:
            stream = client.events(agent_id)
            asked = next(event for event in stream if event.name == "approval.requested")
            stream.close()  # type: ignore[attr-defined]  # it is a generator
        return str(asked.data["id"])

    def asking(self, *arguments: str) -> tuple[str, str]:
        """An agent that waits for a decision, and its question."""
        agent_id = self.create("--approve", str(self.served.rules), *arguments, "do it")
        return agent_id, self.question(agent_id)


@pytest.fixture
def agents(
    served: Served,
    model_server: ModelServer,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Agents:
    """`dsh agent` in the daemon's directory; the model server is fresh."""
    monkeypatch.chdir(served.dsh.cwd)
    monkeypatch.setenv("DSH_SOCKET", served.socket)
    return Agents(served, capfd)


