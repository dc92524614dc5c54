"""``[subagents.NAME]``: what may stand there, and what each mistake is told."""

from __future__ import annotations

import pytest

from dsh_actors.config.subagents import OutsideAgent, outside_agents, outside_section
from dsh_actors.errors import ConfigError


def test_a_table_may_be_empty_or_say_everything() -> None:
    whole = {
        "command": ["ssh", "host", "dsh", "run", "--json"],
        "description": "one on another host",
        "env_keys": ["SSH_KEY"],
        "idle_timeout": "2m",
        "model": "openai/gpt",
        "sandbox": False,
    }
    agents = outside_agents({"own": {}, "far": whole}, "config.toml")
    assert agents["own"] == OutsideAgent("own")
    assert agents["far"] == OutsideAgent(
        "far",
        ("ssh", "host", "dsh", "run", "--json"),
        "one on another host",
        ("SSH_KEY",),
        120.0,
        "openai/gpt",
        False,
    )
    assert outside_section(agents).endswith("- far: one on another host\n- own: an agent")


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ([], "sub-agents are written as"),
        ({"x": []}, "subagents.x must be a table"),
        ({"a b": {}}, "a name is made of letters"),
        ({"x": {"comand": ["sh"]}}, "did you mean command"),
        ({"x": {"command": []}}, "command is empty"),
        ({"x": {"command": "sh -c"}}, "command must be a list of texts"),
        ({"x": {"command": ["sh"], "env_keys": ["A=B"]}}, "which 'A=B' cannot be"),
        ({"x": {"env_keys": ["A"]}}, "dsh gets the key of its own provider"),
        ({"x": {"sandbox": "off"}}, "sandbox must be true or false"),
        ({"x": {"idle_timeout": "soon"}}, "idle_timeout"),
    ],
)
def test_each_mistake_is_named_with_its_place(tables: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        outside_agents(tables, "config.toml")
    assert refused.value.message.startswith("config.toml: ")
