"""What sessions on disk cost, each figure against the plainest program that does the same.

Wall seconds, as most of it is waiting for the disk. The plain loop encodes and compresses a step,
writes that to an open file and syncs it: the same frames, without lock, checks or dates. ``ready_s``
is the loop over frames made before, which only measures the disk: on one that syncs in 0.15 ms,
making a frame takes as long again.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import zstandard
from gevent.threadpool import ThreadPool

from dsh_actors.adapters.storage.frames import compress_frame
from dsh_actors.adapters.storage.storage import SegmentStorage, SegmentWriter
from dsh_actors.core.codec import encode_batch
from dsh_actors.core.events import Event, Replace, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.state import SessionState
from dsh_actors.ports import Checkpoint

__all__ = ["Append", "Many", "Opening", "Size", "append", "many", "opening", "size"]

CHUNKS = 80
STEPS_A_TURN = 5
TURNS_A_WINDOW = 60
POOL = 16
S1 = SessionId("s1")


@dataclass(frozen=True)
class Size:
    """Bytes on disk of a sealed session, and of the same in frames of 64 unpacked events at level 3."""

    events: int
    ours: int
    plain: int

    @property
    def ratio(self) -> float:
        return self.ours / self.plain


@dataclass(frozen=True)
class Opening:
    """Opening with a checkpoint near the end, and folding the whole log."""

    events: int
    with_checkpoint_s: float
    folding_s: float

    @property
    def ratio(self) -> float:
        """How many times slower folding is."""
        return self.folding_s / self.with_checkpoint_s


@dataclass(frozen=True)
class Append:
    """Median of a durable append of one step, of the plain loop, and of that over ready frames."""

    ours_s: float
    plain_s: float
    ready_s: float

    @property
    def ratio(self) -> float:
        return self.ours_s / self.plain_s


@dataclass(frozen=True)
class Many:
    """Appends a second of many sessions in a pool of threads, and of the plain loop over as many files.

    ``plain`` is the better of two: one file after the other, and in as many threads as ours.
    """

    sessions: int
    ours: float
    plain: float

    @property
    def ratio(self) -> float:
        """Our share of the plain rate."""
        return self.ours / self.plain


def steps(count: int) -> Iterator[list[Event]]:
    """Steps of a made-up session: an answer in 80 deltas and its message, turns of 5 steps.

    Every 300 steps, some 40,000 tokens, the surface is compacted to one message, as windows are finite.
    """
    rand = random.Random(7)
    words = ["".join(rand.choices("etaoinshrdlucmfwyp", k=rand.randint(2, 9))) + " " for _ in range(3000)]
    seq, now, surface = 0, 1_700_000_000_000, list[int]()
    for number in range(count):
        turn, step = number // STEPS_A_TURN + 1, number % STEPS_A_TURN + 1
        texts = rand.choices(words, k=CHUNKS)
        made: list[tuple[str, dict[str, object]]] = []
        if step == 1:
            block = {"type": "text", "text": "".join(texts[:20])}
            prompt = {"id": f"u{turn}", "role": "user", "content": [block], "source": {"kind": "user"}}
            made += [("turn/start", {"turn": turn}), ("user/message", prompt)]
        place = {"turn": turn, "step": step}
        made.append(("step/start", dict(place)))
        deltas = ({"type": "text-delta", "index": 0, "text": text} for text in texts)
        made += [("assistant/chunk", {**place, "chunk": delta}) for delta in deltas]
        content = [{"type": "text", "text": "".join(texts)}]
        source = {"kind": "model", "provider": "p", "model": "m"}
        message = {"id": f"a{number}", "role": "assistant", "content": content, "source": source}
        made += [("assistant/message", {**place, "message": message}), ("step/end", dict(place))]
        if step == STEPS_A_TURN:
            made.append(("turn/end", {"turn": turn, "reason": {"kind": "completed"}}))
        events = []
        for kind, data in made:
            now += rand.randint(5, 40)
            op = "append" if kind in ("user/message", "assistant/message") else None
            surface += [seq] if op else []
            events.append(Event(kind, seq, now, data, op))
            seq += 1
        if step == STEPS_A_TURN and turn % TURNS_A_WINDOW == 0:
            block = {"type": "text", "text": "What was said until now, in short."}
            summary = {"id": f"c{turn}", "role": "user", "content": [block], "source": {"kind": "user"}}
            everything = Replace(surface[0], surface[-1])
            events.append(Event("user/message", seq, now, summary, everything, tuple(surface)))
            surface = [seq]
            seq += 1
        yield events


def size(root: Path, count: int = 100) -> Size:
    """Everything a session has on disk once what is sealed is rewritten."""
    storage = _storage(root)
    batches = list(steps(count))
    writer = _stored(storage, batches)
    writer.compact()
    writer.close()
    log = Path(storage.path(S1), "log")
    events = [event for batch in batches for event in batch]
    return Size(len(events), sum(path.stat().st_size for path in log.iterdir()), _plain_size(events))


def opening(root: Path, count: int = 100_000, repeats: int = 3) -> Opening:
    """Open a session of about ``count`` events whose last checkpoint is one turn old."""
    storage = _storage(root)
    batches = list(steps(count // (CHUNKS + 3)))
    before, last = batches[:-STEPS_A_TURN], batches[-STEPS_A_TURN:]
    writer = _stored(storage, before)
    state = SessionState(writer.header)
    for event in itertools.chain.from_iterable(before):
        state.apply(event)
    surface = [event.to_json() for event in state.surface.nodes]
    writer.save_checkpoint(Checkpoint(writer.next_seq, {"surface": surface}))
    for batch in last:
        writer.append(batch)
    writer.compact()
    end = writer.next_seq
    writer.close()
    quick = min(_timed(lambda: _open(storage, end)) for _ in range(repeats))
    return Opening(end, quick, min(_timed(lambda: _fold(storage, end)) for _ in range(repeats)))


def append(root: Path, count: int = 200) -> Append:
    """Steps appended in turn with the plain loop, so that both meet the same disk."""
    batches = list(steps(count))
    writer = _stored(_storage(root), batches[:1])
    descriptor = os.open(root / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    ours, plain, ready = [], [], []
    for batch in batches[1:]:
        frame = compress_frame(encode_batch(batch))
        ready.append(_timed(partial(_write, descriptor, frame)))
        plain.append(_timed(partial(_plain_append, descriptor, batch)))
        ours.append(_timed(partial(writer.append, batch)))
    os.close(descriptor)
    writer.close()
    return Append(*map(statistics.median, (ours, plain, ready)))


def many(root: Path, sessions: int = 100, rounds: int = 4, repeats: int = 3) -> Many:
    """All sessions flush a step at the same time, round after round; the best of some repeats."""
    batches = list(steps(rounds + 1))
    ours, plain = [], []
    pool = ThreadPool(POOL)
    try:
        for repeat in range(repeats):
            storage = _storage(root / str(repeat))
            names = [SessionId(f"s{number}") for number in range(sessions)]
            writers = [_stored(storage, batches[:1], name) for name in names]
            files = [_plain_file(root / f"plain-{repeat}" / name) for name in names]
            for file in files:
                _plain_append(file, batches[0])
            plain.append(_timed(partial(_plain_rounds, files, batches[1:])))
            for times, acts in (
                (plain, [partial(_plain_append, file) for file in files]),
                (ours, [writer.append for writer in writers]),
            ):
                times.append(_timed(partial(_rounds, pool, acts, batches[1:])))
            for writer, file in zip(writers, files, strict=True):
                writer.close()
                os.close(file)
    finally:
        pool.kill()
    return Many(sessions, sessions * rounds / min(ours), sessions * rounds / min(plain))


def _plain_file(folder: Path) -> int:
    """A new file in a directory of its own, as the file system spreads directories over the disk."""
    folder.mkdir(parents=True)
    return os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)


def _rounds(
    pool: ThreadPool, appends: Sequence[Callable[[list[Event]], None]], batches: Sequence[list[Event]]
) -> None:
    for batch in batches:
        for done in [pool.spawn(append, batch) for append in appends]:
            done.get()


def _plain_rounds(files: Sequence[int], batches: Sequence[list[Event]]) -> None:
    for batch in batches:
        for descriptor in files:
            _plain_append(descriptor, batch)


def _storage(root: Path) -> SegmentStorage:
    root.mkdir(parents=True, exist_ok=True)
    return SegmentStorage(str(root / "sessions"), "bench", lambda: time.time_ns() // 1_000_000)


def _stored(storage: SegmentStorage, batches: Sequence[list[Event]], name: SessionId = S1) -> SegmentWriter:
    writer = storage.create(SessionHeader(name, 1_700_000_000_000, "/srv/shop"))
    for batch in batches:
        writer.append(batch)
    return writer


def _plain_size(events: Sequence[Event]) -> int:
    compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
    total = 0
    for first in range(0, len(events), 64):
        rows = [
            json.dumps(event.to_json(), ensure_ascii=False, separators=(",", ":"))
            for event in events[first : first + 64]
        ]
        total += len(compressor.compress("\n".join((*rows, "")).encode()))
    return total


def _open(storage: SegmentStorage, end: int) -> None:
    writer = storage.open(S1)
    checkpoint = writer.checkpoint()
    assert checkpoint is not None
    state = SessionState(writer.header, next_seq=checkpoint.next_seq)
    for row in checkpoint.state["surface"]:
        state.surface.apply(replace(Event.from_json(row), surface_op="append", source_event_seqs=None))
    for event in writer.replay(checkpoint.next_seq):
        state.apply(event)
    assert state.next_seq == writer.next_seq == end
    writer.close()


def _fold(storage: SegmentStorage, end: int) -> None:
    writer = storage.open(S1)
    state = SessionState(writer.header)
    for event in writer.replay():
        state.apply(event)
    assert state.next_seq == end
    writer.close()


def _plain_append(descriptor: int, batch: Sequence[Event]) -> None:
    _write(descriptor, compress_frame(encode_batch(batch)))


def _write(descriptor: int, frame: bytes) -> None:
    os.write(descriptor, frame)
    os.fsync(descriptor)


def _timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
