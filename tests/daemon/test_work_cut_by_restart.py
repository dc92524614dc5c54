"""What an agent had started in the background, and its run, when the process ends meanwhile."""

from __future__ import annotations

import json

import pytest

from dsh_actors.core.chunks import BlockEnd, BlockStart, Chunk, Finish, ToolCallDelta, Usage, UsageChunk
from dsh_actors.core.events import Event
from dsh_actors.core.ids import CallId
from dsh_actors.core.messages import ToolCallBlock, text_of
from dsh_actors.daemon.interrupted import read_cut_run
from tests.actors.kit import until
from tests.daemon.host_kit import answer, start_program

JOB = ("bash", {"command": "sleep 600", "background": True})
CHILD = ("agent", {"prompt": "for the child", "background": True, "description": "the child"})


def call(tool: str, arguments: dict[str, object]) -> list[Chunk]:
    text = json.dumps(arguments)
    return [
        BlockStart(0, "tool-call"),
        ToolCallDelta(0, CallId("call-1"), tool, text),
        BlockEnd(0, ToolCallBlock(CallId("call-1"), tool, text)),
        UsageChunk(Usage(10, 2)),
        Finish("tool-calls"),
    ]


def stream_of(daemon, agent_id):
    """The next request of this agent; those of its sub-agents stay without an answer."""
    while (stream := daemon.manual.next_stream(20)).request.session_id != agent_id:
        pass
    return stream


def leave_work(daemon, agent_id, work):
    """Let the agent end its turn while what it has started goes on."""
    daemon.agent("work", model="manual/m", session_id=agent_id, sandbox="off")
    stream_of(daemon, agent_id).send(*call(*work))
    last = stream_of(daemon, agent_id)
    turn_over = daemon.host.subscribe(agent_id, lambda event: ends.append(event.type))
    ends: list[str] = []
    last.send(*answer("it is at work"))
    until(lambda: "turn/end" in ends)
    turn_over()


def goes_on(daemon, agent_id):
    stream = stream_of(daemon, agent_id)
    said = text_of(stream.request.messages[-1]) + text_of(stream.request.messages[-2])
    assert "was ended with it" in said
    assert daemon.host.get(agent_id).state == "running"
    stream.send(*answer("done after all"))
    end = daemon.end(agent_id)
    assert (end.reason, end.answer, end.turns) == ("completed", "done after all", 2)


@pytest.mark.parametrize("work", [JOB, CHILD], ids=["job", "sub-agent"])
def test_an_agent_whose_background_work_a_stop_has_cut_goes_on(daemon, work):
    leave_work(daemon, "one", work)
    assert daemon.host.wait(["one"], timeout=0.0) == {}
    daemon.close()
    daemon.open()
    goes_on(daemon, "one")


@pytest.mark.parametrize("work", [JOB, CHILD], ids=["job", "sub-agent"])
def test_an_agent_that_shall_sleep_after_a_stop_did_not_complete_with_work_left(make_daemon, work):
    daemon = make_daemon(restart="sleep")
    leave_work(daemon, "one", work)
    daemon.close()
    daemon.open()
    assert daemon.end("one").reason == "interrupted"


_KILLED = """
import sys
from pathlib import Path
from tests.actors.kit import until
from tests.daemon.host_kit import Daemon
from tests.daemon.test_work_cut_by_restart import CHILD, JOB, leave_work
daemon = Daemon(Path(sys.argv[1]))
leave_work(daemon, "job", JOB)
leave_work(daemon, "child", CHILD)
daemon.harness.flush("job")
daemon.harness.flush("child")
print("ready", flush=True)
sys.stdin.read()
"""


def test_an_agent_whose_background_work_a_kill_has_cut_goes_on(make_daemon, tmp_path):
    with start_program(_KILLED, tmp_path) as process:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
        process.kill()
    daemon = make_daemon()
    found = [daemon.manual.next_stream(20) for _ in range(2)]
    streams = {stream.request.session_id: stream for stream in found}
    assert set(streams) == {"job", "child"}
    for agent_id, stream in streams.items():
        stream.send(*answer("done after all"))
        end = daemon.end(agent_id)
        assert (end.reason, end.answer) == ("completed", "done after all")


def left_of(*kinds):
    """What is left after these events."""
    data = {
        "turn/start": {"turn": 1},
        "turn/end": {"turn": 1, "reason": {"kind": "completed"}},
        "job/started": {"id": "j", "kind": "bash", "label": "make"},
        "job/ended": {"id": "j", "status": "exited", "detail": "", "durationMs": 0},
    }
    events = [Event(kind, seq, 0, data[kind]) for seq, kind in enumerate(kinds)]
    return read_cut_run(events, lambda *_names: None).left


def test_work_that_ended_before_the_agent_s_last_turn_did_is_not_left():
    assert left_of("turn/start", "job/started", "turn/end") == ("j",)
    assert left_of("turn/start", "job/started", "job/ended", "turn/end") == ()
    assert left_of("turn/start", "job/started", "turn/end", "job/ended") == ("j",)
