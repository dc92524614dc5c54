"""Where a prompt comes from, and what refuses to be one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsh_actors.cli.prompt_input import argument_text, read_prompt
from dsh_actors.cli.streams import STREAMS
from dsh_actors.errors import UsageError
from dsh_actors.runtime.tasks import start_task
from tests.image_samples import png


@pytest.fixture
def stdin() -> Iterator[int]:
    """The writing end of a pipe that is standard input."""
    saved = os.dup(0)
    reading, writing = os.pipe()
    os.dup2(reading, 0)
    close(reading)
    STREAMS.has_stdin = True
    yield writing
    os.dup2(saved, 0)
    close(saved)


def close(descriptor: int) -> None:
    """Close at once: gevent's `os.close` waits for the loop to turn, and a blocking read would not let it."""
    os.fdopen(descriptor, "wb").close()


def finish(writing: int, data: bytes) -> None:
    os.write(writing, data)
    close(writing)


def test_an_argument_leaves_standard_input_alone(stdin: int) -> None:
    os.write(stdin, b"not read")
    assert read_prompt("hello", None, ()).text == "hello"
    close(stdin)
    assert os.read(0, 100) == b"not read"


@pytest.mark.parametrize("argument", [None, "-"])
def test_standard_input_is_read_to_its_end(stdin: int, argument: str | None) -> None:
    finish(stdin, "\ufeffsay 漢\n".encode())
    assert read_prompt(argument, None, ()).text == "say 漢\n"


def test_a_prompt_of_many_megabytes_comes_through_whole(stdin: int) -> None:
    data = b"0123456789abcdef" * 300_000
    # A process of its own: the reader blocks this one.
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=stdin)
    close(stdin)
    feeder = start_task(lambda _token: child.communicate(data, timeout=20), lambda _end: None, name="feeder")
    assert read_prompt("-", None, (), stdin_timeout_s=20).text.encode() == data
    assert feeder.join(20)


def test_an_endless_writer_is_cut_at_the_size(stdin: int) -> None:
    os.write(stdin, b"x" * 5000)
    prompt = read_prompt("-", None, (), stdin_max_bytes=1000)
    close(stdin)
    assert (prompt.text, len(prompt.notes)) == ("x" * 1000, 1)


def test_an_endless_writer_is_cut_in_time(stdin: int) -> None:
    os.write(stdin, b"so far")
    prompt = read_prompt("-", None, (), stdin_timeout_s=0.05)
    close(stdin)
    assert prompt.text == "so far" and "0.05 s" in prompt.notes[0]


@pytest.mark.parametrize("data", [b"", b"  \n\t"])
def test_blank_standard_input_is_refused(stdin: int, data: bytes) -> None:
    finish(stdin, data)
    with pytest.raises(UsageError, match="blank"):
        read_prompt(None, None, ())


def test_a_blank_argument_is_refused_without_reading(stdin: int) -> None:
    with pytest.raises(UsageError, match="blank"):
        read_prompt("  ", None, ())
    close(stdin)


def test_a_closed_standard_input_is_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STREAMS, "has_stdin", False)
    with pytest.raises(UsageError, match="closed"):
        read_prompt(None, None, ())
    assert read_prompt("hi", None, ()).text == "hi"


def test_a_file_holds_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_bytes(b"\xef\xbb\xbfline\r\nbad \xff\n")
    assert read_prompt(None, str(path), ()).text == "line\r\nbad \ufffd\n"


def test_two_prompts_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not both"):
        read_prompt("a", str(tmp_path / "p"), ())


@pytest.mark.parametrize("name", ["absent", ".", "nul\0"])
def test_an_unreadable_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--prompt-file: cannot read"):
        read_prompt(None, str(tmp_path / name), ())


def test_text_files_are_quoted_before_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("a\n```\nb\n```\n", "utf-8")
    text = read_prompt("what is this?", None, (str(path),)).text
    assert text == f"File {path}:\n````\na\n```\nb\n```\n````\n\nwhat is this?"


def test_the_name_of_a_file_stays_on_its_line(tmp_path: Path) -> None:
    path = tmp_path / "two\nlines  here"
    path.write_text("n")
    assert read_prompt("x", None, (str(path),)).text == f"File {tmp_path}/two lines  here:\n```\nn\n```\n\nx"


@pytest.mark.parametrize(
    ("data", "word"), [(b"\x89PNG\r\n", "image"), (b"GIF89a", "image"), (b"a\0b", "not a text file")]
)
def test_what_is_no_text_cannot_be_attached(tmp_path: Path, data: bytes, word: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=word):
        read_prompt("x", None, (str(path),))


def test_images_go_beside_the_text_and_are_named_in_it(tmp_path: Path) -> None:
    notes, picture = tmp_path / "notes", tmp_path / "p.png"
    notes.write_text("n")
    picture.write_bytes(png())
    prompt = read_prompt("look", None, (str(picture), str(notes), str(picture)))
    assert [(image.name, image.data) for image in prompt.images] == [(str(picture), png())] * 2
    assert prompt.text == f"File {notes}:\n```\nn\n```\n\nlook\n\nAttached images: {picture}, {picture}"


def test_images_that_are_too_wide_or_too_many_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    path.write_bytes(png(9000, 1))
    with pytest.raises(UsageError, match=r"^--file: .*p\.png has 9000 × 1 pixels"):
        read_prompt("x", None, (str(path),))
    path.write_bytes(png())
    assert len(read_prompt("x", None, (str(path),) * 20).images) == 20
    with pytest.raises(UsageError, match="--file: 21 images are too many"):
        read_prompt("x", None, (str(path),) * 21)


def test_an_argument_is_utf8_whatever_the_locale_took_it_for() -> None:
    assert argument_text(os.fsdecode("é漢\x1b".encode())) == "é漢\\x1b"
