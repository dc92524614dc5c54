"""`dsh batch`: one result line a task, whatever becomes of the others."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from dsh_actors.cli.main import main
from tests.cli.batch_kit import by_id, lines_of, on, summary, task_ends, write_tasks
from tests.cli.dsh_process import ONE_LINE, Dsh
from tests.model_server import C, H, T

MODEL = ("-m", "openai/test")


def test_every_line_has_a_result_and_a_bad_one_hurts_nobody(dsh: Dsh) -> None:
    dsh.server.script(good=[T("fine")], other=[T("well")], late=[T("too")])
    tasks = write_tasks(
        dsh,
        on("good"),
        b"not json",
        b"",
        {"prompt": "x", "promt": "y", "id": "typo"},
        b'{"prompt": "\xff"}',
        {"id": "nowhere", "prompt": "x", "cwd": "no/such/place"},
        {"id": "nobody", "prompt": "x", "model": "nobody/x"},
        {"id": "good", "prompt": "the same id"},
        b'{"prompt": "' + b"x" * (64 << 20) + b'"}',
        b'{"prompt": NaN}',
        b"[" * 100_000,
        {"id": "blank", "prompt": " \n"},
        on("other"),
        on("late"),
        b'{"prompt": ' + b"9" * 5_000 + b"}",
    )
    done = dsh.call("batch", *MODEL, tasks)
    assert done.code == 1 and ONE_LINE.match(done.err), done.err
    lines = {line["line"]: line for line in task_ends(done)}
    assert {number: line["answer"] for number, line in lines.items() if line["status"] == "completed"} == {
        1: "fine",
        13: "well",
        14: "too",
    }
    bad = {number: line for number, line in lines.items() if line["exit_code"]}
    assert sorted(bad) == [2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15]
    assert {line["exit_code"] for line in bad.values()} == {2}
    assert {line["session_id"] for line in bad.values()} == {None}
    assert "did you mean prompt?" in bad[4]["message"] and bad[4]["id"] == "typo"
    assert "UTF-8" in bad[5]["message"]
    assert "line 1" in bad[8]["message"]
    assert "64 MiB" in bad[9]["message"]
    assert "nested" in bad[11]["message"] and "too many digits" in bad[15]["message"]
    end = summary(done)
    assert end["counts"] == {"completed": 3, "usage": 11} and end["tasks"] == 14
    assert end["usage"]["input"] == 300 and end["exit_code"] == 1
    assert len(dsh.requests()) == 3


def test_a_strict_batch_with_a_bad_line_starts_nothing(dsh: Dsh) -> None:
    tasks = write_tasks(dsh, on("good"), {"id": "b", "prompt": "x", "model": "nobody/x"}, b"{")
    for arguments, text in (((tasks,), None), (("-",), (dsh.cwd / tasks).read_bytes())):
        done = dsh.call("batch", *MODEL, "--strict", "-o", "results.jsonl", *arguments, text=text)
        assert (done.code, done.out) == (2, "")
        assert ONE_LINE.match(done.err) and "line 2" in done.err and "1 more" in done.err
        assert not (dsh.cwd / "results.jsonl").exists()
    assert dsh.server.count() == 0 and dsh.session_ids() == []


def test_a_line_has_the_configuration_of_its_directory_and_goes_before_the_options(dsh: Dsh) -> None:
    step, answer = C("bash", {"command": "pwd; cat mark"}), T("done")
    dsh.server.script(**{name: [step, step, answer] for name in ("bounded", "free", "own")})
    bounded = dsh.cwd / "bounded"
    (bounded / ".dsh").mkdir(parents=True)
    project = '[limits]\nmax_steps = 1\n[agent]\nmodel = "openai/theirs"\n'
    (bounded / ".dsh" / "config.toml").write_text(project)
    (bounded / "mark").write_text("of the project")
    tasks = write_tasks(
        dsh,
        on("bounded", cwd="bounded"),
        on("free", model="openai/test"),
        on("own", model="openai/test", cwd=str(bounded), limits={"max_steps": 2}),
    )
    done = dsh.call("batch", tasks)
    ends = by_id(done)
    assert {name: (end["steps"], end["reason"]) for name, end in ends.items()} == {
        "bounded": (1, "max_steps"),
        "free": (3, "completed"),
        "own": (2, "max_steps"),
    }
    models = {request.route: request.json["model"] for request in dsh.requests()}
    assert models == {"bounded": "theirs", "free": "test", "own": "test"}
    results = [str(request.results) for request in dsh.requests() if request.route == "own"]
    assert str(bounded) in results[-1] and "of the project" in results[-1]


def test_a_task_of_standard_input_starts_before_the_end_of_the_input(dsh: Dsh) -> None:
    dsh.server.script(first=[T("one")], second=[T("two")])
    running = dsh.start("batch", *MODEL, "-", stdin=subprocess.PIPE)
    assert running.process.stdin is not None
    running.process.stdin.write(json.dumps(on("first")).encode() + b"\n")
    running.process.stdin.flush()
    assert running.wait_for_event("task.end")["answer"] == "one"
    running.process.stdin.write(json.dumps(on("second")).encode())  # the last line needs no end
    running.process.stdin.close()
    done = running.wait()
    assert done.code == 0 and done.err == ""
    assert {end["answer"] for end in task_ends(done)} == {"one", "two"}


def test_a_rate_limit_that_one_task_meets_is_waited_out_by_all(dsh: Dsh) -> None:
    dsh.server.script(
        limited=[H(429, {"retry-after": "1"}), T("at last")],
        other=[T("first", hold="gate"), T("never")],
        third=[T("third")],
    )
    running = dsh.start("batch", *MODEL, "-j", "2", write_tasks(dsh, on("other"), on("limited"), on("third")))
    dsh.server.wait_for_requests(2)
    dsh.server.wait_for_ends(1)  # the refusal is out; the third task gets the place of the first
    dsh.server.release("gate")
    done = running.wait()
    assert done.code == 0, done.err
    arrived = {(request.route, request.number): request for request in dsh.requests()}
    refused = arrived["limited", 1].ended
    assert refused is not None
    for later in (arrived["limited", 2], arrived["third", 1]):
        assert later.arrived - refused > 0.9, "it did not wait for the provider"


def test_a_hundred_tasks_at_once_share_one_home(dsh: Dsh) -> None:
    dsh.server.script(T("an answer"), after="repeat")
    (dsh.home).mkdir()
    (dsh.home / "config.toml").write_text("[limits]\nmax_steps = 5\n")
    tasks = write_tasks(dsh, *({"prompt": f"Task {n}."} for n in range(100)))
    done = dsh.call("batch", *MODEL, "-j", "100", "--name", "many", tasks, timeout_s=60)
    assert (done.code, done.err) == (0, "")
    assert summary(done)["counts"] == {"completed": 100}
    assert {end["session_id"] for end in task_ends(done)} == {f"batch-many-{n}" for n in range(1, 101)}
    assert len(set(dsh.session_ids())) == 100
    assert (dsh.home / "config.toml").read_text() == "[limits]\nmax_steps = 5\n"
    listed = dsh.call("session", "ls", "--json", "-n", "1000")
    rows = [json.loads(line) for line in listed.out.splitlines()]
    assert len(rows) == 100 and len({json.dumps(row, sort_keys=True) for row in rows}) == 100


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("missing.jsonl",), "missing.jsonl"),
        ((".",), "directory"),
        (("--resume", "tasks.jsonl"), "-o FILE"),
        (("-o", "no/such/folder/r", "tasks.jsonl"), "-o"),
        (("--resume", "-o", "letter.txt", "tasks.jsonl"), "letter.txt"),
        (("-o", "letter.txt", "tasks.jsonl"), "letter.txt"),
        (("--name", "", "tasks.jsonl"), "--name"),
        (("--jobs", "0", "tasks.jsonl"), "--jobs"),
        (("-C", "nowhere", "tasks.jsonl"), "nowhere"),
        (("--schema", "missing.json", "tasks.jsonl"), "missing.json"),
    ],
)
def test_a_wrong_use_is_one_line_and_starts_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    word: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DSH_HOME", str(tmp_path / "home"))
    Path("tasks.jsonl").write_text('{"prompt": "x"}\n')
    letter = Path("letter.txt")
    letter.write_text("Dear reader,\nno batch wrote this")
    assert main(["batch", *arguments]) == 2
    out, err = capfd.readouterr()
    assert out == "" and ONE_LINE.match(err) and word in err
    assert letter.read_text() == "Dear reader,\nno batch wrote this"
    assert not Path("home").exists()


def test_an_empty_batch_is_complete(dsh: Dsh) -> None:
    done = dsh.call("batch", *MODEL, write_tasks(dsh))
    assert (done.code, done.err) == (0, "")
    assert [line["type"] for line in lines_of(done)] == ["batch.start", "batch.end"]


def test_when_all_tasks_fail_alike_the_batch_has_their_exit_code(dsh: Dsh) -> None:
    dsh.server.script(H(401), after="repeat")
    done = dsh.call("batch", *MODEL, write_tasks(dsh, {"prompt": "one"}, {"prompt": "two"}))
    assert done.code == 3 and done.err.startswith("dsh: auth: 2 of 2 tasks")


def test_answers_are_held_against_the_schema_of_their_line_or_of_all(dsh: Dsh) -> None:
    number, text = {"type": "integer"}, {"type": "string"}
    dsh.server.script(of_all=[T("7")], own=[T('"seven"')], never=[T("seven")])
    (dsh.cwd / "number.json").write_text(json.dumps(number))
    tasks = write_tasks(dsh, on("of_all"), on("own", schema=text), on("never", schema_retries=0))
    done = dsh.call("batch", *MODEL, "--schema", "number.json", tasks)
    ends = by_id(done)
    assert (ends["of_all"]["structured"], ends["own"]["structured"]) == (7, "seven")
    never = ends["never"]
    assert (never["status"], never["exit_code"], never["structured"]) == ("schema", 5, None)
    assert done.code == 1 and summary(done)["counts"] == {"completed": 2, "schema": 1}
