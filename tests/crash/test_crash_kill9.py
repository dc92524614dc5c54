"""`kill -9` at random points of a run of ten steps, each resumed: nothing repeated, nothing invented.

Every step is a shell command that appends a line of its own to a file. The moment is chosen by
progress: after the k-th line of `--json`, when the k-th request arrives, or while the k-th command
runs and has had its effect.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.cli.dsh_process import Dsh, Fifo, Result, Running, stream_faults
from tests.model_server import C, Entry, ModelServer, T

STEPS = 10
SHORT, LONG = 12, 60
LINE = re.compile(r"echo (line-\d+) >> effects")


def script(held: int | None = None) -> list[Entry]:
    """Ten effects, then the answer. Reasoning and text make the streams longer than one delta.

    The ``held``-th command says through the pipe that it had its effect, and goes on for long.
    """

    def step(number: int) -> Entry:
        rest = "echo up > pipe; sleep 99" if number == held else "echo done-@@N@@"
        command = f"echo line-@@N@@ >> effects; {rest}"
        return C("bash", {"command": command}, text=["step ", "@@N@@"], think="because")

    return [*map(step, range(1, STEPS + 1)), T(["all ", "done"])]


def moments(count: int) -> list[tuple[str, int]]:
    """Seeded: a failure can be repeated. The early and the late ends are always among them."""
    rand = random.Random(9)
    points = [("line", 1), ("line", 2), ("request", 1), ("request", STEPS + 1), ("command", 1)]
    while len(points) < count:
        chance = rand.random()
        if chance < 0.2:
            points.append(("request", rand.randint(1, STEPS + 1)))
        elif chance < 0.4:
            points.append(("command", rand.randint(1, STEPS)))
        else:
            points.append(("permille", rand.randint(0, 1000)))
    return points


@pytest.fixture(scope="module")
def line_count(tmp_path_factory: pytest.TempPathFactory, model_server_process: ModelServer) -> int:
    """How many lines an undisturbed run writes."""
    model_server_process.script(*script())
    dsh = Dsh(tmp_path_factory.mktemp("undisturbed"), model_server_process)
    result = dsh.run("--json", "begin")
    assert result.code == 0, result.err
    assert stream_faults(result.events) == []
    assert effects(dsh) == [f"line-{n}" for n in range(1, STEPS + 1)]
    dsh.clean_up()
    return len(result.events)


def effects(dsh: Dsh) -> list[str]:
    file = dsh.cwd / "effects"
    return file.read_text().split() if file.exists() else []


def kill_at(dsh: Dsh, running: Running, pipe: Fifo, kind: str, place: int, line_count: int) -> None:
    if kind == "request":
        dsh.server.wait_for_requests(place)
    elif kind == "command":
        pipe.read()
    else:
        lines = place if kind == "line" else max(1, line_count * place // 1000)
        running.wait_for(lambda run: len(run.events) >= lines)
    running.kill()


@pytest.mark.parametrize(("kind", "place"), moments(SHORT))
def test_a_killed_run_resumes_without_repeating_anything(
    dsh: Dsh, line_count: int, kind: str, place: int
) -> None:
    check_one_kill(dsh, line_count, kind, place)


def test_a_killed_run_resumes_at_many_more_points(
    long_form: bool, tmp_path: Path, model_server: ModelServer, line_count: int
) -> None:
    for number, (kind, place) in enumerate(moments(LONG)[SHORT:] if long_form else []):
        root = tmp_path / str(number)
        root.mkdir()
        dsh = Dsh(root, model_server)
        try:
            check_one_kill(dsh, line_count, kind, place)
        finally:
            dsh.clean_up()


def check_one_kill(dsh: Dsh, line_count: int, kind: str, place: int) -> None:
    dsh.server.script(*script(place if kind == "command" else None))
    with Fifo(dsh.cwd / "pipe") as pipe:
        running = dsh.begin("--session-id", "victim", "--json", "begin")
        kill_at(dsh, running, pipe, kind, place, line_count)
    assert dsh.survivors() == [], "children outlived the harness by 5 seconds"
    asked_before = dsh.server.count()
    done_before = effects(dsh)
    dsh.server.extend(T("an answer for the case that the first was lost"))
    resumed = dsh.run("--resume", "victim", "go on")
    if resumed.code == 2:
        # Killed before the first record was on disk: then nothing may have happened either.
        assert (asked_before, done_before, dsh.session_ids()) == (0, [], [])
        return
    told = assert_resumed(dsh, resumed, asked_before, done_before)
    if kind == "command":
        assert told[f"line-{place}"] == "unknown"


def assert_resumed(dsh: Dsh, resumed: Result, asked_before: int, done_before: list[str]) -> dict[str, str]:
    """Returns what the model was told of each effect."""
    assert (resumed.code, resumed.err) == (0, "")
    assert resumed.out
    assert effects(dsh)[: len(done_before)] == done_before
    assert len(set(effects(dsh))) == len(effects(dsh)), "a side effect was repeated"
    requests = dsh.requests()
    assert len(requests) > asked_before
    last = requests[-1]
    assert any(message["content"] == "go on" for message in last.messages if message["role"] == "user")
    told = {}
    for message in last.messages:
        for call in message.get("tool_calls") or ():
            effect = LINE.search(call["function"]["arguments"])
            assert effect, call
            told[effect[1]] = state_of(last.results[call["id"]])
    assert set(effects(dsh)) <= told.keys(), "something was done that no request tells of"
    for line, state in told.items():
        assert state != "done" or line in effects(dsh), f"{line} was never done"
        assert state != "not started" or line not in effects(dsh), f"{line} was done"
    assert sum(state != "done" for state in told.values()) <= 1, "at most one call was under way"
    return told


def state_of(result: str) -> str:
    """What the model is told: done, unknown, or not started."""
    if re.search(r"done-\d+", result):
        return "done"
    lower = result.lower()
    assert ("unknown" in lower) != ("not start" in lower or "never start" in lower), result
    return "unknown" if "unknown" in lower else "not started"
