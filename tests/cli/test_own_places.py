"""What a run may do to the harness's own files, with the whole program: its home, its keys, its log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsh_actors.adapters.tools.sandbox import probe_sandbox
from tests.cli.dsh_process import SECRET, Dsh
from tests.model_server import C, T

_POLICY = '[approval]\npolicy = "all"\n'


@pytest.fixture
def place(dsh: Dsh) -> Dsh:
    """The program with its home inside the workspace, as in ``cd ~; dsh run``."""
    dsh.home = dsh.cwd / ".dsh"
    dsh.home.mkdir()
    (dsh.home / "credentials.toml").write_text('[openai]\napi_key = "sk-stored-key-0123456789"\n')
    (dsh.home / "credentials.toml").chmod(0o600)
    dsh.env["DSH_HOME"] = str(dsh.home)
    return dsh


@pytest.mark.parametrize("policy", ["workspace", "all"])
def test_no_tool_changes_the_policy_of_the_next_run(place: Dsh, policy: str) -> None:
    write = f"printf '%s' '{_POLICY}' > {place.home}/config.toml"
    calls = [
        C("write", {"path": ".dsh/config.toml", "content": _POLICY}),
        C("edit", {"path": f"{place.home}/config.toml", "old": "", "new": _POLICY}),
    ]
    if probe_sandbox() is not None:
        calls += [
            C("bash", {"command": write}),
            C("bash", {"command": f"mv {place.home} away; mkdir {place.home}; {write}"}),
            C("bash", {"command": f"rm -rf {place.home}/sessions"}),
        ]
    place.server.script(*calls, T("done"))
    result = place.run("--approve", policy, "--no-fail-on-denied", "--json", "x")
    end = json.loads(result.out.splitlines()[-1])
    assert (result.code, end["answer"]) == (0, "done")
    assert [denial["rule"] for denial in end["denied"]] == ["harness-home"] * 2
    assert not (place.home / "config.toml").exists()
    assert place.session_ids() == [end["session_id"]]


@pytest.mark.parametrize("policy", ["workspace", "all"])
def test_no_tool_reads_the_stored_keys(place: Dsh, policy: str) -> None:
    calls = [C("read", {"path": ".dsh/credentials.toml"})]
    if probe_sandbox() is not None:
        calls.append(C("bash", {"command": "rev .dsh/credentials.toml; ls .dsh"}))
    place.server.script(*calls, T("done"))
    result = place.run("--approve", policy, "--no-fail-on-denied", "--json", "x")
    end = json.loads(result.out.splitlines()[-1])
    assert [denial["rule"] for denial in end["denied"]] == ["harness-secrets"]
    sent = place.requests()[-1].text
    assert "sk-stored" not in sent
    assert "derots-ks" not in sent
    assert "credentials.toml" in sent


def test_with_all_the_sandbox_stays_and_commands_write_everywhere_else(place: Dsh, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    place.server.script(
        C("bash", {"command": f"echo a > {outside}/by-command"}),
        C("write", {"path": f"{outside}/by-tool", "content": "b"}),
        T("done"),
    )
    result = place.run("--approve", "all", "--json", "x")
    end = json.loads(result.out.splitlines()[-1])
    assert end["sandbox"] == (probe_sandbox() or "none")
    assert (outside / "by-command").read_text() == "a\n"
    assert (outside / "by-tool").read_text() == "b"


@pytest.mark.parametrize(("script", "sandbox"), [([], None), ([C("bash", {"command": "true"})], "off")])
def test_the_end_names_a_sandbox_only_where_a_command_ran(
    place: Dsh, script: list, sandbox: str | None
) -> None:
    place.server.script(*script, T("done"))
    assert place.run("--sandbox", "off", "--json", "x").end["sandbox"] == sandbox


def test_a_key_in_the_prompt_or_the_system_prompt_is_neither_sent_nor_stored(place: Dsh) -> None:
    place.server.script(T("fine"))
    result = place.run("--append-system-prompt", f"be kind, {SECRET}", "--json", f"my key is {SECRET}.")
    assert result.code == 0
    (request,) = place.requests()
    assert SECRET not in request.text
    assert request.text.count("[redacted:") == 2
    assert SECRET not in result.out
    assert SECRET not in place.stored_text()


def test_a_key_that_the_model_writes_is_neither_shown_nor_stored(place: Dsh) -> None:
    place.server.script(C("bash", {"command": f"echo {SECRET} | rev"}), T(f"key: {SECRET}!"))
    result = place.run("--json", "x")
    assert result.code == 0
    assert json.loads(result.out.splitlines()[-1])["answer"].startswith("key: [redacted:")
    assert SECRET not in result.out
    assert SECRET not in place.stored_text()
    assert SECRET not in place.requests()[-1].text
