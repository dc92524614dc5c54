"""What model streams cost: parsing them, a thousand at once, and the way of the first delta to the reader.

Parsing is CPU against `sseclient-py` and `json.loads` on the same bytes, one event a read as networks
bring them. Ours is all between the socket and the agent: events, chunks, the guard, the redaction of a
key, the assembly of blocks.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sseclient import SSEClient

from dsh_actors.actors.chunk_guard import ChunkGuard
from dsh_actors.adapters.llm.chat_stream import ChatStream
from dsh_actors.adapters.llm.sse import EventSource
from dsh_actors.core.chunks import Chunk
from dsh_actors.core.messages import Block, TextBlock
from dsh_actors.core.redaction import RedactingStream, Redactor
from dsh_actors.core.stream import BlockAssembler
from tests.bench.measure import Bench
from tests.model_server import T

__all__ = ["KINDS", "FirstDelta", "ManyStreams", "Parsing", "first_delta", "many_streams", "parsing"]

KINDS = ("text", "reasoning", "tool")
KEY = Redactor({"API_KEY": "sk-0123456789abcdef0123456789abcdef"})
PATIENCE_S = 120.0


@dataclass(frozen=True)
class Parsing:
    """CPU an event, in µs: all of ours, ours without guard and redaction, and the two libraries alone."""

    ours_us: float
    inner_us: float
    bare_us: float

    @property
    def ratio(self) -> float:
        return self.ours_us / self.bare_us


@dataclass(frozen=True)
class ManyStreams:
    """``lost``: streams that did not bring all their text. ``silent``: those ended for their silence.

    ``cpu_share`` is of one core, of the process under measurement. Lags are in seconds, from when the
    server had to send to when the gateway passed it on; ``late_s`` is how late the server itself was.
    """

    streams: int
    chunks: int
    lost: int
    silent: int
    cpu_share: float
    lag_median_s: float
    lag_worst_s: float
    late_s: float


@dataclass(frozen=True)
class FirstDelta:
    """From the server's sending of the first delta to the line of `dsh run --json`, in ms."""

    median_ms: float
    worst_ms: float


# --- parsing ----------------------------------------------------------------------------------


def parsing(kind: str, events: int = 3_000, repeats: int = 9) -> Parsing:
    """The quickest of some turns of each, one after the other: what else the machine does only adds."""
    pieces = stream_of(kind, events)
    expected = whole(pieces)
    assert isinstance(expected[0], TextBlock) or kind != "text"

    def ours() -> None:
        assert whole(pieces) == expected

    turns: dict[str, Callable[[], Any]] = {
        "ours": ours,
        "inner": lambda: whole(pieces, guarded=False),
        "bare": lambda: bare(pieces),
    }
    best = dict.fromkeys(turns, float("inf"))
    for _ in range(repeats):
        for name, turn in turns.items():
            begun = time.process_time()
            turn()
            best[name] = min(best[name], time.process_time() - begun)
    each = 1e6 / len(pieces)
    return Parsing(best["ours"] * each, best["inner"] * each, best["bare"] * each)


def stream_of(kind: str, events: int) -> list[bytes]:
    """A reply in deltas of a token, in the shape that DeepSeek sends."""
    rand = random.Random(7)
    words = [" " + "".join(rand.choices("etaoinshrdlucmfwyp", k=rand.randint(2, 7))) for _ in range(500)]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if kind == "tool":
        function = {"name": "write", "arguments": '{"text":"'}
        call = {"index": 0, "id": "call_00_a", "type": "function", "function": function}
        deltas.append({"tool_calls": [call]})
    for _ in range(events):
        word = rand.choice(words)
        match kind:
            case "text":
                deltas.append({"content": word, "reasoning_content": None})
            case "reasoning":
                deltas.append({"content": None, "reasoning_content": word})
            case _:
                deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": word}}]})
    lines = [_event(delta, None) for delta in deltas]
    return [*lines, _event({"content": ""}, "tool_calls" if kind == "tool" else "stop"), b"data: [DONE]\n\n"]


def _event(delta: dict[str, Any], finish: str | None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    data = {
        "id": "930c60df-bf64-41c9-a88e-3ec75f81e00e",
        "object": "chat.completion.chunk",
        "created": 1705651092,
        "model": "deepseek-flash",
        "system_fingerprint": "fp_a49d71b8a1",
        "choices": [choice],
    }
    return b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


class _Source:
    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    def close(self) -> None:
        pass


def bare(pieces: Sequence[bytes]) -> int:
    count = 0
    for event in SSEClient(_Source(pieces)).events():
        if event.data != "[DONE]":
            json.loads(event.data)
            count += 1
    return count


def whole(pieces: Sequence[bytes], guarded: bool = True) -> tuple[Block, ...]:
    left = iter(pieces)
    source = EventSource(lambda size: next(left, b""), lambda: False)
    stream, assembler = ChatStream({}, lambda: "salt"), BlockAssembler()
    guard, redaction = ChunkGuard(), RedactingStream(KEY)
    for events in source.batches():
        out: list[Chunk] = []
        for event in events:
            stream.feed(event.data, event.event, out, source.is_tail)
        if stream.is_over:
            out += stream.close(was_cut=False)
        for chunk in redaction.chunks(guard.take(out)) if guarded else out:
            assembler.feed(chunk)
        if stream.is_over:
            break
    return assembler.blocks()


# --- many streams -----------------------------------------------------------------------------


def many_streams(bench: Bench, streams: int, chunks: int, rate: int, idle_timeout_s: float) -> ManyStreams:
    """So many streams in one process through the gateway, each of ``chunks`` at ``rate`` a second."""
    command = [sys.executable, "-m", "tests.bench.stream_server", str(streams), str(chunks), str(rate)]
    with subprocess.Popen(
        command, env=bench.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=bench.cwd
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        job = {"url": url, "streams": streams, "chunks": chunks, "idle_timeout_s": idle_timeout_s}
        worker = subprocess.run(
            [sys.executable, "-m", "tests.bench.stream_worker"],
            input=json.dumps(job).encode(),
            env=bench.env,
            cwd=bench.cwd,
            stdout=subprocess.PIPE,
            check=True,
            timeout=PATIENCE_S,
        )
        found = json.loads(worker.stdout)
        late_s = float(server.stdout.readline())
        server.stdin.close()
        assert server.wait(PATIENCE_S) == 0
    lags = sorted(found["lags_s"])
    return ManyStreams(
        streams,
        chunks,
        found["lost"],
        found["silent"],
        found["cpu_s"] / found["wall_s"],
        statistics.median(lags),
        lags[-1],
        late_s,
    )


# --- the first delta --------------------------------------------------------------------------


def first_delta(bench: Bench, repeats: int = 5) -> FirstDelta:
    """`dsh run --json` as a process. The reply stops after its first delta, so that nothing pushes it."""
    times_ms = []
    for _ in range(repeats):
        bench.server.load({"default": {"entries": [T(["first ", "and last"], hold="gate")]}})
        command = [sys.executable, "-m", "dsh_actors", "run", "--json", "-m", "openai/test", "x"]
        with subprocess.Popen(
            command, env=bench.env, cwd=bench.cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            read_at = 0.0
            for line in process.stdout:
                if not read_at and b'"text-delta"' in line:
                    read_at = time.monotonic()
                    bench.server.release("gate")
            assert process.wait(PATIENCE_S) == 0
        (request,) = bench.server.requests()
        assert request.first_sent is not None and read_at
        times_ms.append(1000 * (read_at - request.first_sent))
    return FirstDelta(statistics.median(times_ms), max(times_ms))
