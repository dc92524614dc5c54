"""Every transcript gives its expected message on each adapter of its wire, however the network cuts it."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from requests.structures import CaseInsensitiveDict

from dsh_actors.core.chunks import CallConfig, Chunk
from dsh_actors.core.retry import facts_of
from tests.adapters.llm.llm_kit import MemoryTransport, Server, answer, assemble, chunk, cut, failure_of, head
from tests.adapters.llm.llm_kit import call as run_call
from tests.adapters.llm.llm_wires import BY_NAME

WIRE = Path(__file__).parent / "wire"
ADAPTERS = {
    "openai-chat": ("openai_compatible", "deepseek"),
    "openai-json": ("openai_compatible", "deepseek"),
    "anthropic-messages": ("anthropic",),
}
CASES = [
    (adapter, path.name.removesuffix(".expected.json"))
    for path in sorted(WIRE.glob("*.expected.json"))
    for adapter in ADAPTERS[json.loads(path.read_text())["wire"]]
]


def expected(name: str) -> dict:
    return json.loads((WIRE / f"{name}.expected.json").read_text())


def play(adapter: str, pieces: list[bytes], status: int = 200, headers: dict | None = None) -> list[Chunk]:
    """What an adapter makes of a response."""
    wire = BY_NAME[adapter]
    transport = MemoryTransport(pieces, status, headers)
    return run_call(wire.build(transport), config=CallConfig("test", wire.model))


def normalised(chunks: list) -> dict:
    assembler = assemble(chunks)
    finish, usage = assembler.finish, assembler.usage
    failed = finish.failure is not None
    blocks = assembler.interrupted_blocks() if failed else assembler.blocks()
    state = finish.replay_state or {}
    details = (state.get("response") or {}).get("reasoning_details")
    replay = {"blocks": state["blocks"]} if "blocks" in state else details and {"reasoning_details": details}
    result = {
        "content": [block.to_json() for block in blocks],
        "usage": usage and usage.to_json(),
        "finish": {"kind": finish.kind},
        "replay": replay,
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
        "replay": normal["replay"],
    }


@pytest.mark.parametrize(("adapter", "name"), CASES)
@pytest.mark.parametrize("way", ["whole", "at the splits", "byte by byte"])
def test_a_transcript_is_understood(adapter: str, name: str, way: str) -> None:
    case = expected(name)
    body = (WIRE / f"{name}.sse").read_bytes()
    offsets = {"whole": (), "at the splits": case["transport_splits"], "byte by byte": range(1, len(body))}
    chunks = play(adapter, cut(body, offsets[way]), case["http"]["status"], case["http"]["headers"])
    assert normalised(chunks) == wanted(case)


@pytest.mark.parametrize(("adapter", "name"), CASES)
def test_a_transcript_in_two_pieces_is_understood_wherever_it_is_cut(adapter: str, name: str) -> None:
    case = expected(name)
    body = (WIRE / f"{name}.sse").read_bytes()
    whole = play(adapter, [body], case["http"]["status"], case["http"]["headers"])
    # A prime stride: over all transcripts every kind of place is met.
    for offset in range(1, len(body), 13):
        pieces = [body[:offset], body[offset:]]
        assert play(adapter, pieces, case["http"]["status"], case["http"]["headers"]) == whole, offset


@pytest.mark.parametrize(("adapter", "name"), CASES)
def test_odd_shapes_are_noted_in_the_log(
    adapter: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    case = expected(name)
    with caplog.at_level(logging.INFO, "dsh_actors"):
        body = (WIRE / f"{name}.sse").read_bytes()
        play(adapter, [body], case["http"]["status"], case["http"]["headers"])
    noted = [record.getMessage().split(": ")[-1] for record in caplog.records]
    assert noted == ([", ".join(case["normalized"]["warnings"])] if case["normalized"]["warnings"] else [])


@pytest.mark.parametrize(
    ("adapter", "name"),
    [
        ("openai_compatible", "02-reasoning-text"),
        ("deepseek", "05-split-utf8-and-escapes"),
        ("openai_compatible", "06b-crlf-bom-multiline"),
        ("anthropic", "20-anthropic-thinking-tools"),
    ],
)
@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", "Connection: close"])
def test_a_transcript_survives_a_real_socket(adapter: str, name: str, framing: str) -> None:
    case = expected(name)
    body = (WIRE / f"{name}.sse").read_bytes()

    def serve(connection, request):
        connection.sendall(head(framing=framing))
        for piece in cut(body, range(97, len(body), 97)):
            connection.sendall(chunk(piece) if "chunked" in framing else piece)
        if "chunked" in framing:
            connection.sendall(chunk(b""))
        return "chunked" in framing

    wire = BY_NAME[adapter]
    with Server(serve) as server:
        chunks = run_call(wire.build(base_url=server.url), config=CallConfig("test", wire.model))
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


@pytest.mark.parametrize("adapter", ["openai_compatible", "deepseek"])
@pytest.mark.parametrize(
    ("name", "code"),
    [("llamacpp-bad-request", "SERVER"), ("llamacpp-context-overflow", "EMPTY_RESPONSE")],
)
def test_a_recorded_refusal_is_a_failure(adapter: str, name: str, code: str) -> None:
    top, _, body = (WIRE / f"{name}.http").read_bytes().partition(b"\r\n\r\n")
    first, *lines = top.decode().splitlines()
    headers = CaseInsensitiveDict(line.split(": ", 1) for line in lines)
    failure = failure_of(play(adapter, [body], int(first.split()[1]), headers))
    assert (failure.code, failure.request_id) == (code, headers["x-request-id"])
    assert "HTTP/1.1" not in failure.message
