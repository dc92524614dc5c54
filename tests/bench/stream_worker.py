"""Many streams through one gateway: `python -m tests.bench.stream_worker`, a line of JSON in, one out."""

from __future__ import annotations

import gevent.event
import gevent.monkey

gevent.monkey.patch_all()

import json  # noqa: E402  patching comes before everything else
import sys  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

from dsh_actors.actors import protocol as p  # noqa: E402
from dsh_actors.actors.model_gateway import GatewayState, ModelGatewayActor  # noqa: E402
from dsh_actors.adapters.llm.openai_compatible import OpenAiCompatibleProvider  # noqa: E402
from dsh_actors.adapters.llm.settings import ProviderConfig  # noqa: E402
from dsh_actors.core import turn_io as io  # noqa: E402
from dsh_actors.core.chunks import CallConfig, Finish, TextDelta  # noqa: E402
from dsh_actors.core.redaction import Redactor  # noqa: E402
from dsh_actors.core.request import ModelRequest, RequestHeader  # noqa: E402
from dsh_actors.runtime.actor import start_actor  # noqa: E402
from dsh_actors.runtime.timers import SystemClock  # noqa: E402

KEY = "sk-0123456789abcdef0123456789abcdef"
PATIENCE_S = 120.0


class Streams:
    """Opens all streams, reads their texts, notes how late each chunk came and how each stream ended."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        config = ProviderConfig(
            "test",
            "openai_compatible",
            job["url"],
            idle_timeout_s=job["idle_timeout_s"],
            max_concurrency=job["streams"],
        )
        self._provider = OpenAiCompatibleProvider(config)
        self._state = GatewayState(
            {"test": self._provider}, Redactor({"API_KEY": KEY}), limits={"test": job["streams"]}
        )
        self.lags_s: list[float] = []
        self._counts = [0] * job["streams"]
        self._ends: list[Finish | None] = [None] * job["streams"]
        self._left = job["streams"]
        self._done = gevent.event.Event()
        self._begun: tuple[float, float] | None = None

    def run(self) -> dict[str, Any]:
        clock = SystemClock()
        actor = ModelGatewayActor(
            name="model_gateway", parent=None, generation=0, state=self._state, clock=clock
        )
        ref = start_actor(actor)
        call = self._provider.prepare(CallConfig("test", "m"))
        request = ModelRequest(RequestHeader(call.config), [])
        for number in range(self._job["streams"]):
            owner = p.Owner(f"s{number}", 1)
            reply = self._reader(number)
            ref.tell(p.OpenModelStream(owner, 1, call, call.encoder(), request, (), reply))
        assert self._done.wait(PATIENCE_S), f"{self._left} streams have not ended"
        ended = (time.monotonic(), time.process_time())
        assert self._begun is not None
        ref.stop(timeout=PATIENCE_S)
        finishes = [end for end in self._ends if end is not None]
        codes = [end.failure.code for end in finishes if end.failure is not None]
        whole = sum(
            count == self._job["chunks"] and end == Finish("stop")
            for count, end in zip(self._counts, self._ends, strict=True)
        )
        return {
            "lost": self._job["streams"] - whole,
            "silent": codes.count("TIMEOUT"),
            "wall_s": ended[0] - self._begun[0],
            "cpu_s": ended[1] - self._begun[1],
            "lags_s": self.lags_s,
        }

    def _reader(self, number: int) -> Any:
        text = ""

        def read(message: io.Chunks) -> None:
            nonlocal text
            now = time.monotonic()
            for chunk in message.chunks:
                if isinstance(chunk, TextDelta):
                    if self._begun is None:
                        self._begun = (now, time.process_time())
                    text += chunk.text
                elif isinstance(chunk, Finish):
                    self._ends[number] = chunk
                    self._left -= 1
                    if not self._left:
                        self._done.set()
            *words, text = text.split(" ")
            self._counts[number] += len(words)
            self.lags_s += [now - float(word) for word in words]

        return read


def main() -> None:
    print(json.dumps(Streams(json.loads(sys.stdin.readline())).run()), flush=True)


if __name__ == "__main__":
    main()
