"""What is written of the agents' rows, in which order, and what a disk that refuses does to it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dsh_actors.core.options import AgentOptions, LimitBase
from dsh_actors.core.outcome import Tokens
from dsh_actors.daemon.kept_options import options_from_json, options_to_json
from dsh_actors.daemon.live import base_to_json, limit_base_of
from dsh_actors.daemon.registry import AgentRow, Registry
from dsh_actors.daemon.row_writer import RowWriter
from dsh_actors.daemon.waking import _blank_row
from dsh_actors.errors import StorageError, StorageFull
from dsh_actors.runtime.files import run_native
from dsh_actors.runtime.tasks import deadline, start_task
from tests.actors.kit import until
from tests.daemon.host_kit import at_once, held_writes


def row_of(name: str) -> AgentRow:
    return replace(_blank_row(), id=name, state="idle", cwd="/", model="m")


@pytest.fixture
def registry(tmp_path):
    made = Registry(str(tmp_path))
    run_native(made.open)
    yield made
    run_native(made.close)


@pytest.fixture
def writer(registry):
    made = RowWriter(registry)
    made.save(row_of("one"), "{}")
    made.save(row_of("two"), "{}")
    yield made
    made.close()


def test_what_is_noted_while_a_save_waits_has_the_last_word(registry, writer):
    row = row_of("one")

    def change():
        row.state = "running"
        writer.save(replace(row, turn=1))

    def note_behind_it():
        assert writer._urgent, "the save of the other waits behind a transaction"
        row.state, row.turn = "asleep", 2
        writer.note(row)

    at_once(lambda: writer.save(row_of("two")), change, note_behind_it)
    writer.flush()
    stored = run_native(registry.read, "one")
    assert (stored.state, stored.turn) == ("asleep", 2)


def test_a_full_disk_is_tried_again_later_and_holds_nobody_up(registry, writer, monkeypatch):
    tries, write = [], registry.write

    def full(changes):
        tries.append(list(changes))
        raise StorageFull("no room")

    monkeypatch.setattr(registry, "write", full)
    row = row_of("one")
    row.title = "new"
    writer.note(row)
    with deadline(10.0):
        writer.flush()
        with pytest.raises(StorageFull):
            writer.save(row_of("two"))
    assert len(tries) <= 3, "nobody hammers at a full disk"
    assert writer.newest("one") is row
    monkeypatch.setattr(registry, "write", write)
    with deadline(10.0):
        writer.flush()
    assert run_native(registry.read, "one").title == "new"


def test_a_value_that_the_table_cannot_hold_keeps_nothing_else_from_being_written(registry, writer):
    odd, sound = row_of("one"), row_of("two")
    odd.cwd, odd.tokens, odd.error = "/caf\udce9", 10**30, "half a \ud83d"
    sound.title = "sound"
    writer.note(odd)
    writer.note(sound)
    writer.flush()
    assert run_native(registry.read, "two").title == "sound"
    stored = run_native(registry.read, "one")
    assert (stored.cwd, stored.tokens, stored.error) == ("/caf\ufffd", 2**63 - 1, "half a \ufffd")


def test_options_keep_the_name_of_a_directory_that_is_no_utf_8(writer, registry):
    options = AgentOptions("m", "/caf\udce9")
    writer.save(row_of("three"), options_to_json(options))
    assert options_from_json(run_native(registry.options, "three")).cwd == "/caf\udce9"


def test_what_a_cut_run_has_cost_counts_though_the_row_is_older():
    row = row_of("one")
    row.base, row.cost = base_to_json(LimitBase(cost=0.25)), 0.25
    known, unknown, nothing = (
        SimpleNamespace(cost=cost, tokens=Tokens(input=used))
        for cost, used in ((0.5, 9), (None, 9), (None, 0))
    )
    assert limit_base_of(row).cost == limit_base_of(row, nothing).cost == 0.25
    assert limit_base_of(row, known).cost == 0.75
    assert limit_base_of(row, unknown).cost is None, "a limit that cannot be watched is kept by stopping"
    row.base = base_to_json(LimitBase(cost=1.0))
    assert limit_base_of(row, known).cost == 1.0, "the row was newer than that"


def test_a_table_that_is_closed_takes_nothing_in(registry, writer):
    run_native(registry.close)
    with pytest.raises(StorageError, match="closed"):
        writer.save(row_of("one"))


def test_what_was_due_while_another_write_went_on_is_written_after_it(registry, writer, monkeypatch):
    began, go_on, _written = held_writes(registry, monkeypatch)
    row = replace(row_of("one"), title="new")

    def note_until_it_is_due():
        assert began.wait(20)
        writer.note(row)
        writer._timer.cancel()
        writer._window_over()
        go_on.set()

    at_once(lambda: writer.save(row_of("two")), note_until_it_is_due)
    until(lambda: run_native(registry.read, "one").title == "new")


def test_a_close_waits_for_what_is_being_saved_and_nothing_is_noted_after_it(registry, writer, monkeypatch):
    began, go_on, written = held_writes(registry, monkeypatch)

    def save_behind_it():
        assert began.wait(20)
        start_task(lambda _token: go_on.set(), lambda _end: None, name="go on")
        writer.save(row_of("two"))

    def close():
        assert began.wait(20)
        until(lambda: bool(writer._urgent))
        writer.close()
        return sorted(written)

    ends = at_once(lambda: writer.save(row_of("one")), save_behind_it, close)
    assert ends[2] == ["one", "two"]
    writer.note(row_of("one"))
    assert writer.newest("one") is None
    assert writer._timer is None
