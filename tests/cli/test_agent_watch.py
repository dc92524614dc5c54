"""`dsh agent ls --watch`: a table that fits any window, a line a change elsewhere, and a clean end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import termios
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.cli.agent_text import doing_text
from dsh_actors.cli.agent_watch import Overview, table
from dsh_actors.cli.live_table import fit
from dsh_actors.daemon.client import ServerEvent
from tests.cli.agent_kit import Agents, agents, served
from tests.cli.dsh_process import read_some
from tests.model_server import C, T

__all__ = ["agents", "served"]

COLOUR = re.compile(r"\x1b\[[\d;]*m")


def info(name: str, **more: object) -> dict[str, object]:
    known: dict[str, object] = {
        "id": name,
        "state": "idle",
        "turn": 1,
        "step": None,
        "tool": None,
        "tokens": 0,
        "cost": None,
        "currency": None,
        "created": 1_000_000,
        "updated": 1_000_000,
        "approvals": 0,
        "title": f"title of {name}",
    }
    return known | more


def width_of(text: str) -> int:
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1
        for each in COLOUR.sub("", text)
    )


@given(st.text("ab 日é\u0301\x1b\n\u202e🎉", max_size=12), st.integers(0, 14), st.booleans())
def test_a_cell_is_as_wide_as_its_column_whatever_it_holds(text: str, width: int, right: bool) -> None:
    cell = fit(text, width, right=right)
    assert not re.search("[\x00-\x1f\x7f-\x9f]", cell)
    assert width_of(cell) == width


@pytest.mark.parametrize("columns", [1, 5, 16, 17, 30, 46, 60, 80, 93, 110, 200])
def test_a_table_is_as_wide_as_the_window_and_no_higher(columns: int) -> None:
    overview = Overview()
    names = [f"20261130-100000-{n:08x}" for n in range(30)]
    titled = [info(name, title="日本語 " * n, cost=1.5) for n, name in enumerate(names)]
    overview.reset(titled)
    for lines in (1, 4, 10, 100):
        drawn = table(overview, columns, lines, 2_000_000)
        assert len(drawn) <= lines
        assert {width_of(line) for line in drawn} == {columns}


def test_those_who_ask_and_work_come_first_and_the_rest_is_counted() -> None:
    overview = Overview()
    overview.reset(
        [
            info("sleeper", state="asleep", updated=9),
            info("broken", state="failed"),
            info("old", updated=5),
            info("new", updated=6),
            info("worker", state="running", turn=2, step=3, tool="bash", tokens=12_345, cost=0.25),
            info("asker", state="running", approvals=1, step=1),
        ]
    )
    drawn = [COLOUR.sub("", line) for line in table(overview, 110, 8, 1_000_000 + 5_000)]
    assert drawn[0].rstrip() == "6 agents: 1 asking, 1 running, 1 failed, 2 idle, 1 asleep"
    assert [line.split()[0] for line in drawn[2:]] == ["asker", "worker", "broken", "new", "old", "…"]
    assert " ".join(drawn[3].split()) == "worker running 2.3 bash 12.3k 0.2500 5s title of worker"
    assert drawn[-1].rstrip() == "… and 1 more"


def test_an_agent_that_waits_for_what_it_has_started_does_not_wait_for_the_model() -> None:
    doing = [doing_text(info("one", state="running", turn=2, step=step)) for step in (3, None)]
    assert doing == ["2.3 model", "2 waiting"]


def test_a_lost_connection_is_said_and_a_new_list_replaces_the_old() -> None:
    overview = Overview()
    assert overview.reset([info("a"), info("b")]) == ["a", "b"]
    assert overview.apply(ServerEvent("agent", None, info("a"))) == []
    assert overview.apply(ServerEvent("agent", None, info("a", state="running"))) == ["a"]
    overview.apply(ServerEvent("lost"))
    assert table(overview, 80, 9, 0)[0].startswith("no connection to the daemon, trying again; 2 agents")
    assert overview.reset([info("b"), info("c")]) == ["c", "a"]
    assert overview.apply(ServerEvent("agent.disposed", None, {"id": "b"})) == ["b"]
    assert table(overview, 80, 9, 0)[0].startswith("1 agent: 1 idle")


def test_elsewhere_than_on_a_terminal_each_change_is_a_line(agents: Agents) -> None:
    dsh = agents.served.dsh
    dsh.server.script(C("bash", {"command": "true"}), T("Done."))
    first = agents.create("--idle")
    watching = dsh.start("agent", "ls", "--watch")
    lines = dsh.start("agent", "ls", "--watch", "--json")
    for each in (watching, lines):
        each.wait_for(lambda run: first.encode() in run._out)
    asking, question = agents.asking("--session-id", "watched")
    watching.wait_for(lambda run: re.search(rb"Z  watched  asking +1\.1 bash ", run._out) is not None)
    lines.wait_for(lambda run: any(event.get("approvals") == 1 for event in run.events))
    agents.ok("approve", asking, question)
    agents.ok("wait", asking)
    agents.ok("dispose", asking)
    watching.wait_for(lambda run: b"watched  disposed" in run._out)
    lines.wait_for(lambda run: {"id": asking, "state": "disposed"} in run.events)
    for each in (watching, lines):
        each.send_signal(2)
        done = each.wait()
        assert (done.code, done.err) == (130, "dsh: signal: stopped by SIGINT\n")
        assert "\x1b" not in done.out


@pytest.mark.parametrize("colour", [True, False], ids=["colour", "no-colour"])
def test_a_terminal_shows_changes_and_is_left_as_it_was(agents: Agents, colour: bool) -> None:
    dsh = agents.served.dsh
    dsh.server.script(C("bash", {"command": "true"}), T("Done."))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 70, 0, 0))
    env = {"TERM": "xterm"} | ({} if colour else {"NO_COLOR": "1"})
    watching = dsh.start("agent", "ls", "--watch", env=env, stdout=theirs)
    os.close(theirs)
    shown = b""
    asking, _ = agents.asking()
    while f"{asking}".encode() not in shown or b"asking" not in shown:
        shown += read_some(ours)
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 33, 0, 0))
    while not re.search(rb"\x1b\[H[^\x1b]{33}\x1b\[K", shown):  # drawn anew for the narrow window
        shown += read_some(ours)
    agents.ok("cancel", asking)
    watching.send_signal(2)
    with contextlib.suppress(OSError):  # the end of a terminal
        while piece := read_some(ours):
            shown += piece
    os.close(ours)
    done = watching.wait()
    assert (done.code, done.err) == (130, "")
    assert shown.startswith(b"\x1b[?1049h") and shown.endswith(b"\x1b[?1049l")
    assert (re.search(rb"\x1b\[3\dm", shown) is not None) is colour
