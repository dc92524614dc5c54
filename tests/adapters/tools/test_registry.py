"""The set of built-in tools: names, schemas, size and selection."""

from __future__ import annotations

import json

import pytest

from dsh_actors.adapters.tools.registry import builtin_tools, select_tools
from dsh_actors.core.schema import check_schema
from dsh_actors.errors import UsageError

PARAMETERS = {
    "bash": {"command", "timeout_s", "background", "description"},
    "edit": {"path", "old", "new", "all"},
    "glob": {"pattern", "path"},
    "grep": {"pattern", "path", "glob", "ignore_case", "context", "limit"},
    "job_list": set(),
    "job_output": {"id", "timeout_s"},
    "job_stop": {"id"},
    "job_wait": {"ids", "any", "timeout_s"},
    "read": {"path", "offset", "limit"},
    "todo_write": {"todos"},
    "write": {"path", "content"},
}
TOOLS = builtin_tools()


def names(*arguments: object) -> list[str]:
    return [tool.spec.name for tool in select_tools(TOOLS, *arguments)]  # type: ignore[arg-type]


def test_the_tools_have_their_names_and_parameters_in_order() -> None:
    assert [tool.spec.name for tool in TOOLS] == sorted(PARAMETERS)
    for tool in TOOLS:
        assert set(tool.spec.parameters["properties"]) <= PARAMETERS[tool.spec.name]


def test_every_schema_is_in_the_subset_and_all_are_small() -> None:
    schemas = []
    for tool in TOOLS:
        assert check_schema(tool.spec.parameters) == []
        schemas.append([tool.spec.name, tool.spec.description, tool.spec.parameters])
    assert len(json.dumps(schemas).encode()) < 5000


def test_what_changes_nothing_says_so_and_reads_may_run_together() -> None:
    changes = {tool.spec.name for tool in TOOLS if tool.spec.changes}
    assert changes == {"bash", "edit", "write"}
    parallel = {tool.spec.name for tool in TOOLS if tool.is_parallel({})}
    assert {"read", "glob", "grep", "job_wait"} <= parallel
    assert parallel.isdisjoint({"edit", "write", "todo_write"})


def test_tools_are_chosen_by_name_and_taken_away() -> None:
    assert names(None, ()) == sorted(PARAMETERS)
    assert names(["read", "bash"], ()) == ["bash", "read"]
    assert names(None, ["bash"]) == sorted(set(PARAMETERS) - {"bash"})
    assert names(["read", "bash"], ["bash"]) == ["read"]
    assert names([], ()) == []


def test_an_unknown_name_is_a_usage_error_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"--tools: no tool is called 'reed'; did you mean 'read'\?"):
        names(["reed"], ())
    with pytest.raises(UsageError, match=r"--deny-tools: no tool is called 'qqq'; there are bash, edit"):
        names(None, ["qqq"])
