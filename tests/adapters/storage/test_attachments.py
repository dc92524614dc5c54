"""The store of images: each once, private, checked whenever it is read."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
import time
from pathlib import Path

import pytest

from dsh_actors.adapters.storage import attachments
from dsh_actors.adapters.storage.attachments import (
    AttachmentStore,
    MemoryAttachments,
    open_attachments,
)
from dsh_actors.adapters.storage.shelf import AttachmentShelf
from dsh_actors.core import images
from dsh_actors.core.messages import ImageRef
from dsh_actors.errors import AttachmentError, ConfigError, ImageRefused, StorageFull
from tests.image_samples import gif, png

DAY_S = 24 * 3600


@pytest.fixture
def store(tmp_path: Path) -> AttachmentStore:
    return open_attachments(str(tmp_path / "home"))


def files(tmp_path: Path) -> list[Path]:
    return [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]


def failure(store: AttachmentStore | AttachmentShelf, ref: ImageRef) -> str:
    with pytest.raises(AttachmentError) as caught:
        store.read(ref)
    return caught.value.code


def test_an_image_is_kept_once_under_its_digest_for_its_owner_only(
    store: AttachmentStore, tmp_path: Path
) -> None:
    old = os.umask(0)
    try:
        ref = store.put(png(), "a.png")
        again = store.put(png(), "b.png")
    finally:
        os.umask(old)
    assert (ref.id, ref.name, again.name) == (again.id, "a.png", "b.png")
    (path,) = files(tmp_path)
    digest = ref.id.removeprefix("sha256:")
    assert path == tmp_path / "home" / "attachments" / "sha256" / digest[:2] / digest
    assert str(path) == store.path(ref)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(stat.S_IMODE(path.parents[depth].stat().st_mode) == 0o700 for depth in range(4))
    assert store.read(ref) == store.read(again) == png()


def test_what_is_no_image_is_refused_and_creates_nothing(store: AttachmentStore, tmp_path: Path) -> None:
    with pytest.raises(ImageRefused):
        store.put(png()[:-1])
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("damaged", [png()[:-1], b"x" + png()[1:], png() * 2, b""])
def test_a_damaged_image_is_never_given_out_and_made_good_by_the_next_put(
    store: AttachmentStore, damaged: bytes
) -> None:
    ref = store.put(png())
    Path(store.path(ref)).write_bytes(damaged)
    assert failure(store, ref) == "ATTACHMENT_CORRUPT"
    store.put(png())
    assert store.read(ref) == png()


def test_a_missing_image_and_another_size_are_told_apart(store: AttachmentStore) -> None:
    ref = store.put(png())
    assert failure(store, dataclasses.replace(ref, size=ref.size + 1)) == "ATTACHMENT_CORRUPT"
    os.unlink(store.path(ref))
    assert failure(store, ref) == "ATTACHMENT_NOT_FOUND"
    os.mkdir(store.path(ref))
    assert failure(store, ref) == "ATTACHMENT_READ_FAILED"


def test_a_link_to_the_same_bytes_gives_way_to_a_file(store: AttachmentStore, tmp_path: Path) -> None:
    ref = store.put(png())
    elsewhere = tmp_path / "elsewhere.png"
    os.rename(store.path(ref), elsewhere)
    os.symlink(elsewhere, store.path(ref))
    store.put(png())
    assert not os.path.islink(store.path(ref))
    assert store.read(ref) == elsewhere.read_bytes() == png()


def test_images_in_memory_are_told_apart_by_size_too() -> None:
    memory = MemoryAttachments()
    ref = memory.put(png())
    with pytest.raises(AttachmentError) as caught:
        memory.read(dataclasses.replace(ref, size=ref.size + 1))
    assert caught.value.code == "ATTACHMENT_NOT_FOUND"


def test_limits_of_today_do_not_bind_what_is_stored(
    store: AttachmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = store.put(png())
    monkeypatch.setattr(images, "MAX_IMAGE_BYTES", 10)
    assert store.read(ref) == png()
    os.unlink(store.path(ref))
    store.keep(ref, png())
    assert store.read(ref) == png()
    with pytest.raises(AttachmentError, match="damaged"):
        store.keep(ref, gif())


def test_a_full_disk_says_so_and_leaves_nothing_half_made(
    store: AttachmentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageFull):
        store.put(png())
    assert files(tmp_path) == []


def test_only_what_was_not_used_for_a_day_is_idle(store: AttachmentStore) -> None:
    old, new = store.put(png()), store.put(gif())
    before = time.time() - DAY_S - 60
    os.utime(store.path(old), (before, before))
    assert set(store.digests()) == {old.digest, new.digest}
    assert store.idle() == {old.digest}
    store.put(png())
    assert store.idle() == set() and store.remove(old.digest) == 0
    os.utime(store.path(old), (before, before))
    assert store.remove(old.digest) == len(png())
    assert store.remove(old.digest) == 0
    assert set(store.digests()) == {new.digest}
    assert attachments.GRACE_S == DAY_S


def test_what_a_killed_writer_left_goes_after_a_day(store: AttachmentStore) -> None:
    folder = Path(store.path(store.put(png()))).parent
    old, new, other = (folder / name for name in (".draft-1-ab", ".draft-2-cd", "notes"))
    for path in (old, new, other):
        path.write_bytes(b"x")
    for path in (old, other):
        os.utime(path, (1, 1))
    store.remove_drafts()
    assert [path.exists() for path in (old, new, other)] == [False, True, True]


def test_foreign_files_are_not_taken_for_images(store: AttachmentStore) -> None:
    ref = store.put(png())
    folder = Path(store.path(ref)).parent
    (folder / "notes.txt").write_text("x")
    (folder / ("0" * 64)).write_text("in the wrong folder")
    (folder.parent / "readme").write_text("x")
    assert list(store.digests()) == [ref.digest] or folder.name == "00"


def test_a_run_that_keeps_nothing_has_its_images_and_those_of_the_home(tmp_path: Path) -> None:
    stored = open_attachments(str(tmp_path)).put(gif())
    shelf = AttachmentShelf(str(tmp_path), lambda: None)
    ref = shelf.put(png(), ephemeral=True)
    assert (shelf.read(ref), shelf.read(stored)) == (png(), gif())
    assert len(files(tmp_path)) == 1
    assert failure(AttachmentShelf(None, lambda: None), ref) == "ATTACHMENT_NOT_FOUND"


def test_images_that_are_not_kept_take_bounded_memory_and_the_newest_always_stays() -> None:
    memory = MemoryAttachments(limit_bytes=len(png()) + len(png(5, 5)))
    first, second = memory.put(png()), memory.put(gif())
    memory.put(png())
    third = memory.put(png(5, 5))
    assert memory.read(third) == png(5, 5)
    assert memory.read(first) == png(), "what is put again counts as new"
    with pytest.raises(AttachmentError):
        memory.read(second)
    larger = memory.put(png(100, 100, 7) + bytes(1_000))
    with pytest.raises(AttachmentError):
        memory.read(first)
    assert len(memory.read(larger)) > len(png()) + len(gif())
    assert MemoryAttachments(limit_bytes=0).put(png()).size == len(png())


def test_nothing_is_stored_where_there_is_no_home_for_it(tmp_path: Path) -> None:
    def refuse() -> None:
        raise ConfigError("no place")

    shelf = AttachmentShelf(str(tmp_path), refuse)
    with pytest.raises(ConfigError):
        shelf.put(png())
    assert files(tmp_path) == []
    assert AttachmentShelf(None, refuse).put(png()).size == len(png())
