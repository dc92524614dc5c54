"""`dsh session prune`: what it says it would remove is what it removes; what is in use stays."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dsh_actors.cli.session_prune import parse_age, parse_size
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import UsageError
from tests.cli.dsh_process import Dsh, Event
from tests.cli.session_kit import everything, flip, held, sessions, store

DAY_S = 86_400


def aged(home: Path, name: str, days: float, **header: object) -> None:
    store(home, name, updated_s=time.time() - days * DAY_S, **header)


def rows(dsh: Dsh, *arguments: str) -> list[Event]:
    result = dsh.call("session", "prune", *arguments, "--json")
    assert (result.code, result.err) == (0, "")
    return result.events


def test_a_dry_run_says_what_the_real_one_does_and_changes_nothing(dsh: Dsh) -> None:
    for number, name in enumerate(["new", "mid", "old", "oldest"]):
        aged(dsh.home, name, number * 10)
    flip(dsh.home, "oldest", 1)
    before = everything(dsh.home)
    dry = rows(dsh, "--older-than", "15d", "--dry-run")
    assert everything(dsh.home) == before
    real = rows(dsh, "--older-than", "15d")
    assert [row.get("id") for row in real] == ["oldest", "old", None]
    assert real[0]["status"] == "corrupt"
    strip = [{**row, "dry_run": False} for row in dry[:-1]]
    assert strip == real[:-1]
    assert dry[-1]["total"] == {**real[-1]["total"], "dry_run": True}
    assert real[-1]["total"]["sessions"] == 2
    assert real[-1]["total"]["bytes"] == sum(row["bytes"] for row in real[:-1]) > 0
    assert dsh.session_ids() == ["mid", "new"]
    assert rows(dsh, "--older-than", "15d")[-1]["total"]["sessions"] == 0


def test_the_newest_stay_and_the_rest_is_made_to_fit(dsh: Dsh) -> None:
    for number, name in enumerate("abcde"):
        aged(dsh.home, name, number)
    size = rows(dsh, "--keep", "0", "--dry-run")[0]["bytes"]
    assert [row.get("id") for row in rows(dsh, "--max-bytes", str(3 * size + 100))[:-1]] == ["e", "d"]
    text = dsh.call("session", "prune", "--keep", "1").out
    assert [line.split()[:2] for line in text.splitlines()[:-1]] == [["removed", "c"], ["removed", "b"]]
    assert text.splitlines()[-1].startswith("removed 2 sessions, ")
    assert dsh.session_ids() == ["a"]


def test_a_session_in_use_is_never_touched(dsh: Dsh) -> None:
    aged(dsh.home, "a", 1)
    writer = held(dsh.home, "a")
    assert rows(dsh, "--keep", "0")[-1]["total"]["sessions"] == 0
    writer.close()  # type: ignore[attr-defined]
    assert rows(dsh, "--keep", "0")[0]["id"] == "a"


def test_sub_agents_go_with_their_parent_and_forks_do_not(dsh: Dsh) -> None:
    parent = {"parent_session": SessionId("p")}
    aged(dsh.home, "p", 30)
    aged(dsh.home, "child", 30, origin="subagent", delegation_depth=1, **parent)
    aged(dsh.home, "young", 30, origin="subagent", delegation_depth=1, parent_session=SessionId("q"))
    aged(dsh.home, "q", 1)
    aged(dsh.home, "fork", 1, **parent)
    assert [row.get("id") for row in rows(dsh, "--older-than", "2w")[:-1]] == ["child", "p"]
    assert dsh.session_ids() == ["fork", "q", "young"]


def test_an_empty_home_has_nothing_to_remove(dsh: Dsh) -> None:
    assert dsh.call("session", "prune", "--keep", "3").out == "removed 0 sessions, 0 B\n"
    assert not dsh.home.exists()


def test_ages_and_sizes_are_read_with_their_units() -> None:
    assert [parse_age(text) for text in ("90", "1.5m", "2H", "30d", "1w")] == [
        90_000, 90_000, 7_200_000, 30 * 86_400_000, 7 * 86_400_000,
    ]  # fmt: skip
    assert [parse_size(text) for text in ("0", "10", "1k", "1.5 M".replace(" ", ""), "2GiB", "1TB")] == [
        0, 10, 1024, 1_572_864, 2 * 1024**3, 1024**4,
    ]  # fmt: skip
    assert min(parse_age("9" * 400 + "d"), parse_size("9" * 400)) > 10**18  # as much as can be said
    for parse, bad in ((parse_age, "-1d"), (parse_age, "1y"), (parse_size, "1 X"), (parse_size, "")):
        with pytest.raises(UsageError):
            parse(bad)


def test_what_was_removed_is_gone_for_every_command(dsh: Dsh) -> None:
    aged(dsh.home, "a", 1)
    rows(dsh, "--keep", "0")
    assert dsh.call("session", "show", "a").code == 2
    assert list(sessions(dsh.home).list()) == []
