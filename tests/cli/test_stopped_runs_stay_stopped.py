"""A run that is stopped asks its model nothing more, whatever ends of what it had started."""

from __future__ import annotations

import signal

from tests.cli.dsh_process import Dsh, Fifo
from tests.model_server import CC, STALL, T

SLOW_END = {"command": "trap 'sleep 1; exit' TERM; echo up > up; while :; do sleep 0.1; done"}
"""Keeps the turn open for a while after it is cancelled, so that all else has ended before it."""


def test_a_sub_agent_that_ends_with_a_stopped_run_begins_no_other_turn(dsh: Dsh) -> None:
    background = ("agent", {"prompt": "[[agent:kid]] go", "background": True})
    dsh.server.script(root=[CC(background, ("bash", SLOW_END)), T("more")], kid=[STALL(60)])
    with Fifo(dsh.cwd / "up") as up:
        running = dsh.begin("--json", "[[agent:root]] go")
        assert up.read() == "up\n"
        dsh.server.wait_for_requests(2)
        running.send_signal(signal.SIGTERM)
        result = running.wait()
    assert (result.code, result.end["reason"], result.end["turns"]) == (143, "interrupted", 1)
    assert dsh.server.count() == 2
    assert len(result.of("turn/start")) == 1
    assert dsh.survivors() == []
