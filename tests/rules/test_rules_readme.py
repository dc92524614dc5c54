"""What the README says is true: every command and program in it runs, its output and its table are ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsh_actors.core.exit_codes import EXIT_TABLE

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PATIENCE_S = 120


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    """Every ``$`` line with the output that the README shows below it."""
    found = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A small project with ``dsh`` on the PATH, as a reader of the README would have it."""
    root = tmp_path_factory.mktemp("readme")
    project = root / "shop"
    for folder in ("src", "bin"):
        (project / folder).mkdir(parents=True)
    (project / "README.md").write_text("# Shop\n\nA shop that sells pears.\n")
    (project / "src" / "shop.py").write_text("PRICE = 3  # of a pear\n")
    tools = root / "tools"
    tools.mkdir()
    program = f'#!/bin/sh\nexec "{sys.executable}" -P -m dsh_actors "$@"\n'
    for path in (tools / "dsh", tools / "bin-dsh"):
        path.write_text(program)
        path.chmod(0o755)
    (project / ".gitignore").write_text("bin\n.gitignore\n*.txt\n*.json\n*.jsonl\n*.html\n")
    return {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "HOME": str(root),
        "DSH_HOME": str(root / "home"),
        "PYTHONPATH": str(ROOT),
        "LANG": "C.UTF-8",
        "PROJECT": str(project),
    }


def run(command: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=env["PROJECT"],
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_first_two_commands_are_the_job_and_the_tests() -> None:
    first, second = commands()[:2]
    assert first[0].startswith("bin/dsh run ") and second[0] == "bin/test"
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == second[0]


def test_every_command_runs_and_shows_what_the_readme_shows(shop: dict[str, str]) -> None:
    # In order, in one project: later commands go on with the sessions of earlier ones.
    for command, shown in commands():
        if command == "bin/test":
            continue  # it is what runs this test
        done = run(command.replace("bin/dsh", "bin-dsh"), shop)
        expected = 2 if command == "dsh doctor" else 0  # it finds that no key is set
        assert done.returncode == expected, f"{command}: {done.stderr}"
        if shown:
            assert done.stdout == shown, command


def test_every_program_runs(shop: dict[str, str]) -> None:
    example, *programs = blocks("python")
    # It needs a harness, and is run as the README says by its commands.
    assert example in (ROOT / "dsh_actors" / "examples" / "tournament.py").read_text("utf-8")
    assert len(programs) >= 3
    for program in programs:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            cwd=shop["PROJECT"],
            env=shop,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "scripted/demo" in done.stdout and done.stderr == ""


def test_every_configuration_is_accepted(shop: dict[str, str], tmp_path: Path) -> None:
    processes, settings, servers, credentials, rules = blocks("toml")
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(f"{processes}\n{settings}\n{servers}")
    (home / "credentials.toml").write_text(credentials)
    (home / "credentials.toml").chmod(0o600)
    shown = run("dsh config show", {**shop, "DSH_HOME": str(home)})
    assert shown.returncode == 0 and "local/qwen3" in shown.stdout, shown.stderr
    assert "providers.lab.quirks.think_tags" in shown.stdout and "subagents.far" in shown.stdout
    assert shown.stdout.count("(credentials.toml)") == 2
    (tmp_path / "rules.toml").write_text(rules)
    done = run(f"dsh run -m scripted/demo --approve {tmp_path}/rules.toml hello", shop)
    assert done.returncode == 0, done.stderr


def test_the_table_of_exit_codes_is_the_one_of_the_program() -> None:
    rows = [f"| {row.code} | {row.name} | {row.meaning} |" for row in EXIT_TABLE]
    assert "\n".join(rows) in README
