"""Every chat-completions transcript gives its expected message, however the network cuts it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider
from dsh_actors.core.retry import facts_of
from tests.adapters.llm.llm_kit import Server, answer, assemble, chunk, config, cut, head
from tests.adapters.llm.llm_kit import call as run_call

WIRE = Path(__file__).parent / "wire"
CASES = sorted(path.name.removesuffix(".expected.json") for path in WIRE.glob("*.expected.json"))


def expected(name: str) -> dict:
    return json.loads((WIRE / f"{name}.expected.json").read_text())


def normalised(chunks: list) -> dict:
    assembler = assemble(chunks)
    finish, usage = assembler.finish, assembler.usage
    failed = finish.failure is not None
    blocks = assembler.interrupted_blocks() if failed else assembler.blocks()
    result = {
        "content": [block.to_json() for block in blocks],
        "usage": usage and usage.to_json(),
        "finish": {"kind": finish.kind},
        "replay": ((finish.replay_state or {}).get("response") or {}).get("reasoning_details"),
    }
    if failed:
        facts = facts_of(finish.failure.code)
        data = finish.failure.to_json()
        assert data.pop("message")
        result["finish"] |= {"class": facts.kind, "retryable": facts.retryable, "failure": data}
    return result


def wanted(case: dict) -> dict:
    normal = case["normalized"]
    finish = dict(normal["finish"])
    if "failure" in finish:
        finish["failure"] = {k: v for k, v in finish["failure"].items() if k != "message"}
    return {
        "content": normal["message"]["content"],
        "usage": normal["usage"],
        "finish": finish,
        "replay": (normal["replay"] or {}).get("reasoning_details"),
    }


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("way", ["whole", "at the splits", "byte by byte"])
def test_a_transcript_is_understood(name: str, way: str) -> None:
    case = expected(name)
    body = (WIRE / f"{name}.sse").read_bytes()
    offsets = {"whole": (), "at the splits": case["transport_splits"], "byte by byte": range(1, len(body))}
    chunks = answer(cut(body, offsets[way]), case["http"]["status"], case["http"]["headers"])
    assert normalised(chunks) == wanted(case)


@pytest.mark.parametrize("name", CASES)
def test_odd_shapes_are_noted_in_the_log(name: str, caplog: pytest.LogCaptureFixture) -> None:
    case = expected(name)
    with caplog.at_level(logging.INFO, "dsh_actors"):
        answer((WIRE / f"{name}.sse").read_bytes(), case["http"]["status"], case["http"]["headers"])
    noted = [record.getMessage().split(": ")[-1] for record in caplog.records]
    assert noted == ([", ".join(case["normalized"]["warnings"])] if case["normalized"]["warnings"] else [])


@pytest.mark.parametrize("name", ["02-reasoning-text", "05-split-utf8-and-escapes", "06b-crlf-bom-multiline"])
@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "Connection: close"])
def test_a_transcript_survives_a_real_socket(name: str, framing: str) -> None:
    case = expected(name)
    body = (WIRE / f"{name}.sse").read_bytes()

    def serve(connection, request):
        connection.sendall(head(framing=framing))
        for piece in cut(body, range(97, len(body), 97)):
            connection.sendall(chunk(piece) if "chunked" in framing else piece)
        if "chunked" in framing:
            connection.sendall(chunk(b""))
        return "chunked" in framing

    with Server(serve) as server:
        chunks = run_call(OpenAiCompatibleProvider(config(server.url)))
    assert normalised(chunks) == wanted(case)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("llamacpp-text", "stop"), ("llamacpp-length", "max-tokens"), ("llamacpp-tool-call", "tool-calls")],
)
def test_a_recorded_server_is_understood(name: str, kind: str) -> None:
    assembler = assemble(answer((WIRE / f"{name}.sse").read_bytes()))
    assert assembler.finish.kind == kind
    (block,) = assembler.blocks()
    if kind == "tool-calls":
        assert block.name == "bash"
        assert json.loads(block.arguments) == {"command": "list_files.bash"}
    else:
        assert block.text.strip()
