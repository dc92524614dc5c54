"""A batch beside faults that no line can cause: agents that die, providers and storage that raise."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from dsh_actors.cli.batch import BATCH_PARAMETERS, BatchArguments
from dsh_actors.cli.batch_attempts import Attempts
from dsh_actors.cli.batch_input import LineReader
from dsh_actors.cli.batch_output import Earlier, ResultFile, StandardOutput
from dsh_actors.cli.batch_run import Batch, BatchSettings
from dsh_actors.cli.batch_tasks import LineReading, TaskPlanner
from dsh_actors.config import load_config
from dsh_actors.core.batch import Spending
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import StorageError, StorageFull
from dsh_actors.harness import Harness
from dsh_actors.runtime.files import run_native
from dsh_actors.testing.machine import text_chunks
from dsh_actors.testing.manual import ManualProvider
from tests.actors.kit import until


class Stage:
    """A batch in this process, with a model that the test plays by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = ManualProvider()
        config = load_config(env={"DSH_HOME": str(root / "home")}, cwd=str(root))
        self.harness = Harness.open(config, providers={"manual": self.model})
        self.results: list[JsonObject] = []

    def put(self, line: JsonObject) -> None:
        self.results.append(line)

    def finish(self) -> bool:
        return True

    def batch(self, *tasks: JsonObject, jobs: int = 8) -> tuple[Batch, threading.Thread]:
        seen: dict[str, Any] = {}
        command = click.Command("batch", params=BATCH_PARAMETERS, callback=lambda **given: seen.update(given))
        with command.make_context("batch", ["-m", "manual/m", "--max-retries", "0", "tasks"]) as context:
            command.invoke(context)
        planner = TaskPlanner(BatchArguments.of(seen).run, self.harness.config, self.harness.storage)
        file = self.root / "tasks.jsonl"
        file.write_text("".join(json.dumps(task) + "\n" for task in tasks))
        attempts = Attempts(self.harness, "b", planner.plan, looks=False)
        settings = BatchSettings("b", jobs)
        whole = Batch(self.harness, settings, attempts, self, Earlier(), Spending(None, None))

        def run() -> None:
            descriptor = os.open(file, os.O_RDONLY)
            reader = LineReader(descriptor)
            whole.run(reader, LineReading(planner))
            reader.close()
            os.close(descriptor)

        thread = threading.Thread(target=run)
        thread.start()
        return whole, thread

    def statuses(self) -> dict[str, str]:
        assert len({line["id"] for line in self.results}) == len(self.results)
        return {line["id"]: line["status"] for line in self.results}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.harness.close()


def task(name: str) -> JsonObject:
    return {"id": name, "prompt": name}


def test_a_task_whose_agent_dies_or_whose_provider_or_storage_fails_is_alone_with_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = stage.harness.storage.create

    def refusing(header: Any) -> Any:
        if header.id == "batch-b-unstored":
            raise StorageFull("there is no room")
        return create(header)

    monkeypatch.setattr(stage.harness.storage, "create", refusing)
    names = ("dying", "raising", "unstored", "one", "two")
    whole, thread = stage.batch(*map(task, names))
    streams = {}
    while len(streams) < 4:
        stream = stage.model.next_stream()
        session = stream.request.messages[-1].id.partition(":")[0]
        streams[session.removeprefix("batch-b-")] = stream
    dying = next(agent for agent in stage.harness.agents() if agent.id == "batch-b-dying")
    for _ in range(4):
        ref = dying._address.ref
        if ref is None:
            break
        ref.tell(object())  # no actor understands it
        until(lambda: dying._address.ref is not ref)  # noqa: B023  asked at once
    streams["raising"].fail(RuntimeError("a fault of the provider"))
    for name in ("one", "two"):
        streams[name].send(*text_chunks(f"answer {name}"))
    thread.join(20)
    assert not thread.is_alive() and whole.stopped is None
    assert stage.statuses() == {
        **dict.fromkeys(("dying", "raising", "unstored"), "failed"),
        **dict.fromkeys(("one", "two"), "completed"),
    }
    assert whole.running == {} and stage.harness.agents() == []


def test_a_harness_that_has_failed_ends_the_batch_instead_of_failing_every_task(stage: Stage) -> None:
    stage.harness._supervisor.stop(timeout=10)
    whole, thread = stage.batch(*(task(str(number)) for number in range(100)), jobs=1)
    thread.join(20)
    assert not thread.is_alive()
    assert whole.stopped is not None and whole.stopped.reason == "internal"
    assert len(stage.results) == 1


def test_a_result_line_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results.jsonl"
    output = ResultFile(str(path))
    output.put({"type": "batch.start", "name": "b"})
    done = {"type": "task.end", "id": "a", "line": 1, "digest": "d", "status": "completed", "attempt": 1}
    output.put(done)
    whole = path.read_bytes()
    write = os.write

    def failing(descriptor: int, data: Any) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(descriptor, data[:-10])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", failing)
        with pytest.raises(StorageError):
            output.put({**done, "id": "b"})
    assert path.read_bytes() == whole
    output.close()
    path.write_bytes(whole + b'{"type":"task.end","id":"c","li')
    again = ResultFile(str(path))
    earlier = again.earlier()
    again.close()
    assert path.read_bytes() == whole, "what a kill has cut is gone"
    assert earlier.name == "b" and set(earlier.finished) == {"a"}


def test_everybody_whose_line_could_not_be_written_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = ResultFile(str(tmp_path / "results.jsonl"))
    output.put({"type": "batch.start", "name": "b"})
    ends: list[object] = []

    def put(number: int) -> None:
        try:
            ends.append(output.put({"number": number}))
        except StorageError as error:
            ends.append(type(error))

    def failing(descriptor: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    threads = [threading.Thread(target=put, args=(number,)) for number in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", failing)
        with output._lock:
            for thread in threads:
                thread.start()
            until(lambda: len(output._pending) == 3)
        for thread in threads:
            thread.join(20)
    assert ends == [StorageFull] * 3
    output.close()


def test_a_reader_that_reads_nothing_is_waited_for_until_a_signal_says_otherwise() -> None:
    reading, writing = os.pipe()
    sink = StandardOutput(lambda: None, writing)
    ends: list[bool] = []

    def deliver() -> None:
        for number in range(40):
            sink.put({"number": number, "text": "x" * (512 << 10)})
        ends.append(sink.finish())

    thread = threading.Thread(target=deliver)
    thread.start()
    assert run_native(os.read, reading, 12) == b'{"number":0,'
    thread.join(0.05)
    assert thread.is_alive() and ends == [], "more than the queue holds was taken"
    sink.give_up_at = time.monotonic()
    thread.join(10)
    assert ends == [False]
    os.close(reading)
    until(lambda: sink.error is not None)
    os.close(writing)


def test_lines_are_read_as_they_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b"".join(b'{"prompt": "task %d"}\n' % number for number in range(100_000)))
    descriptor = os.open(path, os.O_RDONLY)
    reader = LineReader(descriptor)
    lines = iter(reader)
    first = [next(lines) for _ in range(10)]
    assert [line.number for line in first] == list(range(1, 11))
    assert os.lseek(descriptor, 0, os.SEEK_CUR) <= 256 << 10
    assert first[-1].read_share is not None and first[-1].read_share < 0.001
    rest = list(lines)
    assert len(rest) == 99_990 and rest[-1].number == 100_000 and rest[-1].read_share == 1.0
    reader.close()
    os.close(descriptor)


def test_a_reader_that_waits_can_be_stopped() -> None:
    reading, writing = os.pipe()
    reader = LineReader(reading)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(line.number for line in reader))
    thread.start()
    os.write(writing, b"1\n2\nand no end")
    until(lambda: found == [1, 2])
    reader.stop()
    thread.join(10)
    assert not thread.is_alive() and found == [1, 2]
    reader.close()
    for descriptor in (reading, writing):
        os.close(descriptor)
