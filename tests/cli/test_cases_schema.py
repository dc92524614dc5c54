"""Answers that must fit a schema: section B of the case collection (B5, B7, B8) and exit code 5."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.dsh_process import Dsh, Fifo, assert_failed, assert_refused
from tests.model_server import LEN, STALL, C, T

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def schema_file(dsh: Dsh, schema: Any = NUMBER, name: str = "s.json") -> str:
    path = dsh.cwd / name
    path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
    return str(path)


def system_of(request: Any) -> str:
    return str(request.messages[0]["content"])


def test_an_answer_that_fits_is_printed_and_given_as_a_value(dsh: Dsh) -> None:
    dsh.server.script(T('{"n": 7}'), T('```json\n{"n": 8}\n```'))
    plain = dsh.run("--schema", schema_file(dsh), "--result-file", "end.json", "how many?")
    assert (plain.code, plain.out, plain.err) == (0, '{"n": 7}\n', "")
    assert json.loads((dsh.cwd / "end.json").read_text())["structured"] == {"n": 7}
    fenced = dsh.run("--schema", schema_file(dsh), "-o", "answer", "how many?")
    assert (fenced.code, fenced.out) == (0, '{"n": 8}\n')
    assert (dsh.cwd / "answer").read_text() == '{"n": 8}\n'
    assert '"required":["n"]' in system_of(dsh.requests()[0])


def test_errors_go_back_to_the_model_in_the_same_turn(dsh: Dsh) -> None:
    dsh.server.script(T("seven"), T('{"n": "7"}'), T('{"n": 7}'))
    result = dsh.run("--schema", schema_file(dsh), "--json", "how many?")
    assert (result.code, result.end["structured"], result.end["answer"]) == (0, {"n": 7}, '{"n": 7}')
    assert (result.end["turns"], result.end["steps"]) == (1, 3)
    assert [event["data"]["attempt"] for event in result.of("answer/rejected")] == [1, 2]
    assert all(event["ignorable"] for event in result.of("answer/rejected") + result.of("answer/structured"))
    second, third = (request.messages[-1]["content"] for request in dsh.requests_with_stable_prefix()[1:])
    assert "not JSON" in second and "seven" in second
    assert "$.n: '7' is not of type 'integer'" in third


@pytest.mark.parametrize(("options", "requests"), [((), 3), (("--schema-retries", "0"), 1)])
def test_an_answer_that_never_fits_exits_with_5(dsh: Dsh, options: tuple[str, ...], requests: int) -> None:
    dsh.server.script(T("no"), after="repeat")
    result = dsh.run("--schema", schema_file(dsh), "--result-file", "end.json", *options, "how many?")
    assert_failed(result, 5)
    assert dsh.server.count() == requests
    end = json.loads((dsh.cwd / "end.json").read_text())
    assert (end["status"], end["reason"], end["answer"], end["partial"]) == ("schema", "schema", "no", True)
    assert end["structured"] is None and "not JSON" in end["schema"]["errors"][0]
    assert "not JSON" in result.err


def test_b7_one_step_is_enough_when_the_first_answer_fits(dsh: Dsh) -> None:
    dsh.server.script(T('{"n": 1}'))
    assert dsh.run("--schema", schema_file(dsh), "--max-steps", "1", "how many?").code == 0


def test_b7_a_limit_that_ends_the_asking_is_named_with_what_did_not_fit(dsh: Dsh) -> None:
    dsh.server.script(T("no"), after="repeat")
    result = dsh.run("--schema", schema_file(dsh), "--max-steps", "2", "--json", "how many?")
    assert (result.code, result.end["reason"], result.end["partial"]) == (4, "max_steps", True)
    assert result.end["limit"] == {"kind": "max_steps", "value": 2}
    assert "--max-steps 2 reached" in result.end["message"] and "not JSON" in result.end["message"]
    assert "not JSON" in result.end["schema"]["errors"][0]


def test_a_signal_while_it_is_asked_again_is_a_signal(dsh: Dsh) -> None:
    dsh.server.script(T("no"), STALL(60, '{"n"'))
    running = dsh.begin("--schema", schema_file(dsh), "--json", "how many?")
    dsh.server.wait_for_requests(2)
    running.send_signal(signal.SIGTERM)
    result = running.wait()
    assert (result.code, result.end["structured"]) == (143, None)


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[]",
        {"type": "colour"},
        {"properties": {"a": {"$ref": "https://example.org/schema.json"}}},
    ],
)
def test_a_schema_that_cannot_be_used_is_refused_before_any_request(dsh: Dsh, schema: Any) -> None:
    assert_refused(dsh.run("--schema", schema_file(dsh, schema), "how many?"), dsh)


def test_a_schema_that_cannot_be_read_is_refused(dsh: Dsh) -> None:
    result = dsh.run("--schema", "nowhere.json", "how many?")
    assert_refused(result, dsh)
    assert "nowhere.json" in result.err
    assert_refused(dsh.run("--schema", schema_file(dsh), "--schema-retries", "-1", "how many?"), dsh)


def test_b8_a_resumed_and_a_forked_run_take_a_schema_and_keep_what_was_said_of_it(dsh: Dsh) -> None:
    other = schema_file(dsh, {"type": "array"}, "other.json")
    dsh.server.script(T("hello"), T("what?"), T('{"n": 1}'), T('{"n": 2}'), T('{"n": 3}'), T("[]"), T("bye"))
    assert dsh.run("--session-id", "s", "hi").code == 0
    assert dsh.run("--resume", "s", "--schema", schema_file(dsh), "how many?").out == '{"n": 1}\n'
    assert dsh.run("--resume", "s", "--schema", schema_file(dsh), "and now?").out == '{"n": 2}\n'
    assert dsh.run("--fork", "s", "--schema", schema_file(dsh), "-m", dsh.model, "again?").code == 0
    assert dsh.run("--resume", "s", "--schema", other, "a list?").out == "[]\n"
    assert dsh.run("--resume", "s", "and in words?").out == "bye\n"
    free, asked, retried, resumed, forked, changed, kept = map(system_of, dsh.requests())
    assert "<answer_schema>" not in free
    assert asked.startswith(free) and asked.count("<answer_schema>") == 1
    assert retried == asked == resumed == forked
    assert changed.startswith(free) and changed.count("<answer_schema>") == 1
    assert '{"type":"array"}' in changed and kept == changed


def test_an_answer_that_was_cut_is_cut_and_an_empty_one_is_nudged_first(dsh: Dsh) -> None:
    dsh.server.script(LEN('{"n": '))
    cut = dsh.run("--schema", schema_file(dsh), "--json", "how many?")
    assert (cut.code, cut.end["reason"], cut.of("answer/rejected")) == (1, "output_truncated", [])
    dsh.server.script(T(""), T('{"n": 1}'))
    assert dsh.run("--schema", schema_file(dsh), "how many?").out == '{"n": 1}\n'


def test_what_a_model_says_beside_its_calls_is_no_answer(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "echo 5"}, text="I look."), T('{"n": 5}'))
    result = dsh.run("--schema", schema_file(dsh), "--json", "how many?")
    assert (result.code, result.end["structured"], result.of("answer/rejected")) == (0, {"n": 5}, [])


def test_a_denied_call_and_a_fitting_answer_give_both(dsh: Dsh) -> None:
    dsh.server.script(C("bash", {"command": "touch x"}), T('{"n": 0}'))
    options = ("--schema", schema_file(dsh), "--approve", "read-only", "--json")
    result = dsh.run(*options, "how many?")
    assert (result.code, result.end["structured"], len(result.end["denied"])) == (6, {"n": 0}, 1)


def test_a_pattern_that_matches_for_ever_ends_in_a_rejection(dsh: Dsh) -> None:
    evil = {"type": "string", "pattern": "^(a+)+$"}
    dsh.server.script(T('"aaaa"'), T(json.dumps("a" * 60 + "!")))
    good = dsh.run("--schema", schema_file(dsh, evil), "say a")
    assert (good.code, good.out) == (0, '"aaaa"\n')
    options = ("--schema-retries", "0", "--heartbeat", "1", "--json")
    bad = dsh.run("--schema", schema_file(dsh, evil), *options, "a?")
    assert bad.code == 5
    assert "took longer" in bad.end["schema"]["errors"][0]
    # It lives while it waits.
    assert bad.of("heartbeat")


def test_b5_a_large_schema_and_a_large_answer_come_through(dsh: Dsh) -> None:
    names = {f"name_{n}": {"type": "integer"} for n in range(5_000)}
    dsh.server.script(T(json.dumps({f"name_{n}": n for n in range(5_000)})))
    result = dsh.run("--schema", schema_file(dsh, {"properties": names, "additionalProperties": False}), "go")
    assert result.code == 0, result.err
    assert json.loads(result.out)["name_4999"] == 4_999


def test_the_published_lines_have_room_for_a_schema(dsh: Dsh) -> None:
    import jsonschema

    lines = json.loads(dsh.call("help", "events").out)
    dsh.server.script(T("no"), T('{"n": 1}'), T("no"), after="repeat")
    for options in ((), ("--schema-retries", "0")):
        result = dsh.run("--schema", schema_file(dsh), "--json", *options, "how many?")
        for line in result.events:
            jsonschema.validate(line, lines)


def test_secrets_in_an_answer_are_kept_out_of_what_goes_back(dsh: Dsh, tmp_path: Path) -> None:
    key = dsh.env["OPENAI_API_KEY"]
    dsh.server.script(T(json.dumps({"n": key})), T('{"n": 1}'))
    result = dsh.run("--schema", schema_file(dsh), "--json", "how many?")
    assert result.code == 0
    assert key not in json.dumps([event["data"] for event in result.of("answer/rejected")])
    assert key not in dsh.stored_text()


def test_what_is_said_while_a_job_goes_on_is_no_answer_yet(dsh: Dsh) -> None:
    with Fifo(dsh.cwd / "gate") as gate:
        wait = {"command": "read line < gate; echo $line", "background": True}
        dsh.server.script(C("bash", wait), T("I wait for it."), T('{"n": 6}'))
        running = dsh.begin("--schema", schema_file(dsh), "--json", "how many?")
        running.wait_for_event("turn/end")
        gate.write("six\n")
        result = running.wait()
    assert (result.code, result.end["structured"], result.end["turns"]) == (0, {"n": 6}, 2)
    assert result.of("answer/rejected") == []


def test_a_line_of_a_batch_has_a_schema_of_its_own(dsh: Dsh) -> None:
    tasks = [{"id": "a", "prompt": "p", "schema": NUMBER}]
    tasks.append({"id": "b", "prompt": "p", "schema": {"type": "colour"}})
    tasks.append({"id": "c", "prompt": "p", "schema": NUMBER, "schema_retries": 0})
    (dsh.cwd / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    dsh.server.script(T("no"), T('{"n": 1}'), T("never"))
    result = dsh.call("batch", "-m", dsh.model, "-j", "1", "tasks.jsonl")
    lines = {line["id"]: line for line in map(json.loads, result.out.splitlines()) if "id" in line}
    assert lines["a"]["exit_code"] == 0 and lines["a"]["structured"] == {"n": 1}, result.out
    assert (lines["b"]["exit_code"], lines["c"]["exit_code"]) == (2, 5)
