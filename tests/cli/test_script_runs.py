"""`dsh script` as a process: what the program sees, how it ends, and what is left of its agents."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from dsh_actors.examples import example_files
from tests.cli.dsh_process import ONE_LINE, Dsh, Result
from tests.model_server import STALL, C, T

HEAD = "from dsh_actors.scripting import *\nimport sys\n"


def run(dsh: Dsh, program: str, *arguments: str, options: tuple[str, ...] = ()) -> Result:
    return dsh.call("script", "-m", dsh.model, *options, write(dsh, program), *arguments)


def write(dsh: Dsh, program: str) -> str:
    (dsh.cwd / "program.py").write_text(HEAD + program)
    return "program.py"


def test_the_program_runs_as_main_with_its_arguments_its_folder_and_a_harness(dsh: Dsh) -> None:
    dsh.server.script(T("one"), T("two"))
    (dsh.cwd / "beside.py").write_text("NAME = 'beside'\n")
    result = run(
        dsh,
        "import beside, __main__\n"
        "print(__name__, __main__.__file__, sys.argv, beside.NAME)\n"
        "end = spawn('first')\n"
        "print(end.answer, end.completed, end.session_id in str(current().storage.path(end.session_id)))\n"
        "with create() as agent:\n"
        "    print(agent.run('second').answer)\n"
        "print(current().agents())\n",
        "--max-steps",
        "x",
    )
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "__main__ program.py ['program.py', '--max-steps', 'x'] beside\none True True\ntwo\n[]\n"
    )


def test_results_come_in_order_and_no_more_work_at_once_than_is_wanted(dsh: Dsh) -> None:
    dsh.server.script(*(T("@@N@@") for _ in range(6)))
    result = run(
        dsh,
        "lock, now, most = __import__('threading').Lock(), 0, 0\n"
        "def call(name):\n"
        "    global now, most\n"
        "    with lock: now += 1; most = max(most, now)\n"
        "    end = spawn(name)\n"
        "    with lock: now -= 1\n"
        "    return name, end.completed\n"
        "from functools import partial\n"
        "print(gather(*(partial(call, str(n)) for n in range(4)), concurrency=2), most)\n"
        "print([end.completed for end in gather('a', 'b')])\n"
        "print(pipeline([1, 2, 3], lambda n: n * 2, str))\n",
    )
    assert result.code == 0, result.err
    pairs = ", ".join(f"('{n}', True)" for n in range(4))
    assert result.out == f"[{pairs}] 2\n[True, True]\n['2', '4', '6']\n"


def test_the_first_error_ends_the_other_calls_and_their_agents(dsh: Dsh) -> None:
    dsh.server.script(STALL(60, "never"))
    result = run(
        dsh,
        "import threading\n"
        "begun = threading.Event()\n"
        "def slow():\n"
        "    agent = create()\n"
        "    with agent:\n"
        "        agent.followup('x'); begun.set(); agent.when_idle()\n"
        "def bad():\n"
        "    begun.wait()\n"
        "    raise ValueError('bad')\n"
        "try: gather(slow, bad)\n"
        "except ValueError as error: print('caught', error, current().agents())\n"
        "print(gather(bad, lambda: 7, on_error='collect'))\n",
    )
    assert (result.code, result.out) == (0, "caught bad []\n[ValueError('bad'), 7]\n"), result.err


def test_an_exception_shows_the_lines_of_the_program_and_no_others(dsh: Dsh) -> None:
    dsh.server.script(T("ok"))
    result = run(dsh, "def deep():\n    raise ValueError('what now?')\ngather(deep)\n")
    assert result.code == 1 and result.out == ""
    assert 'File "program.py", line 5, in <module>' in result.err
    assert 'File "program.py", line 4, in deep\n    raise ValueError' in result.err
    assert result.err.count("File ") == 2
    assert result.err.endswith("dsh: failed: program.py, line 4: ValueError: what now?\n")


@pytest.mark.parametrize(
    ("program", "code", "says"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no luck')", 1, "no luck\n"),
        ("spawn('x', model='nowhere/m')", 2, "dsh: usage: program.py, line 3: there is no provider"),
        ("spawn('x', modle='m')", 2, "did you mean 'model'?"),
        ("spawn('x', check=True, schema={'const': 1}, schema_retries=0)", 5, "dsh: schema: program.py, line"),
        ("raise KeyError('k')", 1, "KeyError: 'k'\n"),
    ],
)
def test_how_a_program_ends_is_the_exit_code(dsh: Dsh, program: str, code: int, says: str) -> None:
    dsh.server.script(T("no"))
    result = run(dsh, program)
    assert result.code == code, result.err
    assert (says in result.err) if says else result.err == ""
    if says.startswith("dsh: "):
        assert ONE_LINE.match(result.err)


@pytest.mark.parametrize("program", [None, "def broken(:\n", "\0"])
def test_what_is_no_program_is_refused(dsh: Dsh, program: str | None) -> None:
    if program is not None:
        (dsh.cwd / "program.py").write_text(program)
    result = dsh.call("script", "program.py")
    assert result.code == 2 and ONE_LINE.match(result.err), result.err


def test_one_pool_limits_all_agents_of_the_program(dsh: Dsh) -> None:
    dsh.server.script(*(T("ok") for _ in range(9)), after="repeat")
    program = "print([spawn('x').reason for _ in range(4)])\nprint([e.reason for e in gather('a', 'b')])\n"
    result = run(dsh, program, options=("--max-steps", "3", "--result-file", "end.json"))
    assert result.code == 0, result.err
    assert result.out == "['completed', 'completed', 'completed', 'max_steps']\n['max_steps', 'max_steps']\n"
    end = json.loads((dsh.cwd / "end.json").read_text())
    assert (end["type"], end["status"], end["agents"], end["steps"]) == ("script.end", "completed", 6, 3)
    assert dsh.server.count() == 3
    result = run(dsh, "spawn('a'); spawn('b'); spawn('c')\n", options=("--max-agents", "2"))
    assert (result.code, dsh.server.count()) == (4, 5)
    assert "dsh: limit: program.py, line 3: --max-agents 2" in result.err


def test_a_program_may_close_standard_output(dsh: Dsh) -> None:
    result = run(dsh, "import sys\nprint('before')\nsys.stdout.close()\n")
    assert (result.code, result.out, result.err) == (0, "before\n", "")


@pytest.mark.parametrize(
    ("value", "code", "told"),
    [("0", 0, "completed"), ("3", 3, "the program exited with 3"), ("'no\\nluck'", 1, "no luck")],
)
def test_the_result_says_how_a_program_left(dsh: Dsh, value: str, code: int, told: str) -> None:
    result = run(dsh, f"import sys\nsys.exit({value})\n", options=("--result-file", "end.json"))
    end = json.loads((dsh.cwd / "end.json").read_text())
    assert (result.code, end["exit_code"], end["message"]) == (code, code, told)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_program_and_all_of_its_agents(dsh: Dsh, number: signal.Signals, code: int) -> None:
    dsh.server.script(C("bash", {"command": "sleep 300"}), after="repeat")
    program = "try:\n    gather('a', 'b')\nfinally:\n    print('cleaned up', flush=True)\n"
    running = dsh.start("script", "-m", dsh.model, "--result-file", "end.json", write(dsh, program))
    dsh.server.wait_for_ends(2)
    running.send_signal(number)
    result = running.wait(12)
    assert (result.code, result.out) == (code, "cleaned up\n"), result.err
    assert ONE_LINE.match(result.err) and signal.Signals(number).name in result.err
    assert json.loads((dsh.cwd / "end.json").read_text())["reason"] == "interrupted"
    assert dsh.survivors() == []


def test_a_program_that_never_waits_and_never_ends_is_ended_all_the_same(dsh: Dsh) -> None:
    program = (
        "while True:\n"
        "    try:\n"
        "        print('begun', flush=True)\n"
        "        while True: pass\n"
        "    except KeyboardInterrupt: print('no', flush=True)\n"
    )
    running = dsh.start("script", "-m", dsh.model, write(dsh, program))
    running.wait_for(lambda run: b"begun" in run._out)
    running.send_signal(signal.SIGTERM)
    running.wait_for(lambda run: b"no" in run._out)
    running.send_signal(signal.SIGTERM)
    result = running.wait(5)
    assert result.code == 143 and ONE_LINE.match(result.err)


def test_its_time_is_limited_too(dsh: Dsh) -> None:
    dsh.server.script(STALL(60), after="repeat")
    result = run(dsh, "spawn('x')\nprint('not reached')\n", options=("--timeout", "0.5"))
    assert (result.code, result.out) == (124, "")
    assert result.err == "dsh: timeout: --timeout passed\n"
    result = run(dsh, "while True: pass\n", options=("--deadline", "0.5"))
    assert (result.code, result.err) == (124, "dsh: timeout: --deadline passed\n")


def test_agents_at_work_are_told_of_a_deadline_before_it(dsh: Dsh) -> None:
    dsh.server.script(STALL(60))
    program = (
        "agent = create()\n"
        "agent.followup('x')\n"
        "for event in agent.events():\n"
        "    if event.type == 'agent/inbox/spliced' and 'The time for this run' in str(event.data): break\n"
        "print('told')\n"
    )
    result = run(dsh, program, options=("--deadline", "3"))
    assert result.out == "told\n" and result.code in (0, 124), result.err  # it may end after it was told


def test_what_a_program_wants_done_at_its_end_is_done(dsh: Dsh) -> None:
    program = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'at exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0), print('thread'))).start()\n"
    )
    result = run(dsh, program)
    assert (result.code, result.out, result.err) == (0, "thread\nat exit\n", "")


def test_limits_and_files_that_cannot_be_kept_are_refused_before_the_program_runs(dsh: Dsh) -> None:
    wrong = (("--max-cost", "1", "price"), ("--result-file", "no/where.json", "cannot write"))
    for name, value, says in wrong:
        result = run(dsh, "print('not reached')\n", options=(name, value))
        assert (result.code, result.out) == (2, "") and ONE_LINE.match(result.err), result.err
        assert says in result.err


def test_no_agent_outlives_the_program(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "sleep 300"}))
    program = (
        "import threading\n"
        "agent, called = create(), threading.Event()\n"
        "agent._scope.observe('session/event', lambda e: called.set() if e.type == 'tool/call' else None)\n"
        "agent.followup('x'); called.wait()\n"
    )
    result = run(dsh, program)
    assert (result.code, result.err) == (0, "")
    assert dsh.survivors() == []


def test_progress_says_how_many_agents_are_at_work_and_done(dsh: Dsh) -> None:
    dsh.server.script(T("ok"), after="repeat")
    result = run(dsh, "gather('a', 'b')\n", options=("--progress",))
    last = result.err.splitlines()[-1]
    assert result.code == 0 and last.startswith("dsh: 0 running | 2 done | 2 steps | 220 tokens"), result.err


def test_a_reader_that_goes_away_ends_it_with_141(dsh: Dsh) -> None:
    program = write(dsh, "while True: print('x' * 1000)\n")
    command = " ".join(dsh.command("script", program))
    shell = f"{command} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}"
    result = dsh.start(command=["bash", "-c", shell]).wait()
    assert result.code == 141, result.err


@pytest.mark.parametrize("path", example_files(), ids=lambda path: Path(path).stem)
def test_every_example_runs_with_the_demo(dsh: Dsh, path: str) -> None:
    (dsh.cwd / "a.py").write_text("print(1)\n")
    result = dsh.call("script", "-m", "scripted/demo", path, "a.py")
    assert (result.code, result.err) == (0, "")
    assert "scripted/demo" in result.out
