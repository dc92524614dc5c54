"""The early ends of `dsh batch`: a reader that leaves, limits of the whole, a signal that comes twice."""

from __future__ import annotations

import os
import signal

import pytest

from tests.cli.batch_kit import by_id, on, summary, write_tasks
from tests.cli.dsh_process import Dsh
from tests.model_server import C, T

MODEL = ("-m", "openai/test")
STEP = C("bash", {"command": "echo @@N@@"})
PRICE = """
[providers.openai]
[[providers.openai.models]]
id = "test"
price = { input = 1, output = 10, currency = "EUR" }
"""  # 200 millionths for a reply of the scripted server


def test_a_reader_that_goes_away_ends_the_batch(dsh: Dsh) -> None:
    dsh.server.script(quick=[T("1")], slow=[T("2", hold="never")], unborn=[T("3")])
    reading, writing = os.pipe()
    tasks = write_tasks(dsh, on("slow"), on("quick"), on("unborn"))
    running = dsh.start("batch", *MODEL, "-j", "2", tasks, stdout=writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert b"batch.start" in pipe.readline()
        dsh.server.wait_for_requests(1)
    done = running.wait()
    assert done.code == 141, done.err
    assert done.err.startswith("dsh: pipe: ") and done.duration_s < 20
    assert dsh.survivors() == []


@pytest.mark.parametrize(
    ("arguments", "code", "status", "word"),
    [
        (("--batch-timeout", "2s"), 124, "timeout", "--batch-timeout passed"),
        (("--max-total-tokens", "300"), 4, "limit", "--max-total-tokens 300 reached"),
        (("--max-total-cost", "0.0005"), 4, "limit", "--max-total-cost 0.0005 reached"),
        (("--fail-fast",), 1, "failed", "--fail-fast: failing failed; 2 of 2 tasks"),
    ],
)
def test_a_limit_of_the_whole_batch_cancels_what_runs(
    dsh: Dsh, arguments: tuple[str, ...], code: int, status: str, word: str
) -> None:
    dsh.server.script(slow=[STEP, T("slow", hold="never")], failing=[STEP, T("")], unborn=[T("late")])
    if arguments[0] == "--batch-timeout":
        dsh.server.script(slow=[T("slow", hold="never")], failing=[T("", hold="never")])
    dsh.home.mkdir()
    (dsh.home / "config.toml").write_text(PRICE)
    tasks = write_tasks(dsh, on("slow"), on("failing"), on("unborn"))
    done = dsh.call("batch", *MODEL, "-j", "2", *arguments, tasks)
    end = summary(done)
    assert (done.code, end["exit_code"], end["status"]) == (code, code, status)
    assert word in end["message"] and word in done.err
    ends = by_id(done)
    assert "unborn" not in ends
    assert (ends["slow"]["status"], ends["slow"]["reason"]) == ("signal", "interrupted")
    assert ends["slow"]["message"].startswith("stopped: --")
    assert done.duration_s < 20


def test_a_second_signal_ends_the_batch_at_once_and_its_tasks_go_on_later(dsh: Dsh) -> None:
    stubborn = C("bash", {"command": "trap '' TERM; echo up > pipe; while :; do sleep 60; done"})
    dsh.server.script(stubborn=[stubborn, T("after all")])
    write_tasks(dsh, on("stubborn"))
    os.mkfifo(dsh.cwd / "pipe")
    arguments = ("batch", *MODEL, "-o", "results.jsonl", "tasks.jsonl")
    running = dsh.start(*arguments)
    assert (dsh.cwd / "pipe").read_text() == "up\n"
    running.send_signal(signal.SIGINT)
    running.send_signal(signal.SIGTERM)
    assert running.wait().code == 143
    assert dsh.survivors() == []
    again = dsh.call(*arguments, "--resume")
    assert (again.code, again.err) == (0, "")
    assert by_id(dsh.cwd / "results.jsonl")["stubborn"]["answer"] == "after all"


def test_a_task_without_a_known_price_is_refused_where_the_cost_is_limited(dsh: Dsh) -> None:
    done = dsh.call("batch", *MODEL, "--max-total-cost", "1", write_tasks(dsh, {"prompt": "x"}))
    assert (done.code, summary(done)["counts"]) == (2, {"usage": 1})
    assert "--max-total-cost needs a price" in by_id(done)["1"]["message"]
    assert dsh.server.count() == 0
