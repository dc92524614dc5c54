"""Background jobs with the real program: cases A3, C1, C2, C4 and F12 for commands that go on."""

from __future__ import annotations

import signal

from tests.cli.dsh_process import Dsh, Event, Fifo, stream_faults
from tests.model_server import CC, C, Entry, T

HELD = "echo up > up; read line < pipe; echo got $line"
"""Says that it is up, then waits for a word and says that too."""


def job(command: str, **more: object) -> Entry:
    return C("bash", {"command": command, "background": True, **more})


def facts(events: list[Event]) -> list[tuple[str, str, str | None]]:
    """(type, id, status) of what the log says of jobs."""
    kinds = ("job/started", "job/ended")
    return [(e["type"], e["data"]["id"], e["data"].get("status")) for e in events if e["type"] in kinds]


def test_a3_a_job_holds_the_run_open_and_its_end_begins_another_turn(dsh: Dsh) -> None:
    dsh.server.script(job(HELD), T("waiting"), T("done"))
    with Fifo(dsh.cwd / "pipe") as pipe, Fifo(dsh.cwd / "up") as up:
        running = dsh.begin("--json", "x")
        assert up.read() == "up\n"
        running.wait_for_event("turn/end")
        assert dsh.server.count() == 2
        pipe.write("word\n")
        result = running.wait()
    assert (result.code, result.end["answer"], result.end["turns"]) == (0, "done", 2)
    assert result.end["abandoned"] == [] and stream_faults(result.events) == []
    started, _, told = dsh.requests_with_stable_prefix()
    (answer,) = dsh.requests()[1].results.values()
    assert "bash-1" in answer
    assert "bash-1 has ended: exit code 0" in told.messages[-1]["content"]
    assert told.messages[-1]["content"].endswith("got word\n")
    assert facts(result.events) == [("job/started", "bash-1", None), ("job/ended", "bash-1", "completed")]
    assert started.messages[-1]["role"] == "user" and dsh.survivors() == []


def test_a3_what_no_wait_gives_up_is_named_and_killed(dsh: Dsh) -> None:
    dsh.server.script(job("sleep 99"), T("waiting"))
    result = dsh.run("--json", "--no-wait", "x")
    assert (result.code, result.end["reason"], result.end["abandoned"]) == (4, "abandoned", ["bash-1"])
    assert facts(result.events)[-1] == ("job/ended", "bash-1", "killed")
    assert dsh.survivors() == [] and dsh.server.count() == 2


def test_a3_a_run_that_ends_without_reading_of_a_job_is_not_green(dsh: Dsh) -> None:
    # Three ends in a row wake the agent; the fourth must wait for somebody to speak.
    dsh.server.script(*(entry for n in range(4) for entry in (job(HELD), T(f"turn {n}"))))
    with Fifo(dsh.cwd / "pipe") as pipe, Fifo(dsh.cwd / "up") as up:
        running = dsh.begin("--json", "x")
        for number in range(1, 5):
            up.read()
            running.wait_for_event("turn/end", number)
            pipe.write("word\n")
        result = running.wait()
    assert (result.code, result.end["reason"]) == (4, "abandoned")
    assert "bash-4" in result.end["message"] and dsh.server.count() == 8
    assert dsh.survivors() == []


def test_several_jobs_that_end_one_by_one_are_all_heard_of(dsh: Dsh) -> None:
    calls = [
        ("bash", {"command": f"echo up > up; read line < pipe{n}", "background": True}) for n in range(5)
    ]
    dsh.server.script(CC(*calls), T("waiting"), T("one"), T("two"), T("the rest"))
    pipes = [Fifo(dsh.cwd / f"pipe{n}") for n in range(5)]
    with Fifo(dsh.cwd / "up") as up:
        running = dsh.begin("--json", "x")
        ups = ""
        while ups.count("up") < 5:
            ups += up.read()
        running.wait_for_event("turn/end")
        for number, pipe in enumerate(pipes, 1):
            pipe.write("go\n")
            running.wait_for_event("job/ended", number)
            if number <= 2:
                running.wait_for_event("turn/end", number + 1)
        result = running.wait()
    assert (result.code, result.end["answer"]) == (0, "the rest")
    last = dsh.requests()[-1].text
    assert all(f"bash-{number} has ended" in last for number in range(1, 6))


def test_c1_c2_what_jobs_leave_behind_holds_nothing_and_time_ends_all_of_one(dsh: Dsh) -> None:
    endless = "echo begun; (exec sleep 600) | cat & setsid sleep 600 & sleep 600"
    calls = [
        ("bash", {"command": "sleep 600 & echo hi", "background": True}),
        ("bash", {"command": endless, "background": True, "timeout_s": 1}),
    ]
    dsh.server.script(CC(*calls), T("done"), after="repeat")
    result = dsh.run("x")
    assert (result.code, result.out) == (0, "done\n")
    told = [str(message["content"]) for message in dsh.requests()[-1].messages]
    (first,) = [text for text in told if "bash-1 has ended" in text]
    (second,) = [text for text in told if "bash-2 has ended" in text]
    assert "still running" in first and first.endswith("hi\n")
    assert "timed out after 1 s" in second and second.endswith("begun\n")
    assert dsh.survivors() == []


def test_c4_a_signal_gives_jobs_their_time_to_end(dsh: Dsh) -> None:
    command = "trap 'touch ok; exit' TERM; echo up > up; read line < pipe"
    dsh.server.script(job(command), T("waiting"))
    with Fifo(dsh.cwd / "pipe"), Fifo(dsh.cwd / "up") as up:
        running = dsh.begin("--json", "--session-id", "s", "x")
        up.read()
        running.wait_for_event("turn/end")
        running.send_signal(signal.SIGTERM)
        result = running.wait()
    assert (result.code, result.end["reason"]) == (143, "interrupted")
    assert result.end["abandoned"] == ["bash-1"]
    assert (dsh.cwd / "ok").exists() and dsh.survivors() == []
    dsh.server.extend(T("again"))
    assert dsh.run("--resume", "s", "y").out == "again\n"
    assert "were running when" not in dsh.requests()[-1].text  # it ended in order


def test_c4_jobs_die_with_a_killed_program_and_are_reported_on_resume(dsh: Dsh) -> None:
    dsh.server.script(job(HELD), job("sleep 98"), T("waiting", hold="never"), T("again"))
    with Fifo(dsh.cwd / "pipe"), Fifo(dsh.cwd / "up") as up:
        running = dsh.begin("--session-id", "s", "x")
        up.read()
        dsh.server.wait_for_requests(3)
        running.kill()
        assert dsh.survivors() == []
    result = dsh.run("--json", "--resume", "s", "y")
    assert (result.code, result.end["answer"]) == (0, "again")
    said = [message["content"] for message in dsh.requests()[-1].messages if message["role"] == "user"]
    (told,) = [text for text in said if "were running when" in text]
    assert "bash-1: echo up" in told and "bash-2: sleep 98" in told
    unknown = [("job/ended", "bash-1", "unknown"), ("job/ended", "bash-2", "unknown")]
    assert facts(result.events) == unknown


def test_one_request_waits_and_one_stops_and_no_end_is_told_twice(dsh: Dsh) -> None:
    dsh.server.script(
        CC(
            ("bash", {"command": HELD, "background": True}),
            ("bash", {"command": "setsid sleep 600 & sleep 600", "background": True}),
        ),
        C("job_wait", {"ids": ["bash-1"]}),
        C("job_stop", {"id": "bash-2"}),
        T("done"),
    )
    with Fifo(dsh.cwd / "pipe") as pipe, Fifo(dsh.cwd / "up") as up:
        running = dsh.begin("--json", "x")
        up.read()
        running.wait_for_event("tool/call", 3)
        pipe.write("word\n")
        result = running.wait()
    assert (result.code, result.end["turns"], dsh.server.count()) == (0, 1, 4)
    *_, waited, stopped = dsh.requests()[-1].results.values()
    assert waited.startswith("got word\n[bash-1 has ended: exit code 0")
    assert "[bash-2 has ended: stopped" in stopped
    assert dsh.survivors() == []


def test_f12_a_sub_agent_is_not_done_before_its_job_is(dsh: Dsh) -> None:
    dsh.server.script(
        C("agent", {"prompt": "run it"}), job(HELD), T("started"), T("the job said: got word"), T("sum")
    )
    with Fifo(dsh.cwd / "pipe") as pipe, Fifo(dsh.cwd / "up") as up:
        running = dsh.begin("--json", "x")
        up.read()
        dsh.server.wait_for_ends(3)
        pipe.write("word\n")
        result = running.wait()
    assert (result.code, result.end["answer"]) == (0, "sum")
    requests = dsh.requests()
    assert len(requests) == 5  # nobody asked again and again
    assert "got word" in requests[3].messages[-1]["content"]
    assert list(requests[4].results.values()) == ["the job said: got word"]
    assert dsh.survivors() == []


def test_the_key_is_in_no_output_however_it_is_read(dsh: Dsh) -> None:
    key = dsh.env["OPENAI_API_KEY"]
    (dsh.cwd / "key").write_text(key)
    half = len(key) // 2
    command = f"head -c {half} key; echo up > up; read line < pipe; tail -c +{half + 1} key; echo; cat key"
    dsh.server.script(job(command), C("job_output", {"id": "bash-1"}), T("waiting"), T("done"))
    with Fifo(dsh.cwd / "pipe") as pipe, Fifo(dsh.cwd / "up") as up:
        running = dsh.begin("--json", "x")
        up.read()
        running.wait_for_event("turn/end")
        pipe.write("go\n")
        result = running.wait()
    assert (result.code, result.end["answer"]) == (0, "done")
    told = dsh.requests()[-1].messages[-1]["content"]
    assert told.count("[redacted:") == 2
    assert key[:half] not in result.out + dsh.stored_text() + told
