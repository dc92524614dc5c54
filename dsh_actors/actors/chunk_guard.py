"""Stands between a provider's stream and an agent: passes on only chunks that an agent can take and log.

Text is made well-formed. A chunk that does not fit ends the stream with MALFORMED_RESPONSE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

from dsh_actors.core.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Failure,
    Finish,
    FinishKind,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)
from dsh_actors.core.ids import CallId
from dsh_actors.core.messages import Block, ReasoningBlock, TextBlock, ToolCallBlock, block_from_json
from dsh_actors.core.text import clean_text, require_lossless
from dsh_actors.errors import EventRefused, error_chain

__all__ = ["ChunkGuard"]

_KINDS = ("text", "reasoning", "tool-call")
_FINISH_KINDS = get_args(FinishKind)
_ENDED = None


class ChunkGuard:
    """Watches one stream. The rules are those of `core/stream.py`, so that its assembler never refuses."""

    __slots__ = ("_blocks", "finished")

    def __init__(self) -> None:
        self._blocks: dict[int, str | None] = {}
        self.finished = False

    def take(self, chunks: Iterable[Any]) -> tuple[Chunk, ...]:
        """The chunks to pass on, none after the first `Finish`; what a source yields after it is dropped."""
        taken: list[Chunk] = []
        for chunk in chunks:
            if self.finished:
                break
            if self._goes_on(chunk):
                taken.append(chunk)
                continue
            try:
                good = self._checked(chunk)
            except Exception as error:
                # `EventRefused` from the checks, or whatever a foreign chunk does when it is looked at.
                text = f"the model's stream cannot be used: {error_chain(error)}"
                good = Finish("error", Failure(clean_text(text), "MALFORMED_RESPONSE"))
            self.finished = type(good) is Finish
            taken.append(good)
        return tuple(taken)

    def _goes_on(self, chunk: Any) -> bool:
        """Whether this is the usual chunk, which needs no further look: more ASCII text for an open block."""
        kind = type(chunk)
        if kind is TextDelta or kind is ReasoningDelta:
            text, block_type = chunk.text, "text" if kind is TextDelta else "reasoning"
        elif kind is ToolCallDelta and chunk.name is None and type(chunk.id) is str and chunk.id.isascii():
            text, block_type = chunk.arguments, "tool-call"
        else:
            return False
        index = chunk.index
        return (
            type(text) is str
            and text.isascii()
            and type(index) is int
            and self._blocks.get(index) == block_type
        )

    def _checked(self, chunk: Any) -> Chunk:
        kind = type(chunk)
        if kind is TextDelta or kind is ReasoningDelta:
            self._enter(chunk.index, "text" if kind is TextDelta else "reasoning")
            text = _text(chunk.text)
            return chunk if text is chunk.text else replace(chunk, text=text)  # type: ignore[no-any-return]
        if kind is ToolCallDelta:
            self._enter(chunk.index, "tool-call")
            name = None if chunk.name is None else _text(chunk.name)
            call_id, arguments = CallId(_text(chunk.id)), _text(chunk.arguments)
            if name is chunk.name and call_id is chunk.id and arguments is chunk.arguments:
                return chunk  # type: ignore[no-any-return]  # its type was just looked at
            return ToolCallDelta(chunk.index, call_id, name, arguments)
        if kind is BlockStart:
            block_type = _text(chunk.block_type)
            self._blocks.setdefault(_index(chunk.index), block_type)
            return BlockStart(chunk.index, block_type)
        if kind is BlockEnd:
            block = _block(chunk.block)
            self._blocks[_index(chunk.index)] = _ENDED
            return chunk if block is chunk.block else BlockEnd(chunk.index, block)
        if kind is UsageChunk:
            return UsageChunk(_usage(chunk.usage))
        if kind is Finish:
            return self._finish(chunk)
        raise EventRefused(f"a {kind.__name__} is no chunk")

    def _enter(self, index: int, kind: str) -> None:
        """A delta of this kind for this block: it opens the block, fits it, or comes after its end."""
        present = self._blocks.setdefault(_index(index), kind)
        if present != kind and present is not _ENDED:
            raise EventRefused(f"a {kind} delta for block {index}, which is a {present} block")

    def _finish(self, finish: Finish) -> Finish:
        if finish.kind not in _FINISH_KINDS:
            raise EventRefused(f"unknown finish {finish.kind!r}")
        if finish.kind in ("error", "aborted"):
            return replace(finish, failure=_failure(finish), replay_state=None)
        for index, kind in self._blocks.items():
            if kind is not _ENDED and kind not in _KINDS:
                raise EventRefused(f"block {index} of the unknown type {kind!r} has no end")
        if finish.replay_state is not None:
            if type(finish.replay_state) is not dict:
                raise EventRefused("the replay state is no object")
            require_lossless(finish.replay_state, "the replay state")
        return replace(finish, failure=None) if finish.failure is not None else finish


def _index(index: Any) -> int:
    if type(index) is not int:
        raise EventRefused(f"a block index must be a whole number, not {index!r}")
    return index


def _text(text: Any) -> str:
    if type(text) is not str:
        raise EventRefused(f"a text must be a str, not a {type(text).__name__}")
    return clean_text(text)


def _block(block: Block) -> Block:
    match block:
        case TextBlock(raw):
            return block if (text := _text(raw)) is raw else TextBlock(text)
        case ReasoningBlock(raw):
            return block if (text := _text(raw)) is raw else ReasoningBlock(text)
        case ToolCallBlock():
            parts = (_text(block.id), _text(block.name), _text(block.arguments))
            same = parts[0] is block.id and parts[1] is block.name and parts[2] is block.arguments
            return block if same else ToolCallBlock(CallId(parts[0]), parts[1], parts[2])
    stored = block.to_json()
    require_lossless(stored, "a block")
    block_from_json(stored)
    return block


def _usage(usage: Usage) -> Usage:
    optional = (usage.cache_read, usage.cache_write, usage.reasoning)
    counts = (usage.input, usage.output, *(count for count in optional if count is not None))
    if any(type(count) is not int or count < 0 for count in counts):
        raise EventRefused("token counts must be whole numbers")
    return usage


def _failure(finish: Finish) -> Failure:
    failure = finish.failure
    if not isinstance(failure, Failure):
        if finish.kind == "aborted":
            return Failure("the request was aborted", "ABORTED")
        return Failure("the model call failed", "UNKNOWN")
    for number in (failure.status, failure.retry_after_ms, failure.fitting_output):
        if number is not None and type(number) is not int:
            raise EventRefused("a failure's status, waiting time and output must be whole numbers")
    if failure.should_retry not in (None, True, False):
        raise EventRefused("a failure's should_retry must be true, false or None")
    request_id = None if failure.request_id is None else _text(failure.request_id)
    return replace(failure, message=_text(failure.message), code=_text(failure.code), request_id=request_id)
