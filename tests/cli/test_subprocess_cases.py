"""Sub-agents that are processes of their own, with the real program on both sides."""

from __future__ import annotations

import signal

from pytest import approx

from tests.cli.dsh_process import SECRET, Dsh, assert_refused, stream_faults
from tests.model_server import C, T

TABLE = """
[subagents.outside]

[subagents.foreign]
command = ["sh", "-c", "env >&2; exit 7"]

[[providers.openai.models]]
id = "test"
price = { input = 1, output = 1 }
"""


def configured(dsh: Dsh) -> Dsh:
    dsh.home.mkdir(mode=0o700, exist_ok=True)
    (dsh.home / "config.toml").write_text(TABLE)
    return dsh


def test_dsh_as_a_sub_agent_has_its_key_its_session_and_its_part_of_the_bill(dsh: Dsh) -> None:
    dsh.server.script(
        C("agent", {"prompt": "count them", "preset": "outside"}),
        C("bash", {"command": "env"}),
        T("seven"),
        C("agent", {"prompt": "x", "preset": "foreign"}),
        T("sum"),
    )
    result = configured(dsh).run("--json", "--approve", "all", "x")
    assert (result.code, result.end["answer"]) == (0, "sum"), result.err
    assert stream_faults(result.events) == []
    requests = dsh.requests()
    assert [request.headers["authorization"] for request in requests] == [f"Bearer {SECRET}"] * 5
    assert requests[1].messages[1]["content"].startswith("count them")
    seven, failed = requests[4].results.values()
    assert seven == "seven" and "foreign ended without an outcome: exit code 7" in failed
    # Neither commands of the child nor a foreign command see the key.
    assert SECRET not in str([request.body for request in requests]) and "PATH=" in requests[2].text
    assert len(dsh.session_ids()) == 2
    own, children = result.end["usage"]["own"], result.end["usage"]["children"]
    assert children["output"] > 0 and own["output"] > 0
    billed = ("input", "cache_read", "cache_write", "output")
    assert result.end["cost"] == approx(sum(own[kind] + children[kind] for kind in billed) / 1e6)
    assert SECRET not in dsh.stored_text() + result.out + result.err
    assert dsh.survivors() == []


def test_a_killed_or_stopped_program_takes_its_processes_along(dsh: Dsh) -> None:
    configured(dsh)
    for number, end in ((signal.SIGKILL, None), (signal.SIGTERM, 143)):
        dsh.server.script(C("agent", {"prompt": "y", "preset": "outside"}), T(["a", "b"], hold="never"))
        running = dsh.begin("--json", "x")
        dsh.server.wait_for_requests(2)
        running.send_signal(number)
        result = running.wait()
        assert end is None or result.code == end
        assert dsh.survivors() == []


def test_a_project_cannot_bring_commands_and_wrong_tables_are_refused(dsh: Dsh) -> None:
    (dsh.cwd / ".dsh").mkdir()
    (dsh.cwd / ".dsh" / "config.toml").write_text('[subagents.x]\ncommand = ["sh"]\n')
    refused = dsh.run("x")
    assert refused.code == 2 and "a project cannot set commands of sub-agents" in refused.err
    (dsh.cwd / ".dsh" / "config.toml").unlink()
    assert_refused(dsh.run("--sub-agent-of", "nobody", "x"), dsh)
    configured(dsh)
    shown = dsh.call("config", "show").out
    assert "subagents.outside.command" in shown and "= dsh run" in shown
