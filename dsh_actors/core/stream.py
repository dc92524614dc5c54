"""Assembles the blocks of one assistant message from a model's stream chunks. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from dsh_actors.core.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)
from dsh_actors.core.ids import CallId
from dsh_actors.core.messages import Block, ReasoningBlock, TextBlock, ToolCallBlock
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import ProtocolError

__all__ = ["BlockAssembler"]


@dataclass(slots=True)
class _Open:
    """A block still being written."""

    index: int
    kind: str
    parts: list[str] = field(default_factory=list)
    call_id: str = ""
    name: str = ""

    def close(self) -> Block:
        text = "".join(self.parts)
        match self.kind:
            case "text":
                return TextBlock(text)
            case "reasoning":
                return ReasoningBlock(text)
            case "tool-call":
                return ToolCallBlock(CallId(self.call_id or f"call-{self.index}"), self.name, text)
        raise ProtocolError(f"the stream ended inside a block of the unknown type {self.kind!r}")


def _with_id(block: Block, index: int) -> Block:
    """A call without an id gets one: its result could not be told from others."""
    if isinstance(block, ToolCallBlock) and not block.id:
        return replace(block, id=CallId(f"call-{index}"))
    return block


class BlockAssembler:
    """Collects the chunks of one call; accepts streams of deltas alone.

    The first block-end of an index closes it for good and its block is authoritative, but for the id
    of a call that has none. Whatever follows the finish is ignored.
    """

    __slots__ = ("_blocks", "finish", "usage")

    def __init__(self) -> None:
        self._blocks: dict[int, _Open | Block] = {}
        self.finish: Finish | None = None
        self.usage: Usage | None = None

    def feed(self, chunk: Chunk) -> None:
        """Take one chunk. Raises `ProtocolError` where a delta does not fit its block."""
        if self.finish is not None:
            return
        match chunk:
            case TextDelta():
                self._append(chunk.index, "text", chunk.text)
            case ReasoningDelta():
                self._append(chunk.index, "reasoning", chunk.text)
            case ToolCallDelta():
                block = self._append(chunk.index, "tool-call", chunk.arguments)
                if block is not None:
                    block.call_id = chunk.id or block.call_id
                    block.name = block.name if chunk.name is None else chunk.name
            case BlockStart():
                self._blocks.setdefault(chunk.index, _Open(chunk.index, chunk.block_type))
            case BlockEnd():
                if isinstance(self._blocks.get(chunk.index), _Open | None):
                    self._blocks[chunk.index] = _with_id(chunk.block, chunk.index)
            case UsageChunk():
                self.usage = chunk.usage
            case Finish():
                self.finish = chunk

    def _append(self, index: int, kind: str, text: str) -> _Open | None:
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = _Open(index, kind)
        elif not isinstance(block, _Open):
            return None
        if block.kind != kind:
            raise ProtocolError(f"a {kind} delta for block {index}, which is a {block.kind} block")
        block.parts.append(text)
        return block

    def blocks(self) -> tuple[Block, ...]:
        """The message's content in first-seen order; a reply cut by length has no tool calls.

        Raises `ProtocolError` for an unfinished block of an unknown type.
        """
        whole = self._whole()
        if self._is_cut():
            return tuple(block for block in whole if not isinstance(block, ToolCallBlock))
        return whole

    def replay_state(self) -> JsonObject | None:
        """The adapter's private data, its per-block entries matching `blocks`.

        None where there is none, or where its entries cannot be matched with the blocks.
        """
        state = None if self.finish is None else self.finish.replay_state
        if state is None or "blocks" not in state:
            return state
        whole, entries = self._whole(), state["blocks"]
        if not isinstance(entries, list) or len(entries) != len(whole):
            return None
        if not self._is_cut():
            return state
        kept = [e for e, b in zip(entries, whole, strict=True) if not isinstance(b, ToolCallBlock)]
        return {**state, "blocks": kept}

    def interrupted_blocks(self) -> tuple[Block, ...]:
        """What an interrupted stream leaves to show: text and reasoning that is not blank."""
        kept: list[Block] = []
        for block in self._blocks.values():
            if isinstance(block, _Open):
                if block.kind not in ("text", "reasoning"):
                    continue
                block = block.close()
            if isinstance(block, TextBlock | ReasoningBlock) and block.text.strip():
                kept.append(block)
        return tuple(kept)

    def _whole(self) -> tuple[Block, ...]:
        return tuple(b.close() if isinstance(b, _Open) else b for b in self._blocks.values())

    def _is_cut(self) -> bool:
        return self.finish is not None and self.finish.kind == "max-tokens"
