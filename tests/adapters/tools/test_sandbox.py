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
