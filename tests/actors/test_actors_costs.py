"""What live agents cost, and how full their context is, as a program sees it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dsh_actors.config import Config, load_config
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.options import AgentOptions, Limits
from dsh_actors.core.scope import Scope
from dsh_actors.core.stats import StatsFold
from dsh_actors.errors import UsageError
from dsh_actors.harness import Harness

PRICED = """
[[providers.scripted.models]]
id = "demo"
price = { input = 2, output = 4, currency = "EUR" }

[[providers.scripted.models]]
id = "SCRIPT"
price = { input = 2, output = 4 }
"""


SCRIPT = [
    {"calls": [{"tool": "glob", "arguments": {"pattern": "*"}}], "usage": {"input": 1000}},
    {"text": "done"},
]


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A script whose model is paid in dollars."""
    path = tmp_path / "script.json"
    path.write_text(json.dumps(SCRIPT))
    return str(path)


@pytest.fixture
def config(tmp_path: Path, script: str) -> Config:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(PRICED.replace("SCRIPT", script))
    (tmp_path / "work").mkdir()
    env = {"DSH_HOME": str(home), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    return load_config(env=env, cwd=str(tmp_path / "work"))


def test_each_run_of_an_agent_has_a_cost_of_its_own_and_the_session_has_their_sum(config: Config) -> None:
    with Harness.open(config) as harness:
        agent = harness.create(AgentOptions(model="scripted/demo", cwd=config.cwd))
        assert agent.status().context is None
        # The second run logs no header: that of the first still holds.
        first, second = agent.run("What is here?"), agent.run("And what else?")
        status = agent.status()
        fold = StatsFold(config.price)
        agent.dispose()
        for event in harness.read_from(agent.id):
            fold.observe(event)
    assert first.cost and second.cost and first.usage["own"] != second.usage["own"]
    assert fold.stats.cost == pytest.approx(first.cost + second.cost)
    assert fold.stats.bill.currency == "EUR"
    used = second.usage["own"]
    assert status.context_window == 1_000_000
    assert status.context is not None and 0 < status.context <= used["input"] + used["output"] + 500


def test_a_limit_stops_a_run_whose_model_is_paid_in_another_currency(config: Config, script: str) -> None:
    def setup(scope: Scope) -> None:
        scope.intercept("agent/request", lambda payload, following: CallConfig("scripted", script))

    limits = Limits(max_cost=1_000.0)
    with Harness.open(config) as harness:
        agent = harness.create(AgentOptions(model="scripted/demo", cwd=config.cwd, limits=limits), setup)
        end = agent.run("What is here?")
    assert (end.reason, end.steps, end.cost) == ("max_cost", 1, pytest.approx(0.002))
    assert "cannot be kept" in end.message
    with Harness.open(config) as harness:
        dollars = AgentOptions(model=f"scripted/{script}", cwd=config.cwd, limits=limits)
        assert harness.create(dollars).run("What is here?").completed


def test_a_limit_on_the_cost_needs_a_price(config: Config) -> None:
    (Path(config.cwd) / "free.json").write_text(json.dumps(SCRIPT))
    options = AgentOptions(
        model=f"scripted/{config.cwd}/free.json", cwd=config.cwd, limits=Limits(max_cost=1.0)
    )
    with Harness.open(config) as harness, pytest.raises(UsageError, match="needs a price"):
        harness.create(options)
