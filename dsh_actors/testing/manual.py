"""A provider whose streams the test plays by hand, chunk by chunk, while the agent is live."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsh_actors.core.chunks import CallConfig, Chunk, Finish
from dsh_actors.core.request import ModelRequest
from dsh_actors.core.retry import RetryPolicy
from dsh_actors.ports import LlmProvider, PreparedCall, RequestEncoder, StreamControl

__all__ = ["ManualProvider", "ManualStream"]


class ManualStream:
    """One request as it arrived, and the hand that answers it."""

    def __init__(self, request: ModelRequest) -> None:
        self.request = request
        self.aborted: str | None = None
        self._queue: queue.SimpleQueue[Sequence[Chunk] | BaseException | None] = queue.SimpleQueue()

    def send(self, *chunks: Chunk) -> None:
        self._queue.put(chunks)

    def fail(self, error: BaseException) -> None:
        """Let the provider raise."""
        self._queue.put(error)

    def play(self, control: StreamControl) -> Iterator[Sequence[Chunk]]:
        control.on_abort(lambda: self._queue.put(None))
        while True:
            item = self._queue.get()
            if control.aborted is not None:
                self.aborted = control.aborted
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item
            if isinstance(item[-1], Finish):
                return


@dataclass(frozen=True, slots=True)
class _Call:
    config: CallConfig
    provider: ManualProvider
    adapter_defaults: frozenset[str] = frozenset()
    context_window: int | None = None
    input_modalities: tuple[str, ...] = ("text",)

    def encoder(self) -> RequestEncoder:
        return _Encoder(self.provider)


@dataclass(frozen=True, slots=True)
class _Encoder:
    provider: ManualProvider

    def encode(self, request: ModelRequest) -> bytes:
        self.provider.sent.put(ManualStream(request))
        return b""


class ManualProvider(LlmProvider):
    """Named ``manual`` unless told otherwise; accepts every model. `next_stream` waits for a request."""

    def __init__(self, name: str = "manual", retry_policy: RetryPolicy | None = None) -> None:
        self.name = name
        self.retry_policy = retry_policy or RetryPolicy(initial_delay_ms=0, max_delay_ms=0)
        self.sent: queue.SimpleQueue[ManualStream] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[ManualStream] = queue.SimpleQueue()

    def prepare(self, config: CallConfig) -> PreparedCall:
        return _Call(config, self)

    def stream(self, call: PreparedCall, body: bytes, control: StreamControl) -> Iterator[Sequence[Chunk]]:
        stream = self.sent.get_nowait()
        self._arrived.put(stream)
        return stream.play(control)

    def next_stream(self, timeout_s: float = 10.0) -> ManualStream:
        """The next request that arrives. Raises `queue.Empty` when none does in time."""
        return self._arrived.get(timeout=timeout_s)
