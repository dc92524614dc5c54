"""Tool calls of one step: barriers, the pool, the order of results, and what an early end does to them."""

from __future__ import annotations

import pytest

from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.ids import CallId
from dsh_actors.core.limits import LimitWatch
from dsh_actors.core.messages import ToolCallBlock
from dsh_actors.core.options import Limits
from dsh_actors.core.scheduling import parse_call
from dsh_actors.core.state import Counters
from dsh_actors.core.turn_env import Environment
from dsh_actors.testing.machine import MachineDriver, call_chunks


def batch(*names: str, max_parallel: int = 10, **limits: int) -> MachineDriver:
    """A turn whose reply asked for these tools; those that start with "read" may overlap."""
    env = Environment(
        CallConfig("p", "m"),
        is_parallel=lambda call: call.name.startswith("read"),
        needs_flush=lambda call: call.name.startswith("write") or call.name.endswith("!"),
        watch=LimitWatch(Limits(**limits), Counters()),
        max_parallel=max_parallel,
    )
    driver = MachineDriver(env)
    driver.deliver("hello")
    driver.settle()
    stream = driver.take(io.OpenStream)
    driver.send(io.Chunks(stream.ticket, call_chunks(*((name, "{}") for name in names))))
    return driver


def running(driver: MachineDriver) -> list[str]:
    return [effect.call.name for effect in driver.open if isinstance(effect, io.RunTool)]


def end(driver: MachineDriver, name: str, **fields: object) -> None:
    effect = next(e for e in driver.open if isinstance(e, io.RunTool) and e.call.name == name)
    driver.open.remove(effect)
    driver.send(io.ToolRan(effect.ticket, effect.index, io.ToolResult(f"of {name}", **fields)))  # type: ignore[arg-type]
    driver.settle()


def results(driver: MachineDriver) -> list[str]:
    found = (e.data["message"]["content"][0] for e in driver.log if e.type == "tool/result")
    return [block["content"][0]["text"] for block in found]


def test_results_are_committed_in_the_order_of_the_calls():
    driver = batch("read1", "read2", "read3")
    driver.settle()
    for name in ("read3", "read1", "read2"):
        end(driver, name)
    assert results(driver) == ["of read1", "of read2", "of read3"]


def test_an_exclusive_call_overlaps_nothing_and_holds_until_its_result():
    driver = batch("read1", "write", "read2")
    driver.settle()
    assert running(driver) == ["read1"]
    end(driver, "read1")
    assert running(driver) == ["write"]
    end(driver, "write")
    assert running(driver) == ["read2"]


def test_the_pool_is_filled_to_its_cap_and_refilled():
    driver = batch(*(f"read{n}" for n in range(5)), max_parallel=2)
    driver.settle()
    assert running(driver) == ["read0", "read1"]
    end(driver, "read1")
    assert running(driver) == ["read0", "read2"]


def test_a_call_that_waits_for_its_flush_counts_as_in_flight():
    driver = batch("read1!", "read2!", max_parallel=1)
    prepare = driver.take(io.PrepareTool)
    driver.send(io.ToolPrepared(prepare.ticket, prepare.index))
    assert [type(e) for e in driver.open] == [io.Flush]


def test_policy_stages_never_overlap():
    driver = batch("read1", "read2")
    first = driver.take(io.PrepareTool)
    assert not any(isinstance(e, io.PrepareTool) for e in driver.open)
    driver.send(io.ToolPrepared(first.ticket, first.index))
    assert driver.take(io.PrepareTool).call.name == "read2"


def test_only_changing_tools_wait_for_a_flush():
    driver = batch("read1")
    prepare = driver.take(io.PrepareTool)
    driver.send(io.ToolPrepared(prepare.ticket, prepare.index))
    assert [type(e) for e in driver.open] == [io.RunTool]


def test_a_result_cites_its_call_and_comes_after_the_facts_of_its_tool():
    driver = batch("write")
    driver.settle()
    end(driver, "write", events=(("todo/write", {"todos": []}),))
    kinds = [e.type for e in driver.log]
    result = next(e for e in driver.log if e.type == "tool/result")
    assert result.source_event_seqs == (kinds.index("tool/call"),)
    assert kinds[result.seq - 1] == "todo/write"


def test_an_error_concludes_nothing():
    driver = batch("write")
    driver.settle()
    end(driver, "write", is_error=True, concludes=True)
    assert not driver.ends() and any(isinstance(e, io.OpenStream) for e in driver.open)


def test_observers_hear_of_a_result_when_it_is_committed_and_as_it_is():
    driver = batch("write")
    driver.settle()
    effect = driver.take(io.RunTool)
    driver.send(io.ToolRan(effect.ticket, effect.index, io.ToolResult("secret")))
    finalise = driver.take(io.FinaliseTool)
    assert not [n for n in driver.notices if n.kind == "tools/result"]
    driver.send(io.ToolFinalised(finalise.ticket, finalise.index, io.ToolResult("censored")))
    heard = [n.payload["result"].text for n in driver.notices if n.kind == "tools/result"]
    assert heard == ["censored"]


def test_cancel_does_not_wait_for_what_changes_results():
    driver = batch("read1", "write")
    driver.settle()
    effect = driver.take(io.RunTool)
    driver.send(io.ToolRan(effect.ticket, effect.index, io.ToolResult("real")))
    finalise = driver.take(io.FinaliseTool)
    driver.send(io.Cancel({"kind": "user"}))
    assert driver.cancelled == [finalise.ticket]
    assert results(driver)[0] == "real" and "not started" in results(driver)[1]
    assert driver.ends() == [{"kind": "aborted", "reason": {"kind": "user"}}]


def test_cancel_reaches_what_runs_beside_a_refused_call():
    driver = batch("read1", "read2", max_tool_calls=1)
    driver.settle()
    effect = driver.take(io.RunTool)
    driver.send(io.Cancel({"kind": "user"}))
    assert driver.cancelled == [effect.ticket]
    driver.send(io.ToolRan(effect.ticket, effect.index, io.ToolResult("real")))
    driver.settle()
    assert results(driver)[0] == "real" and len(results(driver)) == 2
    assert driver.ends() == [{"kind": "aborted", "reason": {"kind": "user"}}]


@pytest.mark.parametrize("text", ["", "  ", '"{\\"a\\": 1}"', '{"a": 1}'])
def test_arguments_that_can_be_read(text):
    call = parse_call(ToolCallBlock(CallId("c"), "x", text))
    assert call.problem is None and call.arguments in ({}, {"a": 1})


@pytest.mark.parametrize(
    "text", ['{"a":', "null", "[1]", '"x"', '{"a":1}{"b":2}', "{'a': 1}", "NaN", "[" * 5000]
)
def test_arguments_that_cannot_be_read_are_never_run(text):
    call = parse_call(ToolCallBlock(CallId("c"), "x", text))
    assert call.arguments is None and call.problem and len(call.problem) < 400


def test_a_fact_that_only_its_tool_knows_may_be_skipped_by_readers():
    driver = batch("write")
    driver.settle()
    end(driver, "write", events=(("my/fact", {}), ("todo/write", {"todos": []})))
    marks = {e.type: e.ignorable for e in driver.log if e.type in ("my/fact", "todo/write")}
    assert marks == {"my/fact": True, "todo/write": False}
