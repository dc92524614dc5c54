"""The block assembler: the same message from any sequence of chunks that describes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.chunks import (
    BlockEnd,
    BlockStart,
    Chunk,
    Failure,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
    UsageChunk,
)
from dsh_actors.core.messages import OpaqueBlock, ReasoningBlock, TextBlock, ToolCallBlock
from dsh_actors.core.stream import BlockAssembler
from dsh_actors.errors import ProtocolError


def fed(*chunks: Chunk) -> BlockAssembler:
    assembler = BlockAssembler()
    for chunk in chunks:
        assembler.feed(chunk)
    return assembler


CALL = ToolCallBlock("c1", "bash", "{}")


def test_deltas_alone_make_blocks_in_first_seen_order() -> None:
    assembler = fed(
        TextDelta(3, "a"), ReasoningDelta(1, "r"), TextDelta(3, "b"), ToolCallDelta(2, "c1", "bash", "{}")
    )
    assert assembler.blocks() == (TextBlock("ab"), ReasoningBlock("r"), CALL)


def test_the_first_block_end_closes_a_block_for_good() -> None:
    assembler = fed(
        TextDelta(0, "draft"),
        BlockEnd(0, TextBlock("final")),
        TextDelta(0, "late"),
        BlockEnd(0, TextBlock("later")),
        BlockStart(0, "text"),
    )
    assert assembler.blocks() == (TextBlock("final"),)


def test_a_call_without_id_and_name_gets_what_is_needed() -> None:
    assert fed(ToolCallDelta(4, "", None, "{")).blocks() == (ToolCallBlock("call-4", "", "{"),)


def test_a_later_name_replaces_the_earlier_one() -> None:
    assembler = fed(ToolCallDelta(0, "c", "get_", ""), ToolCallDelta(0, "c", "get_time", "{}"))
    assert assembler.blocks() == (ToolCallBlock("c", "get_time", "{}"),)


def test_a_reply_cut_by_length_has_no_calls() -> None:
    assembler = fed(TextDelta(0, "t"), ToolCallDelta(1, "c1", "bash", '{"a'), Finish("max-tokens"))
    assert assembler.blocks() == (TextBlock("t"),)


def test_replay_entries_follow_the_blocks_that_stay() -> None:
    state = {"response": {"id": 1}, "blocks": ["of text", "of call", None]}
    chunks = (BlockEnd(0, TextBlock("t")), BlockEnd(1, CALL), BlockEnd(2, ReasoningBlock("r")))
    assert fed(*chunks, Finish("tool-calls", None, state)).replay_state() == state
    cut = fed(*chunks, Finish("max-tokens", None, state)).replay_state()
    assert cut == {"response": {"id": 1}, "blocks": ["of text", None]}


def test_replay_state_that_does_not_fit_is_dropped() -> None:
    assert fed(TextDelta(0, "t"), Finish("stop", None, {"blocks": [1, 2]})).replay_state() is None
    assert fed(TextDelta(0, "t"), Finish("stop", None, {"response": 1})).replay_state() == {"response": 1}
    assert fed(TextDelta(0, "t"), Finish("stop")).replay_state() is None
    assert fed(TextDelta(0, "t")).replay_state() is None


def test_what_follows_the_finish_is_ignored() -> None:
    usage = Usage(1, 2)
    assembler = fed(
        TextDelta(0, "t"), UsageChunk(usage), Finish("stop"), TextDelta(0, "!"), UsageChunk(Usage(9, 9))
    )
    assert (assembler.blocks(), assembler.usage, assembler.finish) == (
        (TextBlock("t"),),
        usage,
        Finish("stop"),
    )


def test_an_interrupted_stream_leaves_text_and_reasoning_that_is_not_blank() -> None:
    assembler = fed(
        ReasoningDelta(0, "thought"),
        TextDelta(1, " \n"),
        ToolCallDelta(2, "c", "bash", "{}"),
        BlockStart(3, "hologram"),
        BlockEnd(4, TextBlock("closed")),
        BlockEnd(5, OpaqueBlock({"type": "image"})),
        Finish("aborted", Failure("", "ABORTED")),
    )
    assert assembler.interrupted_blocks() == (ReasoningBlock("thought"), TextBlock("closed"))


@pytest.mark.parametrize("closed", [False, True])
def test_a_call_without_an_id_gets_one_of_its_place(closed: bool) -> None:
    end = (BlockEnd(3, ToolCallBlock("", "bash", "{}")),) if closed else ()
    assembler = fed(ToolCallDelta(3, "", "bash", "{}"), *end, Finish("tool-calls"))
    assert assembler.blocks() == (ToolCallBlock("call-3", "bash", "{}"),)


def test_an_unfinished_block_of_an_unknown_type_is_an_error() -> None:
    assembler = fed(BlockStart(0, "hologram"))
    with pytest.raises(ProtocolError, match="hologram"):
        assembler.blocks()
    closed = fed(BlockStart(0, "hologram"), BlockEnd(0, OpaqueBlock({"type": "hologram"})))
    assert closed.blocks() == (OpaqueBlock({"type": "hologram"}),)


def test_a_delta_of_another_kind_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="text delta for block 0"):
        fed(ReasoningDelta(0, "r"), TextDelta(0, "t"))


@given(
    text=st.text(),
    thought=st.text(),
    arguments=st.text(),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    starts=st.booleans(),
    ends=st.booleans(),
)
def test_any_cutting_of_the_same_message_gives_the_same_blocks(
    text: str, thought: str, arguments: str, sizes: list[int], starts: bool, ends: bool
) -> None:
    def pieces(whole: str) -> list[str]:
        cut, at, turn = [], 0, 0
        while at < len(whole):
            size = sizes[turn % len(sizes)]
            cut.append(whole[at : at + size])
            at, turn = at + size, turn + 1
        return cut or [""]

    chunks: list[Chunk] = []
    parts = {0: ("reasoning", thought), 1: ("text", text), 2: ("tool-call", arguments)}
    if starts:
        chunks += [BlockStart(index, kind) for index, (kind, _) in parts.items()]
    else:
        chunks += [ReasoningDelta(0, ""), TextDelta(1, ""), ToolCallDelta(2, "c1", "f", "")]
    streams = [
        [ReasoningDelta(0, p) for p in pieces(thought)],
        [TextDelta(1, p) for p in pieces(text)],
        [ToolCallDelta(2, "c1", "f", p) for p in pieces(arguments)],
    ]
    while any(streams):
        chunks += [stream.pop(0) for stream in streams if stream]
    message = (ReasoningBlock(thought), TextBlock(text), ToolCallBlock("c1", "f", arguments))
    if ends:
        chunks += [BlockEnd(index, block) for index, block in enumerate(message)]
    assert fed(*chunks, Finish("tool-calls")).blocks() == message
