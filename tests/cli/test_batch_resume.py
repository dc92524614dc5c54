"""`dsh batch --resume`: nothing that is done is done again, nothing that is not is left out."""

from __future__ import annotations

import signal

import pytest

from tests.actors.kit import until
from tests.cli.batch_kit import by_id, lines_of, on, summary, task_ends, write_tasks
from tests.cli.dsh_process import Dsh, Result
from tests.model_server import C, H, T, prefix_faults

MODEL = ("-m", "openai/test")


def is_stored(dsh: Dsh, text: str) -> bool:
    """Whether it is in a log by now. A batch prints nothing of it."""
    try:
        return text in dsh.stored_text()
    except FileNotFoundError:
        return False  # what runs has just taken a file away


def batch(dsh: Dsh, *arguments: str) -> Result:
    return dsh.call("batch", *MODEL, "-o", "results.jsonl", *arguments, "tasks.jsonl")


def test_what_is_done_is_left_out_and_what_changed_is_not(dsh: Dsh) -> None:
    dsh.server.script(same=[T("1")], changed=[T("1"), T("2")], failing=[H(400), T("good")])
    results = dsh.cwd / "results.jsonl"
    write_tasks(dsh, on("same"), on("changed"), on("failing"), {"id": "wrong", "prompt": "x", "cwd": "later"})
    first = batch(dsh)
    assert first.code == 1 and first.out == ""
    assert {name: end["status"] for name, end in by_id(results).items()} == {
        "same": "completed",
        "changed": "completed",
        "failing": "failed",
        "wrong": "usage",
    }
    before = results.read_bytes()
    write_tasks(
        dsh,
        on("same"),
        {**on("changed"), "prompt": "Another. [[route:changed]]"},
        on("failing"),
        {"id": "wrong", "prompt": "x", "cwd": "later"},
        on("new", model="nobody/x"),
    )
    again = batch(dsh, "--resume")
    assert again.code == 1
    assert results.read_bytes().startswith(before), "the file is only ever appended to"
    assert [(end["id"], end["status"]) for end in task_ends(results)[4:]] in (
        [("changed", "completed"), ("new", "usage")],
        [("new", "usage"), ("changed", "completed")],
    )
    assert summary(results)["skipped"] == {"completed": 1, "failed": 1, "usage": 1}
    changed = [end for end in task_ends(results) if end["id"] == "changed"]
    assert changed[1]["session_id"] == changed[0]["session_id"] + ".2"
    (dsh.cwd / "later").mkdir()
    dsh.server.extend(T("now"))
    write_tasks(dsh, on("same"), on("failing"), {"id": "wrong", "prompt": "x", "cwd": "later"})
    last = batch(dsh, "--retry-failed")
    assert (last.code, last.err) == (0, "")
    assert {end["id"]: end["answer"] for end in task_ends(results)[6:]} == {"failing": "good", "wrong": "now"}
    assert batch(dsh, "--resume").code == 0
    assert dsh.server.count() == 6


def test_a_batch_with_a_name_tells_results_again_from_the_sessions(dsh: Dsh) -> None:
    dsh.server.script(a=[C("bash", {"command": "echo hello"}), T("said")], b=[T("ok")])
    tasks = write_tasks(dsh, on("a"), on("b"))
    first = by_id(dsh.call("batch", *MODEL, "--name", "nightly", tasks))
    taken = dsh.call("batch", *MODEL, "--name", "nightly", tasks)
    assert taken.code == 8 and "--resume" in task_ends(taken)[0]["message"]
    again = dsh.call("batch", *MODEL, "--name", "nightly", "--resume", tasks)
    assert again.code == 0
    told = by_id(again)
    for name, end in told.items():
        same = ("answer", "steps", "tool_calls", "usage", "session_id", "digest", "attempt", "status")
        assert {key: end[key] for key in same} == {key: first[name][key] for key in same}
    assert dsh.server.count() == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_tasks_that_go_on_later(dsh: Dsh, number: int, code: int) -> None:
    effect = C("bash", {"command": "echo once >> effects; echo did"})
    slow = [effect, T("slow", hold="never"), T("finished")]
    dsh.server.script(quick=[T("ready")], slow=slow, unborn=[T("late")])
    results = dsh.cwd / "results.jsonl"
    write_tasks(dsh, on("quick"), on("slow"), on("unborn"))
    running = dsh.start("batch", *MODEL, "-o", "results.jsonl", "-j", "1", "tasks.jsonl")
    dsh.server.wait_for_requests(3)
    running.send_signal(number)
    stopped = running.wait()
    assert stopped.code == code
    assert stopped.err == f"dsh: signal: stopped by {signal.Signals(number).name}\n"
    assert stopped.duration_s < 20
    ends = by_id(results)
    assert {name: end["status"] for name, end in ends.items()} == {"quick": "completed", "slow": "signal"}
    assert ends["slow"]["exit_code"] == summary(results)["exit_code"] == code
    if number != signal.SIGTERM:
        return
    again = batch(dsh, "--resume")
    assert (again.code, again.err) == (0, "")
    later = {end["id"]: end for end in task_ends(results)[2:]}
    assert {name: end["answer"] for name, end in later.items()} == {"slow": "finished", "unborn": "late"}
    slow = later["slow"]
    assert slow["resumed"] and slow["session_id"] == ends["slow"]["session_id"]
    assert slow["steps"] == 3 and slow["turns"] == 2, "the whole task counts, not only its end"
    assert (dsh.cwd / "effects").read_text() == "once\n"
    asked = [request for request in dsh.requests() if request.route == "slow"]
    assert "was stopped before" in str(asked[-1].messages[-1]["content"])
    assert prefix_faults([request.body for request in asked]) == []
    assert [line["type"] for line in lines_of(results)].count("batch.end") == 2


def test_a_kill_while_a_job_goes_on_behind_a_task_leaves_it_to_be_finished(dsh: Dsh) -> None:
    started = C("bash", {"command": "sleep 60", "background": True})
    dsh.server.script(job=[started, T("waiting"), T("finished")])
    write_tasks(dsh, on("job"))
    running = dsh.start("batch", *MODEL, "-o", "results.jsonl", "tasks.jsonl")
    dsh.server.wait_for_requests(2)
    until(lambda: is_stored(dsh, "turn/end"))
    running.send_signal(signal.SIGKILL)
    running.wait()
    again = batch(dsh, "--resume")
    assert (again.code, again.err) == (0, "")
    [end] = task_ends(dsh.cwd / "results.jsonl")
    assert (end["answer"], end["resumed"], end["turns"]) == ("finished", True, 2)


@pytest.mark.parametrize(("option", "code", "answer"), [((), 0, "finished"), (("--no-wait",), 4, "waiting")])
def test_a_task_stopped_while_a_job_goes_on_is_told_as_it_was(
    dsh: Dsh, option: tuple[str, ...], code: int, answer: str
) -> None:
    started = C("bash", {"command": "sleep 60", "background": True})
    dsh.server.script(job=[started, T("waiting"), T("finished")])
    command = ("batch", *MODEL, "--name", "n", *option)
    running = dsh.start(*command, write_tasks(dsh, on("job")))
    dsh.server.wait_for_requests(2)
    if not option:
        until(lambda: is_stored(dsh, "turn/end"))
        running.send_signal(signal.SIGTERM)
    assert running.wait().code == (143 if not option else 4)
    again = dsh.call(*command, "--resume", "tasks.jsonl")
    [end] = task_ends(again)
    assert (again.code, end["answer"], end["exit_code"]) == (code, answer, code)
    said = str(dsh.requests()[-1].messages)
    assert option or "bash-1 has ended: stopped" in said, "whoever waits for a job hears that it was stopped"


def test_two_batches_do_not_write_one_file(dsh: Dsh) -> None:
    dsh.server.script(slow=[T("slow", hold="gate")])
    write_tasks(dsh, on("slow"))
    running = dsh.start("batch", *MODEL, "-o", "results.jsonl", "tasks.jsonl")
    dsh.server.wait_for_requests(1)
    second = batch(dsh, "--resume")
    assert second.code == 8 and "results.jsonl" in second.err
    dsh.server.release("gate")
    assert running.wait().code == 0
    assert set(by_id(dsh.cwd / "results.jsonl")) == {"slow"}
