"""`dsh session` on sessions with images: shown, exported and imported, verified, swept."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.attachments import AttachmentStore, open_attachments
from dsh_actors.cli.main import main
from dsh_actors.core import turn_io as io
from dsh_actors.core.chunks import Finish, TextDelta
from dsh_actors.core.events import Event
from dsh_actors.core.messages import ImageBlock, ImageRef, user_message
from dsh_actors.testing.machine import MachineDriver, call_chunks
from tests.cli.session_kit import flip
from tests.cli.session_kit import store as store_session
from tests.image_samples import gif, png

DATA = base64.b64encode(png()).decode()
WORDS = "a [1].png, PNG, 2 × 3"
ALT = "a (1).png, PNG, 2 × 3"


def log_with(image: ImageRef) -> list[Event]:
    """A turn whose prompt and whose tool result show the image."""
    driver = MachineDriver()
    driver.send(io.Deliver(user_message("m", "look", images=(ImageBlock(image),))))
    driver.settle()
    driver.reply(*call_chunks(("read", '{"path":"a"}')))
    driver.run_tool("seen", images=(ImageBlock(image),))
    driver.reply(TextDelta(0, "a pear"), Finish("stop"))
    return driver.log


class Place:
    """A home, and the program in this process."""

    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.home, self._capfd, self._monkeypatch = home, capfd, patch
        self.use(home)

    def use(self, home: Path) -> AttachmentStore:
        self._monkeypatch.setenv("DSH_HOME", str(home))
        return open_attachments(str(home))

    def run(self, *arguments: str) -> tuple[int, str, str]:
        code = main(["session", *arguments])
        captured = self._capfd.readouterr()
        return code, captured.out, captured.err

    def ok(self, *arguments: str) -> str:
        code, out, err = self.run(*arguments)
        assert (code, err) == (0, "")
        return out


@pytest.fixture
def place(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path / "home", capfd, monkeypatch)


@pytest.fixture
def images(place: Place) -> AttachmentStore:
    return open_attachments(str(place.home))


@pytest.fixture
def ref(place: Place, images: AttachmentStore) -> ImageRef:
    """The image of session ``s``."""
    image = images.put(png(), "a [1].png")
    store_session(place.home, "s", log_with(image), updated_s=3000)
    return image


def test_every_transcript_shows_the_images(place: Place, images: AttachmentStore, ref: ImageRef) -> None:
    assert place.ok("show", "s").count(f"[image {WORDS}]") == 2
    markdown = place.ok("export", "--format", "markdown", "s")
    assert markdown.count(f"![{ALT}](<{images.path(ref)}>)") == 2
    page = place.ok("export", "--format", "html", "s")
    tag = f'<img src="data:image/png;base64,{DATA}" alt="{WORDS}" width="2" height="3">'
    assert page.count(tag) == 2 and "img-src data:;" in page
    os.unlink(images.path(ref))
    without = place.ok("export", "--format", "html", "s")
    assert "<img" not in without and without.count("is not stored here") == 2


def test_lists_and_statistics_take_sessions_with_images(place: Place, ref: ImageRef) -> None:
    (row,) = [json.loads(line) for line in place.ok("ls", "--json").splitlines()]
    assert (row["id"], row["title"], row["status"]) == ("s", "look", "ok")
    assert "s" in place.ok("stats", "s")


def test_a_name_cannot_get_out_of_its_place(place: Place, images: AttachmentStore) -> None:
    name = """a"><script>alert(1)</script>'](x)\x1b[31m.png\n# heading"""
    store_session(place.home, "n", log_with(images.put(png(), name)))
    page = place.ok("export", "--format", "html", "n")
    assert "<script>alert" not in page and "\x1b" not in page and page.count("<img") == 2
    (alt, *_) = place.ok("export", "--format", "markdown", "n").partition("](<")[0].rpartition("![")[2:]
    assert "\n" not in alt and "]" not in alt


def test_a_page_embeds_a_bounded_amount(
    place: Place, ref: ImageRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dsh_actors.cli import transcript_images

    monkeypatch.setattr(transcript_images, "MAX_PAGE_BYTES", ref.size)
    page = place.ok("export", "--format", "html", "s")
    assert (page.count("<img"), page.count("is left out here")) == (1, 1)


def test_an_export_takes_the_images_along_and_an_import_brings_them(
    place: Place, ref: ImageRef, tmp_path: Path
) -> None:
    text, plain = place.ok("export", "s"), place.ok("export", "s", "--no-images")
    assert text.startswith(plain) and DATA not in plain
    (line,) = text.removeprefix(plain).splitlines()
    assert json.loads(line) == {"type": "attachment", "attachment": ref.to_json(), "data": DATA}
    file = tmp_path / "s.jsonl"
    file.write_text(text)
    other = place.use(tmp_path / "other")
    assert set(json.loads(place.ok("import", str(file), "--json"))) == {"id", "events", "left_out"}
    assert other.read(ref) == png()
    assert place.ok("export", "s") == text
    assert "ok" in place.ok("verify", "s")


@pytest.mark.parametrize("torn", [False, True])
def test_an_import_without_its_images_says_so(
    place: Place, ref: ImageRef, tmp_path: Path, torn: bool
) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(place.ok("export", "s")[:-9] if torn else place.ok("export", "s", "--no-images"))
    place.use(tmp_path / "other")
    assert "(1 of 1 images are missing)" in place.ok("import", str(file))
    assert json.loads(place.ok("import", "--json", "--session-id", "t", str(file)))["missing_images"] == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line.replace(DATA, "A" * len(DATA)),
        lambda line: line.replace(DATA, DATA[:-4]),
        lambda line: line.replace(DATA, "no base64!"),
        lambda line: line.replace('"bytes":', '"bytes":1'),
        lambda line: line.replace('"image/png"', '"text/html"'),
        lambda line: '{"type":"attachment",}\n',
        lambda line: '{"type":"attachment","attachment":5,"data":6}\n',
    ],
)
def test_a_damaged_image_in_an_import_is_refused_with_its_line_and_nothing_is_stored(
    place: Place, ref: ImageRef, tmp_path: Path, damage: object
) -> None:
    head, line = place.ok("export", "s", "--no-images"), place.ok("export", "s").splitlines(keepends=True)[-1]
    file = tmp_path / "s.jsonl"
    file.write_text(head + damage(line))  # type: ignore[operator]
    place.use(tmp_path / "other")
    code, out, err = place.run("import", str(file))
    assert (code, out) == (1, "") and f"damaged at line {head.count(chr(10)) + 1}: " in err
    assert not (tmp_path / "other").exists()


def test_no_images_is_for_json_lines_only(place: Place, ref: ImageRef) -> None:
    assert place.run("export", "s", "--no-images", "--format", "html")[0] == 2


def test_verify_names_an_image_that_is_damaged_or_gone(
    place: Place, images: AttachmentStore, ref: ImageRef
) -> None:
    path = Path(images.path(ref))
    path.write_bytes(b"other")
    code, out, err = place.run("verify", "s", "--json")
    (fault,) = json.loads(out)["faults"]
    assert code == 1 and fault["kind"] == "image" and str(path) in fault["reason"]
    assert "salvage" not in err
    path.unlink()
    code, _, err = place.run("verify", "--all")
    assert code == 1 and f"{WORDS} is not stored here" in err
    code, out, err = place.run("export", "s")
    assert code == 0 and "the export goes without it" in err and '"type":"attachment"' not in out


def age(images: AttachmentStore, *refs: ImageRef) -> None:
    before = time.time() - 25 * 3600
    for ref in refs:
        os.utime(images.path(ref), (before, before))


def test_prune_takes_images_that_no_session_refers_to(
    place: Place, images: AttachmentStore, ref: ImageRef
) -> None:
    other, fresh = images.put(gif()), images.put(png(7, 7))
    store_session(place.home, "t", log_with(ref), updated_s=2000)
    store_session(place.home, "u", log_with(other), updated_s=1000)
    age(images, ref, other)
    place.ok("prune", "--keep", "0", "--dry-run")
    place.ok("prune", "--keep", "5")
    assert set(images.digests()) == {ref.digest, other.digest, fresh.digest}
    rows = [json.loads(line) for line in place.ok("prune", "--keep", "2", "--json").splitlines()]
    assert [row.get("id") for row in rows] == ["u", None]
    assert (rows[-1]["total"]["images"], rows[-1]["total"]["image_bytes"]) == (1, len(gif()))
    assert set(images.digests()) == {ref.digest, fresh.digest}
    text = place.ok("prune", "--keep", "0")
    assert text.splitlines()[-1] == f"removed 1 images that no session refers to, {len(png())} B"
    assert set(images.digests()) == {fresh.digest}


def test_prune_keeps_all_images_while_a_session_cannot_be_read(
    place: Place, images: AttachmentStore, ref: ImageRef
) -> None:
    unused = images.put(gif())
    age(images, ref, unused)
    flip(place.home, "s", 1)
    code, _, err = place.run("prune", "--keep", "5")
    assert code == 0 and "images stay" in err and len(err.splitlines()) == 1
    assert set(images.digests()) == {ref.digest, unused.digest}
