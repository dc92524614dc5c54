"""The scripted provider and the demo: what they stream, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsh_actors.core.chunks import CallConfig, Chunk, Finish, ToolCallDelta, Usage
from dsh_actors.core.messages import (
    Message,
    ModelSource,
    ReasoningBlock,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSource,
    user_message,
)
from dsh_actors.core.request import ModelRequest, RequestHeader, ToolSchema
from dsh_actors.errors import UsageError
from dsh_actors.testing.demo import demo_entry
from dsh_actors.testing.scripted import ScriptedProvider
from tests.adapters.llm.llm_kit import Control, assemble, failure_of

ALL_TOOLS = ("bash", "edit", "glob", "grep", "read", "write")


def request(messages: list[Message], model: str = "x", tools: tuple[str, ...] = ALL_TOOLS) -> ModelRequest:
    schemas = tuple(ToolSchema(name, "", {}) for name in tools)
    return ModelRequest(RequestHeader(CallConfig("scripted", model), tools=schemas), messages)


def ask(provider: ScriptedProvider, asked: ModelRequest, control: Control | None = None) -> list[Chunk]:
    call = provider.prepare(asked.config)
    body = call.encoder().encode(asked)
    return [chunk for batch in provider.stream(call, body, control or Control()) for chunk in batch]


def play(*entries: dict) -> list[Chunk]:
    return ask(ScriptedProvider(list(entries)), request([user_message("u", "hi")]))


def test_an_answer_is_streamed_in_pieces_and_reports_usage() -> None:
    chunks = play({"think": "hmm", "text": "hello world", "chunks": 4})
    assert [type(chunk).__name__ for chunk in chunks].count("TextDelta") == 4
    assembler = assemble(chunks)
    assert assembler.blocks() == (ReasoningBlock("hmm"), TextBlock("hello world"))
    assert assembler.finish == Finish("stop")
    assert assembler.usage.input > 0 and assembler.usage.output > 0


def test_the_same_request_gives_the_same_chunks() -> None:
    entry = {"text": "one two", "calls": [{"tool": "bash", "arguments": {"command": "ls"}}]}
    assert play(entry) == play(entry)


def test_calls_carry_objects_or_raw_text() -> None:
    chunks = play(
        {"calls": [{"tool": "bash", "arguments": {"command": "ls"}}, {"tool": "x", "arguments": '{"a'}]}
    )
    first, second = assemble(chunks).blocks()
    assert (first.name, json.loads(first.arguments)) == ("bash", {"command": "ls"})
    assert (second.name, second.arguments) == ("x", '{"a')
    assert first.id != second.id
    assert chunks[-1] == Finish("tool-calls")
    assert any(isinstance(chunk, ToolCallDelta) for chunk in chunks)


def test_ids_of_calls_differ_between_a_script_and_its_second_playing() -> None:
    entry = {"calls": [{"tool": "bash"}]}
    messages = [user_message("u", "hi")]
    (first,) = assemble(ask(ScriptedProvider([entry]), request(messages))).blocks()
    messages += [
        Message("a", "assistant", (first,), ModelSource("scripted", "x")),
        user_message("v", "again"),
    ]
    (second,) = assemble(ask(ScriptedProvider([entry]), request(messages))).blocks()
    assert first.id != second.id


def test_a_cut_answer_an_error_and_given_usage_are_played() -> None:
    assert play({"text": "half", "finish": "length"})[-1] == Finish("max-tokens")
    chunks = play({"text": "par", "error": {"code": "RATE_LIMIT", "status": 429, "retry_after_ms": 3000}})
    failure = failure_of(chunks)
    assert (failure.code, failure.status, failure.retry_after_ms) == ("RATE_LIMIT", 429, 3000)
    assert assemble(chunks).interrupted_blocks() == (TextBlock("par"),)
    assert assemble(play({"text": "a", "usage": {"input": 5, "cache_read": 7}})).usage == Usage(5, 0, 7)
    assert failure_of(play({"text": ""})).code == "EMPTY_RESPONSE"


def test_a_script_that_has_run_out_says_so() -> None:
    provider = ScriptedProvider([{"text": "only"}])
    asked = request([user_message("u", "hi")])
    ask(provider, asked)
    failure = failure_of(ask(provider, asked))
    assert (failure.code, failure.message) == ("SCRIPT_EXHAUSTED", "the script has no entry for request 2")


def test_requests_are_kept_as_they_were_sent() -> None:
    provider = ScriptedProvider([{"text": "a"}, {"text": "b"}])
    messages = [user_message("u", "hi")]
    asked = request(messages)
    ask(provider, asked)
    messages.append(user_message("v", "more"))
    ask(provider, asked)
    assert [len(kept.messages) for kept in provider.requests] == [1, 2]
    assert provider.requests[1].header == asked.header
    assert list(provider.requests[1].messages) == messages


def test_an_encoder_extends_its_previous_body() -> None:
    encoder = ScriptedProvider([]).prepare(CallConfig("scripted", "x")).encoder()
    messages = [user_message("u", "hi")]
    encoder.encode(request(messages))
    messages.append(user_message("v", "more"))
    fresh = ScriptedProvider([]).prepare(CallConfig("scripted", "x")).encoder()
    assert encoder.encode(request(messages)) == fresh.encode(request(messages))


def test_an_abort_ends_the_playing() -> None:
    control = Control()
    control.abort("cancelled")
    assert ask(ScriptedProvider([{"text": "a"}]), request([]), control)[-1].kind == "aborted"


def test_a_script_is_read_from_the_file_that_the_model_names(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_text('[{"text": "one"}, {"text": "two"}]')
    provider = ScriptedProvider()
    asked = request([user_message("u", "hi")], str(path))
    assert [assemble(ask(provider, asked)).blocks()[0].text for _ in range(2)] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("{}", "a JSON list"),
        ("[1]", "entry 1: not an object"),
        ('[{"text": "a"}, {"txt": "b"}]', "entry 2: unknown member 'txt'"),
        ('[{"text": 1}]', "must be strings"),
        ('[{"finish": "never"}]', "finish must be one of"),
        ('[{"calls": [{"name": "bash"}]}]', "calls must be a list"),
        ('[{"error": {"status": 1}}]', "needs a code"),
        ('[{"error": 1}]', "must be objects"),
        ('[{"usage": {"tokens": 1}}]', "unknown member 'tokens'"),
        ('[{"usage": {"input": -1}}]', "whole numbers"),
        ('[{"text": "a", "chunks": 0}]', "chunks must be"),
    ],
)
def test_a_wrong_script_is_refused_with_its_place(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=complaint) as caught:
        ScriptedProvider().prepare(CallConfig("scripted", str(path)))
    assert str(path) in caught.value.message


def test_a_missing_script_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot read the script /nowhere") as caught:
        ScriptedProvider().prepare(CallConfig("scripted", "/nowhere"))
    assert "scripted/demo" in caught.value.hint


# --- the demo ---------------------------------------------------------------------------------

FILES = {
    "glob": "README.md\nsrc/parser.py\nsrc/main.py",
    "bash": "README.md\nsrc\n## main...origin/main",
    "grep": "src/parser.py:12: class Parser:\nREADME.md:3: the parser",
    "read": "1\t# Parser project\n2\tIt parses.",
}


def run_demo(
    prompt: str, results: dict[str, str], tools: tuple[str, ...] = ALL_TOOLS
) -> tuple[list[dict], str]:
    """Play the demo to its end against tools that answer ``results``; a missing one is denied."""
    provider = ScriptedProvider()
    messages, asked = [user_message("u", prompt)], []
    for _ in range(6):
        blocks = assemble(ask(provider, request(messages, "demo", tools))).blocks()
        messages.append(Message("a", "assistant", blocks, ModelSource("scripted", "demo")))
        calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
        if not calls:
            return asked, blocks[-1].text
        for call in calls:
            asked.append({"tool": call.name, **json.loads(call.arguments)})
            text = results.get(call.name)
            content = (TextBlock("denied by policy" if text is None else text),)
            block = ToolResultBlock(call.id, content, text is None)
            messages.append(Message("r" + call.id, "user", (block,), ToolSource(call.id)))
    raise AssertionError("the demo never ended")


def test_the_demo_looks_searches_reads_and_reports() -> None:
    asked, answer = run_demo("Where is the parser?", FILES)
    assert [call["tool"] for call in asked] == ["glob", "bash", "grep", "read", "read"]
    assert asked[2]["pattern"] == "parser"
    assert [call["path"] for call in asked[3:]] == ["README.md", "src/parser.py"]
    assert "not a model" in answer
    for fact in ("src/main.py", "src/parser.py:12", "Parser project", "main...origin/main"):
        assert fact in answer


def test_the_demo_copes_with_an_empty_directory() -> None:
    asked, answer = run_demo("list the files", {"glob": "", "bash": "", "grep": ""})
    assert [call["tool"] for call in asked] == ["glob", "bash"]
    assert "There are no files here." in answer


def test_the_demo_copes_with_denied_tools() -> None:
    asked, answer = run_demo("parser", {})
    assert [call["tool"] for call in asked] == ["glob", "bash", "grep"]
    assert "glob did not work: denied by policy" in answer


def test_the_demo_copes_with_missing_tools() -> None:
    asked, answer = run_demo("parser", {}, tools=("write",))
    assert asked == []
    assert "Tools that I was not given: bash, glob, grep, read." in answer


def test_the_demo_starts_anew_with_each_prompt() -> None:
    first = demo_entry(request([user_message("u", "parser")], "demo"))
    call = {"id": "c", "name": "glob", "arguments": "{"}
    old = [
        user_message("u", "before"),
        Message("a", "assistant", (ToolCallBlock(**call),), ModelSource("other", "m")),
        Message("r", "user", (ToolResultBlock("c", ()),), ToolSource("c")),
        user_message("v", "parser"),
    ]
    assert demo_entry(request(old, "demo")) == first
    assert demo_entry(request(old[:3], "demo"))["calls"][0]["tool"] == "bash"
