"""What the tests of `dsh batch` share: tasks files, and the lines that come of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dsh_actors.cli.batch_schema import result_schema
from tests.cli.dsh_process import Dsh, Result

__all__ = ["Line", "by_id", "lines_of", "on", "summary", "task_ends", "write_tasks"]

Line = dict[str, Any]


def write_tasks(dsh: Dsh, *tasks: Line | bytes, name: str = "tasks.jsonl") -> str:
    """A tasks file in the working directory; bytes are a line as they are."""
    raw = [task if isinstance(task, bytes) else json.dumps(task).encode() for task in tasks]
    (dsh.cwd / name).write_bytes(b"".join(line + b"\n" for line in raw))
    return name


def on(route: str, **more: Any) -> Line:
    """A task that the scripted server answers on a route of its own, which is its id too."""
    return {"id": route, "prompt": f"Work. [[route:{route}]]", **more}


def lines_of(source: Result | Path) -> list[Line]:
    """Every result line: each is one whole JSON object, and only the first and the last are of the batch."""
    text = source.out if isinstance(source, Result) else source.read_text("utf-8")
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    assert [fault for line in lines for fault in schema_faults(line)] == []
    assert lines[0]["type"] == "batch.start"
    assert {line["type"] for line in lines} <= {"batch.start", "task.end", "batch.end"}
    return lines


def task_ends(source: Result | Path) -> list[Line]:
    return [line for line in lines_of(source) if line["type"] == "task.end"]


def by_id(source: Result | Path) -> dict[str, Line]:
    """The result of each task; no task has two."""
    ends = task_ends(source)
    found = {end["id"]: end for end in ends}
    assert len(found) == len(ends), [end["id"] for end in ends]
    return found


def summary(source: Result | Path) -> Line:
    last = lines_of(source)[-1]
    assert last["type"] == "batch.end"
    return last


def schema_faults(line: Line) -> list[str]:
    """What is wrong with the members of a line by the published schema; values are looked at by kind only."""
    for variant in result_schema()["oneOf"]:
        if variant["properties"]["type"]["const"] == line["type"]:
            known, needed = set(variant["properties"]), set(variant["required"])
            faults = [f"{name} is missing" for name in needed - set(line)]
            faults += [f"{name} is not in the schema" for name in set(line) - known]
            choices = {k: v["enum"] for k, v in variant["properties"].items() if "enum" in v and k in line}
            return faults + [f"{k} is {line[k]!r}" for k in choices if line[k] not in choices[k]]
    return [f"no line is of the type {line['type']!r}"]
