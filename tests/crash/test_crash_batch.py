"""`kill -9` at random points of a batch, each resumed: every task has one result, no effect happens twice.

Three tasks of three effects each, two at a time. The moment is chosen by progress: a request that arrives,
a command that has had its effect, or a result line that has been written.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from tests.cli.batch_kit import Line, lines_of, on, summary, write_tasks
from tests.cli.dsh_process import Dsh, Fifo, Running
from tests.model_server import C, Entry, ModelServer, T

TASKS = ("one", "two", "three")
STEPS = 3
SHORT, LONG = 4, 40
EFFECT = re.compile(r"echo (\w+-\d+) >> effects")


def script(task: str, held: int | None) -> list[Entry]:
    """The ``held``-th command says through the pipe that it had its effect, and goes on for long."""

    def step(number: int) -> Entry:
        rest = "echo up > pipe; sleep 99" if number == held else "echo done-@@N@@"
        return C("bash", {"command": f"echo {task}-@@N@@ >> effects; {rest}"}, text=["step ", "@@N@@"])

    return [*map(step, range(1, STEPS + 1)), T(["all ", "done"])]


def moments(count: int) -> list[tuple[str, int]]:
    """Seeded: a failure can be repeated."""
    rand = random.Random(5)
    points = [("result", 2), ("request", 1), ("command", 2)]
    while len(points) < count:
        kind = rand.choice(["request", "request", "command", "result"])
        most = {"request": len(TASKS) * (STEPS + 1), "command": STEPS, "result": len(TASKS)}[kind]
        points.append((kind, rand.randint(1, most)))
    return points


@pytest.mark.parametrize(("kind", "place"), moments(SHORT))
def test_a_killed_batch_resumes_without_repeating_anything(dsh: Dsh, kind: str, place: int) -> None:
    check_one_kill(dsh, kind, place)


def test_a_killed_batch_resumes_at_many_more_points(
    long_form: bool, tmp_path: Path, model_server: ModelServer
) -> None:
    for number, (kind, place) in enumerate(moments(LONG)[SHORT:] if long_form else []):
        root = tmp_path / str(number)
        root.mkdir()
        dsh = Dsh(root, model_server)
        try:
            check_one_kill(dsh, kind, place)
        finally:
            dsh.clean_up()


def check_one_kill(dsh: Dsh, kind: str, place: int) -> None:
    held = place if kind == "command" else None
    dsh.server.script(**{name: script(name, held if name == "one" else None) for name in TASKS})
    tasks, results = write_tasks(dsh, *map(on, TASKS)), dsh.cwd / "results.jsonl"
    arguments = ("batch", "-m", "openai/test", "-j", "2", "-o", "results.jsonl", tasks)
    with Fifo(dsh.cwd / "pipe") as pipe:
        running = dsh.start(*arguments, "--progress")
        kill_at(dsh, running, pipe, kind, place)
    assert dsh.survivors() == [], "children outlived the harness by 5 seconds"
    told_before = whole_lines(results)
    effects_before = effects(dsh)
    for name in TASKS:
        dsh.server.extend(T("an answer for the case that the first was lost"), route=name)
    resumed = dsh.call(*arguments, "--resume")
    assert (resumed.code, resumed.err) == (0, "")
    ends = [line for line in lines_of(results) if line["type"] == "task.end"]
    assert sorted(end["id"] for end in ends) == sorted(TASKS), "not one result a task"
    assert {end["status"] for end in ends} == {"completed"}
    assert lines_of(results)[: len(told_before)] == told_before, "what was written has changed"
    assert summary(results)["exit_code"] == 0
    assert effects(dsh)[: len(effects_before)] == effects_before
    assert len(set(effects(dsh))) == len(effects(dsh)), "a side effect was repeated"
    assert_all_effects_were_told(dsh)


def kill_at(dsh: Dsh, running: Running, pipe: Fifo, kind: str, place: int) -> None:
    if kind == "request":
        dsh.server.wait_for_requests(place)
    elif kind == "command":
        pipe.read()
    else:
        running.wait_for(lambda run: run.stderr.count("completed") >= place)
    running.kill()


def whole_lines(results: Path) -> list[Line]:
    text = results.read_text() if results.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def effects(dsh: Dsh) -> list[str]:
    file = dsh.cwd / "effects"
    return file.read_text().split() if file.exists() else []


def assert_all_effects_were_told(dsh: Dsh) -> None:
    """Whatever was done stands in the last request of its task: each went on with its own session."""
    last = {request.route: request for request in dsh.requests()}
    assert set(last) == set(TASKS)
    told = {name for request in last.values() for name in EFFECT.findall(request.text)}
    assert set(effects(dsh)) <= told
