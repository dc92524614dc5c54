"""What a daemon finds when it starts again: after an orderly end, and after none."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from shutil import rmtree

import pytest
from gevent.event import Event
from gevent.monkey import get_original

from dsh_actors.core.messages import UserSource, text_of
from dsh_actors.core.options import AgentOptions, LimitBase, Limits
from dsh_actors.core.policy import ApprovalPolicy, Rule
from dsh_actors.daemon.kept_options import options_from_json, options_to_json
from dsh_actors.daemon.registry import Change, Registry
from dsh_actors.errors import HostFull, SessionBusy
from dsh_actors.runtime.files import DEFAULT_POOL_SIZE, run_native
from dsh_actors.runtime.tasks import deadline
from dsh_actors.runtime.timers import after
from tests.actors.kit import until
from tests.daemon.host_kit import Daemon, answer, at_once, start_program


def user_texts(request):
    return [text_of(m) for m in request.messages if isinstance(m.source, UserSource)]


def test_a_run_that_an_orderly_end_has_cut_goes_on_after_the_start(daemon):
    done, one = daemon.agent("hello"), daemon.agent("work", model="manual/m")
    daemon.end(done)
    daemon.manual.next_stream()
    daemon.host.deliver(one, "and then this")
    daemon.close()
    daemon.open()
    stream = daemon.manual.next_stream()
    assert daemon.states() == {done: "asleep", one: "running"}
    said = user_texts(stream.request)
    assert (said[0], said[2]) == ("work", "and then this")
    assert "Go on with the task" in said[1]
    stream.send(*answer("all done"))
    end = daemon.end(one)
    assert (end.answer, end.turns, end.reason) == ("all done", 2, "completed")


def test_a_run_that_was_cut_while_a_job_went_on_behind_it_goes_on_after_the_start(daemon):
    one = daemon.agent("work", model="manual/m")
    stream = daemon.manual.next_stream()
    work = daemon.harness.work
    item = work.add(one, "bash-1", "bash", "make", lambda: work.release(item))
    daemon.host._table.live[one].handle.record(
        "job/started", {"id": "bash-1", "kind": "bash", "label": "make"}, ignorable=True
    )
    stream.send(*answer("waiting"))
    until(lambda: not daemon.host._table.live[one].is_running)
    daemon.close()
    daemon.open()
    daemon.manual.next_stream().send(*answer("all done"))
    end = daemon.end(one)
    assert (end.answer, end.turns, end.reason) == ("all done", 2, "completed")


def test_an_orderly_end_may_wait_for_what_runs(daemon):
    one = daemon.agent("work", model="manual/m")
    stream = daemon.manual.next_stream()
    stream.send(*answer("done"))
    daemon.host.close(drain_s=20.0)
    daemon.close()
    daemon.open()
    info = daemon.host.get(one)
    assert (info.state, info.last_end["answer"]) == ("asleep", "done")


def test_cut_runs_wait_for_room_and_nobody_waits_for_them(make_daemon):
    daemon = make_daemon(max_live=2)
    ids = [daemon.agent(f"work {n}", model="manual/m") for n in range(2)]
    for _ in ids:
        daemon.manual.next_stream()
    daemon.close()
    daemon.open(max_live=1)
    first = daemon.manual.next_stream()
    assert set(daemon.states().values()) == {"running"}
    later = next(agent_id for agent_id in ids if agent_id != first.request.session_id)
    with pytest.raises(HostFull):
        daemon.host.deliver(later, "are you there?")
    assert daemon.host.wait([later], timeout=0.01) == {}
    first.send(*answer("one"))
    second = daemon.manual.next_stream()
    assert second.request.session_id == later
    second.send(*answer("two"))
    assert [daemon.end(agent_id).answer for agent_id in ids] in (["one", "two"], ["two", "one"])


def test_nobody_waits_beyond_the_end_of_the_host(make_daemon):
    daemon = make_daemon(max_live=1, admission_wait_s=60.0)
    one = daemon.agent("work", model="manual/m")
    daemon.manual.next_stream()

    def close():
        until(lambda: daemon.host._table.room._waiting and daemon.host._table.waits._by_id)
        daemon.host.close()

    ends, refused, _ = at_once(lambda: daemon.host.wait([one]), daemon.agent, close)
    assert ends == {}
    assert isinstance(refused, HostFull)


def test_cut_runs_may_be_left_asleep(make_daemon):
    daemon = make_daemon(restart="sleep")
    one = daemon.agent("work", model="manual/m")
    daemon.manual.next_stream()
    daemon.close()
    daemon.open()
    info = daemon.host.get(one)
    assert (info.state, info.last_end["reason"]) == ("asleep", "interrupted")
    assert daemon.end(one).reason == "interrupted"
    assert daemon.harness.agents() == []
    daemon.host.deliver(one, "what now?")
    daemon.manual.next_stream().send(*answer("this"))
    assert daemon.end(one).answer == "this"


def test_a_second_daemon_of_the_same_home_is_refused(daemon, tmp_path):
    with pytest.raises(SessionBusy, match="in use") as caught:
        Daemon(tmp_path)
    assert "one daemon" in caught.value.hint


_KILLED = """
import sys
from pathlib import Path
from tests.daemon.host_kit import Daemon, answer
daemon = Daemon(Path(sys.argv[1]))
daemon.agent(session_id="silent")
daemon.agent("hello", session_id="done")
daemon.end("done")
daemon.agent("hello", session_id="asleep")
daemon.end("asleep")
daemon.lay_down("asleep")
for n in range(3):
    daemon.agent(f"work {n}", session_id=f"busy-{n}", model="manual/m", limits={"max_steps": 2})
    daemon.manual.next_stream()
daemon.agent("work", session_id="damaged", model="manual/m")
daemon.manual.next_stream()
print("ready", flush=True)
daemon.manual.next_stream(60)
"""


def test_after_a_kill_no_agent_is_lost_and_none_runs_twice(make_daemon, tmp_path):
    process = start_program(_KILLED, tmp_path)
    with process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        process.kill()
    folder = next((tmp_path / "home" / "sessions").rglob("damaged"))
    log = next((folder / "log").iterdir())
    log.write_bytes(b"\0" * 400 + log.read_bytes()[400:])
    daemon = make_daemon()
    busy = {f"busy-{n}" for n in range(3)}
    streams = [daemon.manual.next_stream() for _ in busy]
    until(lambda: daemon.host.get("damaged").state == "failed")
    assert daemon.states() == {
        "asleep": "asleep", "damaged": "failed", "done": "asleep", "silent": "asleep"
    } | dict.fromkeys(busy, "running")
    assert {stream.request.session_id for stream in streams} == busy
    for stream in streams:
        stream.send(*answer("done"))
    for agent_id in busy:
        end = daemon.end(agent_id)
        assert (end.answer, end.turns) == ("done", 2)
        starts = [event for event in daemon.host.events(agent_id) if event.type == "turn/start"]
        assert len(starts) == 2, "the one that was cut and the one that went on"
        daemon.host.deliver(agent_id, "more")
        assert daemon.end(agent_id).reason == "max_steps", "the limit counts on, too"
    assert daemon.manual.sent.empty()
    daemon.host.deliver("silent", "hello")
    assert daemon.end("silent").answer == "echo: hello"


def test_rows_are_written_though_no_native_thread_was_free_when_they_were_due(daemon):
    one = daemon.agent("hello")
    daemon.end(one)
    writer = daemon.host._table.writer
    pipes = [os.pipe() for _ in range(DEFAULT_POOL_SIZE)]
    native_read = get_original("os", "read")
    with deadline(20.0):
        held = [partial(run_native, native_read, reader, 1) for reader, _ in pipes]

        def release():
            writer.note(daemon.host._table.live[one].row)
            due = Event()
            after(0.0, lambda: (writer._window_over(), due.set()))
            due.wait()
            for _, end in pipes:
                os.write(end, b"x")

        assert at_once(*held, release)[:-1] == [b"x"] * DEFAULT_POOL_SIZE
        writer.flush()
    for pipe in pipes:
        os.close(pipe[0]), os.close(pipe[1])


def test_an_agent_whose_session_is_in_use_at_the_start_sleeps_until_it_is_spoken_to(daemon):
    one = daemon.agent("work", model="manual/m")
    daemon.manual.next_stream()
    daemon.close()
    other = daemon.harness.storage.open(one)
    daemon.open()
    until(lambda: daemon.host.get(one).state == "asleep")
    assert "in use" in daemon.host.get(one).error
    other.close()
    daemon.host.deliver(one, "go on")
    stream = daemon.manual.next_stream()
    assert "Go on with the task" in user_texts(stream.request)[1]
    daemon.host.cancel(one)
    daemon.end(one)


def test_options_are_kept_whole_and_what_is_new_has_its_default():
    policy = ApprovalPolicy("rules", (Rule("deny", "bash", "rm *", None, "no"),), "allow", "rules.toml")
    options = AgentOptions(
        "echo/m",
        "/work",
        tools=("read",),
        deny_tools=("bash",),
        add_dirs=("/a", "/b"),
        policy=policy,
        limits=Limits(max_steps=3, max_cost=0.5),
    )
    base = LimitBase(1, 2, 3, 0.25)
    kept = options_from_json(options_to_json(options), base)
    assert kept.limit_base == base
    assert options_to_json(kept) == options_to_json(options)
    assert (kept.tools, kept.add_dirs, kept.policy, kept.limits) == (
        ("read",),
        ("/a", "/b"),
        policy,
        options.limits,
    )
    assert options_from_json('{"model": "m", "cwd": "/w", "unheard": 1}') == AgentOptions("m", "/w")


def test_no_secret_is_in_the_table(make_daemon, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789")
    daemon = make_daemon()
    daemon.end(daemon.agent("hello"))
    daemon.close()
    place = Path(tmp_path, "home", "daemon")
    stored = b"".join(path.read_bytes() for path in place.iterdir())
    assert b"hello" in stored
    assert b"canary" not in stored
    assert (place / "agents.sqlite3").stat().st_mode & 0o077 == 0
    assert place.stat().st_mode & 0o077 == 0


def as_after_a_kill(daemon, agent_id, **changes):
    """Let the table say of an agent what it says when the process died in a run of it."""
    registry = Registry(str(daemon.home))
    run_native(registry.open)
    row = run_native(registry.read, agent_id)
    row.state = "running"
    for name, value in changes.items():
        setattr(row, name, value)
    run_native(registry.write, [Change.of(row)])
    run_native(registry.close)


def test_the_time_that_a_run_took_before_it_was_cut_counts(daemon):
    one = daemon.agent("work", model="manual/m")
    daemon.manual.next_stream()
    daemon.close()
    as_after_a_kill(daemon, one, run_ms=3_600_000)
    daemon.open()
    daemon.manual.next_stream().send(*answer("done"))
    assert 3_600_000 <= daemon.end(one).duration_ms < 3_700_000


def test_a_message_whose_turn_had_not_begun_at_a_kill_gets_its_turn(daemon):
    one = daemon.agent("first", model="manual/m")
    daemon.manual.next_stream().send(*answer("one"))
    daemon.end(one)
    live = daemon.host._table.live[one]
    live.handle.inject("and then?")  # as much of a steered message as was in the log
    begin = live.next_seq - 1
    daemon.close()
    as_after_a_kill(daemon, one, run_from=begin)
    daemon.open()
    stream = daemon.manual.next_stream()
    assert user_texts(stream.request)[-1] == "and then?"
    stream.send(*answer("two"))
    assert daemon.end(one).answer == "two"


@pytest.mark.parametrize("restart", ["resume", "sleep"])
@pytest.mark.parametrize("has_log", [True, False], ids=["a later message", "the first message"])
def test_a_message_that_was_not_on_disk_at_a_kill_is_told_to_be_sent_again(make_daemon, restart, has_log):
    daemon = make_daemon(restart=restart)
    one = daemon.agent("first" if has_log else None)
    if has_log:
        daemon.end(one)
    live = daemon.host._table.live[one]
    begin, turns = live.next_seq, live.row.turn
    daemon.close()
    # The row was written with what the agent was about to do, and the log was not.
    as_after_a_kill(daemon, one, run_from=begin, turn=turns + 1, next_turn=1, title="lost")
    daemon.open(restart=restart)
    end = daemon.end(one)
    assert end.reason == "interrupted"
    if restart == "resume":
        assert "send it again" in end.message
    daemon.host.deliver(one, "again")
    end, info = daemon.end(one), daemon.host.get(one)
    assert (end.answer, info.turn, info.next_turn) == ("echo: again", turns + 1, 0)


def test_an_agent_that_had_an_answer_and_has_no_session_fails_after_a_kill(daemon, tmp_path):
    one = daemon.agent("first")
    daemon.end(one)
    daemon.close()
    rmtree(next((tmp_path / "home" / "sessions").rglob(one)))
    as_after_a_kill(daemon, one, run_from=0)
    daemon.open()
    until(lambda: daemon.host.get(one).state == "failed")
