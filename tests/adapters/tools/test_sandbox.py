"""The sandbox: what a wrapped command may write, and how it is known whether one works here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dsh_actors.adapters.tools.sandbox import probe_sandbox, wrap_command
from dsh_actors.errors import UsageError


def fake_program(folder: Path, script: str) -> None:
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_no_program_means_no_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe_sandbox() is None


def test_a_program_that_cannot_work_here_means_no_sandbox(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_program(tmp_path, "echo 'No permissions to create new namespace' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe_sandbox() is None


def test_a_program_that_does_not_protect_means_no_sandbox(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # It runs what follows `--` as if everything were writable.
    fake_program(tmp_path, 'while [ "$1" != -- ]; do shift; done; exec "$2" "$3" "${4%%&&*}&& false"')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert probe_sandbox() is None


def test_a_trial_that_succeeds_names_the_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_program(tmp_path, f'echo "$@" > {tmp_path}/arguments')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe_sandbox() == "bwrap"
    assert "--ro-bind / /" in (tmp_path / "arguments").read_text()


def test_the_roots_and_tmp_are_bound_after_the_read_only_root() -> None:
    wrapped = wrap_command("bwrap", ["bash", "-c", "echo --bind"], "/a b", ["/a b", "/c"])
    assert wrapped[:4] == ["bwrap", "--ro-bind", "/", "/"]
    assert wrapped[-6:] == ["--chdir", "/a b", "--", "bash", "-c", "echo --bind"]
    bound = [wrapped[i + 1] for i, word in enumerate(wrapped) if word == "--bind-try"]
    assert bound == ["/tmp", "/var/tmp", "/a b", "/c"]


def in_sandbox(script: str, cwd: Path, roots: list[str], home: Path) -> str:
    """What a script prints in the sandbox, if one works here; errors with it."""
    command = wrap_command(
        "bwrap", ["sh", "-c", script], str(cwd), roots, [str(home)], [str(home / "credentials.toml")]
    )
    done = subprocess.run(command, capture_output=True, check=False, timeout=10)
    return (done.stdout + done.stderr).decode()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace with the harness's home some way below it."""
    home = tmp_path / "ws/deep/home"
    home.mkdir(parents=True)
    (home / "config.toml").write_text("x")
    (home / "credentials.toml").write_text("sk-secret")
    return tmp_path / "ws"


_ATTACKS = (
    "echo bad > {home}/config.toml",
    "echo bad > {home}/new.toml",
    "rm -rf {home}",
    "mv {home} {ws}/elsewhere && mkdir {home} && echo bad > {home}/config.toml",
    "mv {ws}/deep {ws}/moved && mkdir -p {home} && echo bad > {home}/config.toml",
    "mv {ws} {ws}2 && mkdir -p {home} && echo bad > {home}/config.toml",
    "ln {home}/config.toml {ws}/link && echo bad > {ws}/link",
    "rev {home}/credentials.toml",
)


@pytest.mark.parametrize("everything", [False, True])
def test_no_command_changes_the_protected_directory_or_reads_the_hidden_file(
    place: Path, everything: bool
) -> None:
    home, roots = place / "deep/home", ["/"] if everything else [str(place)]
    if probe_sandbox() is None:
        return  # the arguments are tested below, on every machine
    for attack in _ATTACKS:
        shown = in_sandbox(attack.format(home=home, ws=place), Path("/"), roots, home)
        assert "terces" not in shown, attack
        assert shown, f"nothing stopped: {attack}"
        assert sorted(p.name for p in home.iterdir()) == ["config.toml", "credentials.toml"], attack
        assert (home / "config.toml").read_text() == "x", attack
        assert (home / "credentials.toml").read_text() == "sk-secret", attack
    assert in_sandbox(f"echo good > {place}/deep/new; cat {home}/config.toml", Path("/"), roots, home) == "x"
    assert (place / "deep/new").read_text() == "good\n"


def test_an_unknown_sandbox_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown sandbox 'jail'"):
        wrap_command("jail", ["true"], "/", [])


def test_where_it_works_only_the_roots_can_be_written(tmp_path: Path) -> None:
    inside, outside = Path("/var/tmp") / tmp_path.name, Path("/etc/dsh-sandbox-test")
    script = f"echo hi > {tmp_path}/x; echo no > {outside}; cat /etc/passwd > /dev/null && pwd; exit 3"
    for kind in filter(None, [probe_sandbox()]):
        done = subprocess.run(
            wrap_command(kind, ["sh", "-c", script], "/usr", [str(tmp_path), str(inside)]),
            capture_output=True,
            check=False,
            timeout=10,
        )
        assert done.returncode == 3
        assert done.stdout == b"/usr\n"
        assert b"Read-only" in done.stderr
        assert (tmp_path / "x").read_text() == "hi\n"
        assert not outside.exists()


def test_the_whole_disk_as_a_root_leaves_only_the_protected_directory_read_only(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    wrapped = wrap_command("bwrap", ["x"], "/w", ["/"], [str(home), "/no/such"], ["/no/such/file"])
    assert wrapped[:4] == ["bwrap", "--dev-bind", "/", "/"]
    assert "--proc" not in wrapped
    assert wrapped[-7:] == ["--ro-bind", str(home), str(home), "--chdir", "/w", "--", "x"]
    assert "/no/such" not in wrapped


def test_what_leads_to_a_protected_directory_is_mounted_before_it_and_cannot_be_moved(place: Path) -> None:
    home, key = place / "deep/home", place / "deep/home/credentials.toml"
    wrapped = wrap_command("bwrap", ["x"], "/w", [str(place)], [str(home)], [str(key)])
    mounts = [wrapped[i : i + 3] for i, word in enumerate(wrapped) if word in ("--bind", "--ro-bind")]
    last = [word for mount in mounts[-4:] for word in mount]
    ways = [way for folder in (place, place / "deep") for way in ("--bind", str(folder), str(folder))]
    assert last == [*ways, "--ro-bind", str(home), str(home), "--ro-bind", "/dev/null", str(key)]
