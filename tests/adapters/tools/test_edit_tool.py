"""The edit tool: only the matched region changes, and every refusal says what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsh_actors.adapters.tools.edit import EditTool
from dsh_actors.errors import ToolError
from tests.adapters.tools.file_kit import Workspace, workspace_at


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    return workspace_at(tmp_path)


def edit(work: Workspace, old: str, new: str, path: str = "a", **more: object) -> str:
    return work.text(EditTool(), path=path, old=old, new=new, **more)


def refusal(work: Workspace, old: str, new: str, path: str = "a") -> str:
    before = (work.root / path).read_bytes() if (work.root / path).exists() else None
    with pytest.raises(ToolError) as caught:
        edit(work, old, new, path)
    after = (work.root / path).read_bytes() if (work.root / path).exists() else None
    assert after == before
    return caught.value.message


def test_one_place_is_replaced_and_shown(work: Workspace) -> None:
    path = work.file("a", "one\ntwo\nthree\n")
    path.chmod(0o700)
    assert edit(work, "two\n", "2\nzwei\n") == "edited a at line 2\n-two\n+2\n+zwei"
    assert path.read_text() == "one\n2\nzwei\nthree\n"
    assert path.stat().st_mode & 0o777 == 0o700


def test_several_places_need_all_or_more_text(work: Workspace) -> None:
    path = work.file("a", "x\ny\nx\nx\n")
    assert refusal(work, "x", "z") == (
        "old occurs 3 times in a (lines 1, 3, 4): add lines around it to make it unique, or set all"
    )
    assert edit(work, "x", "z", all=True) == "edited a at line 1, 3 places\n-x\n+z"
    assert path.read_text() == "z\ny\nz\nz\n"


def test_overlapping_places_are_ambiguous(work: Workspace) -> None:
    work.file("a", "aaa")
    assert "occurs 2 times" in refusal(work, "aa", "b")


def test_lf_text_edits_a_crlf_file_and_keeps_its_line_ends(work: Workspace) -> None:
    path = work.file("a", b"one\r\ntwo\r\nthree\r\nfour\r\n")
    edit(work, "two\nthree", "2\n2b\n3")
    assert path.read_bytes() == b"one\r\n2\r\n2b\r\n3\r\nfour\r\n"
    edit(work, "four", "4\n5")
    assert path.read_bytes() == b"one\r\n2\r\n2b\r\n3\r\n4\r\n5\r\n"


def test_a_file_of_mixed_line_ends_keeps_each(work: Workspace) -> None:
    path = work.file("a", b"a\r\nb\nc\r\nd\n")
    edit(work, "a\nb\nc", "A\nB\nC")
    assert path.read_bytes() == b"A\r\nB\nC\r\nd\n"


def test_line_ends_that_are_spelled_out_are_taken_literally(work: Workspace) -> None:
    path = work.file("a", b"a\r\nb\r\n")
    edit(work, "a\r\nb\r\n", "a\nb\n")
    assert path.read_bytes() == b"a\nb\n"


def test_the_byte_order_mark_stays_and_stays_alone(work: Workspace) -> None:
    path = work.file("a", b"\xef\xbb\xbffirst\nsecond\n")
    edit(work, "first", "1st")
    assert path.read_bytes() == b"\xef\xbb\xbf1st\nsecond\n"
    edit(work, "\ufeff1st", "\ufeffone")
    assert path.read_bytes() == b"\xef\xbb\xbfone\nsecond\n"


def test_bytes_that_are_not_utf8_survive(work: Workspace) -> None:
    path = work.file("a", b"caf\xe9 = 1\nna\xefve = 2\n\xff")
    edit(work, "= 1", "= 3")
    assert path.read_bytes() == b"caf\xe9 = 3\nna\xefve = 2\n\xff"


def test_a_file_of_another_encoding_is_never_mixed_with_utf8(work: Workspace) -> None:
    content = b"caf\xe9 = 1\n"
    path = work.file("a", content)
    assert "not UTF-8" in refusal(work, "= 1", "= \u6f22\u00e9")
    assert "not UTF-8" in refusal(work, "caf\u00e9", "tea")
    assert path.read_bytes() == content
    mixed = work.file("b", content + "th\u00e9 = 2\n".encode())
    edit(work, "th\u00e9 = 2", "th\u00e9 \u6f22", path="b")
    assert mixed.read_bytes() == content + "th\u00e9 \u6f22\n".encode()


def test_the_replacement_character_never_replaces_bytes(work: Workspace) -> None:
    work.file("a", b"caf\xe9 = 1\n")
    assert "not UTF-8" in refusal(work, "caf\ufffd = 1", "caf\ufffd = 2")
    assert "cannot be shown" in refusal(work, "= 1", "\ufffd")
    path = work.file("b", "real \ufffd here\n")
    edit(work, "\ufffd here", "\ufffd there", path="b")
    assert path.read_text() == "real \ufffd there\n"


def test_a_repeated_edit_is_already_applied(work: Workspace) -> None:
    path = work.file("a", "x = 1\ny = 1\n")
    edit(work, "x = 1", "x = 2")
    again = work.run(EditTool(), path="a", old="x = 1", new="x = 2")
    assert again.text == (
        "already applied, nothing changed: a has the new text at line 1 and not the old text"
    )
    assert not again.is_error
    assert path.read_text() == "x = 2\ny = 1\n"


def test_a_repeated_insertion_is_already_applied(work: Workspace) -> None:
    path = work.file("a", b"import a\r\nrun()\r\n")
    edit(work, "import a\n", "import a\nimport b\n")
    assert "already applied" in edit(work, "import a\n", "import a\nimport b\n")
    assert path.read_bytes() == b"import a\r\nimport b\r\nrun()\r\n"


def test_a_missing_text_gets_a_hint(work: Workspace) -> None:
    work.file("a", "def run():\n    return 1\n\ndef stop():\n\treturn  2\n")
    assert "line 1 is the same but for blanks" in refusal(work, "def run():\n  return 1", "x")
    assert refusal(work, "def stopp():", "x").endswith("; the closest line is 4: 'def stop():'")
    assert refusal(work, "qqqqqq", "x") == "old was not found in a; read the file again"


def test_an_empty_old_creates_only_where_nothing_is(work: Workspace) -> None:
    assert edit(work, "", "new\n", path="d/new") == "created d/new (4 bytes)"
    assert (work.root / "d/new").read_text() == "new\n"
    work.file("empty")
    edit(work, "", "x", path="empty")
    assert (work.root / "empty").read_text() == "x"
    assert "old is empty" in refusal(work, "", "x", path="d/new")


def test_useless_edits_are_refused(work: Workspace) -> None:
    work.file("a", "x")
    assert "the same" in refusal(work, "x", "x")
    assert "does not exist" in refusal(work, "x", "y", path="missing")
    assert not (work.root / "missing").exists()
    assert "does not exist" in refusal(work, "x", "y", path="no/dir/missing")
    assert not (work.root / "no").exists()


def test_a_utf16_file_is_refused_with_the_reason(work: Workspace) -> None:
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"):
        content = "text".encode(encoding)
        path = work.file("a", content)
        for old in ("text", "t", "\0t"):
            assert "UTF-" in refusal(work, old, "other")
        assert path.read_bytes() == content
    mark = work.file("a", b"\xfe\xff" + "\u7874\u7465".encode("utf-16-be"))
    assert "is UTF-16" in refusal(work, "te", "other")  # bytes that spell it, and no NUL
    assert mark.read_bytes() == b"\xfe\xffxtte"


def test_a_binary_file_is_refused(work: Workspace) -> None:
    path = work.file("a", b"OLD\0\1\2")
    assert "is binary" in refusal(work, "OLD", "NEW")
    assert path.read_bytes() == b"OLD\0\1\2"


def test_other_names_of_the_file_are_told_to_keep_the_old_content(work: Workspace) -> None:
    path = work.file("a", "x = 1\n")
    os.link(path, work.root / "b")
    assert edit(work, "1", "2").endswith("[it had 1 other name (hard links), which keep the old content]")
    assert (path.read_text(), (work.root / "b").read_text()) == ("x = 2\n", "x = 1\n")
    assert "hard links" not in edit(work, "2", "3")


def test_a_summary_stays_short(work: Workspace) -> None:
    work.file("a", "x\n")
    text = edit(work, "x", "\n".join("y" * 1000 for _ in range(100)))
    assert len(text) < 4000
    assert "+… 88 more lines" in text


BYTES = st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r\n", b"\xe9", b"\xef\xbb\xbf", b"\1"]), max_size=12)


@settings(max_examples=60)
@given(BYTES, BYTES, st.sampled_from(["OLD", "O\nD"]), st.sampled_from(["NEW", "N\nW", ""]))
def test_bytes_around_the_region_never_change(
    tmp_path: Path, before: list[bytes], after: list[bytes], old: str, new: str
) -> None:
    work = workspace_at(tmp_path)
    prefix, suffix = b"".join(before), b"".join(after)
    for end in (b"\n", b"\r\n"):
        path = work.file("a", prefix + old.encode().replace(b"\n", end) + suffix)
        edit(work, old, new)
        changed = path.read_bytes()
        assert changed.startswith(prefix)
        assert changed.endswith(suffix)
        middle = changed[len(prefix) : len(changed) - len(suffix)]
        assert middle.replace(b"\r\n", b"\n") == new.encode()
