"""The read tool: what the model sees of a file, and what it costs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.adapters.tools.read import LINE_CHARS, ReadTool
from dsh_actors.core.text import clean_text
from dsh_actors.errors import ToolError
from dsh_actors.testing.memory import peak_kib, reset_peak
from tests.adapters.tools.file_kit import Workspace, workspace_at
from tests.cpu_kit import cpu_seconds


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    return workspace_at(tmp_path)


def read(work: Workspace, **arguments: object) -> str:
    return work.text(ReadTool(), **arguments)


def test_lines_are_numbered_and_the_end_is_announced(work: Workspace) -> None:
    work.file("a", "one\ntwo\n")
    assert read(work, path="a") == "     1\tone\n     2\ttwo\n[lines 1-2; end of file]"


def test_a_missing_last_line_end_is_mentioned(work: Workspace) -> None:
    work.file("a", "one\ntwo")
    assert read(work, path="a", offset=2) == "     2\ttwo\n[lines 2-2; end of file, no newline at the end]"


def test_offset_and_limit_give_a_window_and_the_way_on(work: Workspace) -> None:
    work.file("a", "".join(f"l{n}\n" for n in range(1, 11)))
    assert (
        read(work, path="a", offset=3, limit=2) == "     3\tl3\n     4\tl4\n[lines 3-4; to go on: offset=5]"
    )
    assert read(work, path="a", offset=10, limit=1).endswith("[lines 10-10; end of file]")
    assert read(work, path="a", offset=2.0, limit=1.0).startswith("     2\tl2\n")


@pytest.mark.parametrize(("content", "lines"), [("a\nb\n", 2), ("a\nb", 2), ("", 0)])
def test_an_offset_past_the_end_says_how_long_the_file_is(work: Workspace, content: str, lines: int) -> None:
    work.file("a", content)
    for offset in (lines + 1, lines + 5):
        if offset > 1:
            with pytest.raises(ToolError, match=f"a has {lines} lines"):
                read(work, path="a", offset=offset)


def test_an_empty_file_says_so(work: Workspace) -> None:
    work.file("a")
    assert read(work, path="a") == "[a is empty]"


def test_crlf_is_shown_as_lf_and_the_byte_order_mark_is_hidden(work: Workspace) -> None:
    work.file("a", b"\xef\xbb\xbfone\r\ntwo\r\n")
    assert read(work, path="a") == "     1\tone\n     2\ttwo\n[lines 1-2; end of file]"


def test_a_long_line_is_cut_and_continued_by_byte_without_loss(work: Workspace) -> None:
    line = "é" * (LINE_CHARS + 5) + "漢end"
    work.file("a", f"first\n{line}\nlast\n")
    text = read(work, path="a")
    place = len("first\n") + 2 * LINE_CHARS
    assert f"… [the line goes on: a#byte={place}]\n     3\tlast\n" in text
    rest = read(work, path=f"a#byte={place}")
    assert rest.startswith("ééééé漢end\nlast\n[bytes ")
    assert rest.endswith("end of file]")


def test_a_window_of_bytes_is_cut_at_a_character_and_goes_on(work: Workspace) -> None:
    work = workspace_at(work.root.parent, output_limit_bytes=1000)
    whole = "漢字é🎉" * 400
    work.file("a", whole)
    seen, place = "", 0
    while True:
        text, _, footer = read(work, path=f"a#byte={place}").rpartition("\n[")
        seen += text
        if "end of file" in footer:
            break
        place = int(footer.rpartition("#byte=")[2].rstrip("]"))
    assert seen == whole
    with pytest.raises(ToolError, match="ends before byte"):
        read(work, path="a#byte=99999999")


def test_a_place_inside_a_character_goes_on_with_the_next_one(work: Workspace) -> None:
    work.file("a", "漢字")
    assert read(work, path="a#byte=1") == "字\n[bytes 3-5; end of file]"


def test_a_file_whose_name_looks_like_a_place_is_read_as_itself(work: Workspace) -> None:
    work.file("a#byte=3", "itself\n")
    assert "1\titself" in read(work, path="a#byte=3")


def test_binary_and_other_encodings_are_shown_escaped_and_flagged(work: Workspace) -> None:
    work.file("bin", b"\x7fELF\0\x01\n")
    work.file("latin", b"caf\xe9\n")
    assert read(work, path="bin") == (
        "     1\t\\x7fELF\\x00\\x01\n[lines 1-1; end of file; binary data, shown escaped]"
    )
    assert "     1\tcaf\ufffd\n" in read(work, path="latin")
    assert "stands for bytes that are not UTF-8" in read(work, path="latin")


def test_the_output_limit_ends_a_page_between_lines(work: Workspace) -> None:
    work = workspace_at(work.root.parent, output_limit_bytes=2000)
    work.file("a", "".join(f"{'x' * 50}{n}\n" for n in range(200)))
    first = read(work, path="a")
    assert len(first.encode()) <= 2000
    offset = int(first.rpartition("offset=")[2].rstrip("]"))
    assert read(work, path="a", offset=offset).startswith(f"{offset:6}\t{'x' * 50}{offset - 1}\n")


def test_one_line_of_a_huge_sparse_file_costs_neither_time_nor_memory(work: Workspace) -> None:
    path = work.file("huge", "first\n")
    os.truncate(path, 4 << 30)
    before = reset_peak()

    def read_both() -> None:
        assert "     1\tfirst\n" in read(work, path="huge", limit=1)
        assert "#byte=" in read(work, path="huge", offset=2, limit=1)

    assert cpu_seconds(read_both) < 1
    assert peak_kib() - before < 20_000


def test_a_line_too_long_to_skip_is_reported_instead_of_read(work: Workspace) -> None:
    path = work.file("huge", "")
    os.truncate(path, 200 << 20)
    assert "line 1 goes on for more than 64 MB" in read(work, path="huge")


def test_files_of_the_kernel_without_a_size_are_read(work: Workspace) -> None:
    assert "     1\t" in read(work, path="/proc/self/status")


def test_wrong_limits_are_refused(work: Workspace) -> None:
    work.file("a", "x\n")
    with pytest.raises(ToolError, match="limit"):
        read(work, path="a", limit=0)


def test_a_cancelled_call_stops(work: Workspace) -> None:
    work.file("a", "x\n" * 10)
    work.cancel.reason = "user"
    with pytest.raises(ToolError) as caught:
        read(work, path="a", offset=3)
    assert caught.value.code == "ABORTED"


@settings(max_examples=40)
@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: clean_text(text).encode()))
def test_any_bytes_give_well_formed_text_and_every_line(tmp_path: Path, content: bytes) -> None:
    work = workspace_at(tmp_path)
    work.file("a", content)
    text = read(work, path="a")
    assert text.encode().decode() == text
    assert not set(text) & set(map(chr, [*range(9), *range(14, 32), 127]))
    lines = content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
    assert f"[lines 1-{lines};" in text or (lines == 0 and "is empty" in text)
