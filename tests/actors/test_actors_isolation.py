"""Two agents in different directories work side by side, and each sees its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

from dsh_actors.config import load_config
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.policy import ApprovalPolicy
from dsh_actors.harness import Harness
from dsh_actors.testing.scripted import ScriptedProvider

MEET = 'echo up > {mine}; read _ < {theirs}; echo "$PWD $(pwd -P) "; cat here.txt; echo more >> here.txt'


def script(mine: str, theirs: str) -> list[dict]:
    """A command that goes on only while the other agent's runs too, then the file tools."""
    bash = {"tool": "bash", "arguments": {"command": MEET.format(mine=mine, theirs=theirs)}}
    calls = [
        {"tool": "read", "arguments": {"path": "here.txt"}},
        {"tool": "glob", "arguments": {"pattern": "*.txt"}},
        {"tool": "grep", "arguments": {"pattern": "agent"}},
        {"tool": "write", "arguments": {"path": "new.txt", "content": "from a tool"}},
    ]
    return [{"calls": [bash]}, {"calls": calls}, {"text": "done"}]


def test_agents_in_two_directories_at_once_each_see_their_own(tmp_path: Path) -> None:
    os.mkfifo(pipes_a := tmp_path / "a.pipe")
    os.mkfifo(pipes_b := tmp_path / "b.pipe")
    before = os.getcwd(), dict(os.environ)
    folders = {}
    for name in ("one", "two"):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        (folders[name] / "here.txt").write_text(f"the file of agent {name}\n")
    models = {
        "one": ScriptedProvider(script(f"{pipes_a}", f"{pipes_b}"), name="one"),
        "two": ScriptedProvider(script(f"{pipes_b}", f"{pipes_a}"), name="two"),
    }
    # Opened for both ways, so that neither opening waits for the other.
    held = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in (pipes_a, pipes_b)]
    config = load_config(env={"DSH_HOME": str(tmp_path / "home")}, cwd=str(tmp_path))
    with Harness.open(config, providers=models) as harness:
        agents = {
            name: harness.create(
                AgentOptions(f"{name}/m", str(folders[name]), policy=ApprovalPolicy("all"), sandbox="off")
            )
            for name in folders
        }
        for agent in agents.values():
            agent.followup("go on")
        for name, agent in agents.items():
            assert agent.when_idle(30)
            other = "two" if name == "one" else "one"
            seen = json.dumps([event.data for event in harness.read_from(agent.id)])
            ends = [e for e in harness.read_from(agent.id) if e.type == "turn/end"]
            assert ends[-1].data["reason"] == {"kind": "completed"}
            assert f"{folders[name]} {folders[name]} " in seen
            assert f"the file of agent {name}" in seen and f"the file of agent {other}" not in seen
            assert (folders[name] / "here.txt").read_text().endswith("more\n")
            assert (folders[name] / "new.txt").read_text() == "from a tool"
    for descriptor in held:
        os.close(descriptor)
    assert (os.getcwd(), dict(os.environ)) == before
