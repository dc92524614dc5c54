"""The write tool: exact bytes, kept modes, made directories."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsh_actors.adapters.tools.write import WriteTool
from dsh_actors.errors import ToolError
from tests.adapters.tools.file_kit import Workspace, workspace_at


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    return workspace_at(tmp_path)


def test_a_new_file_is_created_with_its_directories(work: Workspace) -> None:
    text = work.text(WriteTool(), path="a/b/c.txt", content="one\ntwo\n")
    assert text == "created a/b/c.txt (8 bytes, 2 lines)"
    assert (work.root / "a/b/c.txt").read_bytes() == b"one\ntwo\n"
    assert os.listdir(work.root / "a/b") == ["c.txt"]


def test_a_file_is_overwritten_exactly_and_keeps_its_mode(work: Workspace) -> None:
    path = work.file("run.sh", "old")
    path.chmod(0o751)
    text = work.text(WriteTool(), path="run.sh", content="é\r\n漢")
    assert text == "overwrote run.sh (7 bytes, 2 lines; it had 3 bytes)"
    assert path.read_bytes() == "é\r\n漢".encode()
    assert path.stat().st_mode & 0o7777 == 0o751


def test_the_byte_order_mark_of_a_file_stays_and_stays_alone(work: Workspace) -> None:
    path = work.file("a", b"\xef\xbb\xbfold")
    for content in ("new", "\ufeffnewer"):
        work.run(WriteTool(), path="a", content=content)
        assert path.read_bytes() == b"\xef\xbb\xbf" + content.removeprefix("\ufeff").encode()
    plain = work.file("b", "old")
    work.run(WriteTool(), path="b", content="new")
    assert plain.read_bytes() == b"new"


def test_another_encoding_and_other_names_of_the_file_are_said(work: Workspace) -> None:
    path = work.file("a", "old".encode("utf-16"))
    os.link(path, work.root / "b")
    text = work.text(WriteTool(), path="a", content="new")
    assert text == (
        "overwrote a (3 bytes, 1 lines; it had 8 bytes of UTF-16; now it is UTF-8)\n"
        "[it had 1 other name (hard links), which keep the old content]"
    )
    assert (work.root / "b").read_bytes() == "old".encode("utf-16")


def test_a_file_that_may_be_written_but_not_read_is_overwritten(work: Workspace) -> None:
    path = work.file("a", "old")
    path.chmod(0o200)
    work.run(WriteTool(), path="a", content="new")
    path.chmod(0o600)
    assert path.read_text() == "new"


def test_a_new_file_gets_the_mode_of_the_umask(work: Workspace) -> None:
    before = os.umask(0o027)
    try:
        work.run(WriteTool(), path="a", content="")
    finally:
        os.umask(before)
    assert (work.root / "a").stat().st_mode & 0o777 == 0o640


def test_lone_surrogates_do_not_reach_the_disk(work: Workspace) -> None:
    work.run(WriteTool(), path="a", content="x\ud800y")
    assert (work.root / "a").read_text("utf-8") == "x\ufffdy"


def test_a_name_as_long_as_names_may_be_works(work: Workspace) -> None:
    work.run(WriteTool(), path="n" * 255, content="x")
    assert (work.root / ("n" * 255)).read_text() == "x"


def test_a_file_in_place_of_a_directory_is_a_clear_error(work: Workspace) -> None:
    work.file("a", "x")
    with pytest.raises(ToolError, match="a is not a directory"):
        work.run(WriteTool(), path="a/b", content="")


def test_a_cancelled_call_writes_nothing(work: Workspace) -> None:
    work.cancel.reason = "user"
    with pytest.raises(ToolError) as caught:
        work.run(WriteTool(), path="a", content="x")
    assert caught.value.code == "ABORTED"
    assert os.listdir(work.root) == []


def test_the_locale_changes_neither_content_nor_names(work: Workspace) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.adapters.tools.file_kit import workspace_at;"
        "from dsh_actors.adapters.tools.write import WriteTool;"
        r"workspace_at(Path(sys.argv[1])).run(WriteTool(), path='d\xe9\u6f22/\u6f22', content='\xe9\u6f22\n')"
    )
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PATH": os.environ["PATH"]}
    top = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", program, str(work.root.parent)], env=env, cwd=top, check=True)
    assert (work.root / "dé漢" / "漢").read_bytes() == "é漢\n".encode()
