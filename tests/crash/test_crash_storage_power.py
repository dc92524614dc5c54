"""The power fails before every single change to the disk: what was not synced is lost, nothing else.

The model of a disk is the strictest: a file has what it had when it was last synced, a directory
the entries that it had when *it* was. All points are looked at in one process.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dsh_actors.errors import SessionError
from tests.crash.storage_scenarios import BATCH, BATCHES, live, require_right, watch


class Disk:
    """What would be found after a power failure: contents and entries by inode, as last synced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: dict[int, bytes] = {}
        self.entries: dict[int, dict[str, int]] = {root.stat().st_ino: {}}
        self.folders: set[int] = {root.stat().st_ino}

    def sync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISDIR(status.st_mode):
            self.contents[status.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
            return
        with os.scandir(descriptor) as entries:
            found = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
        self.entries[status.st_ino] = {name: one.st_ino for name, one in found.items()}
        self.folders |= {one.st_ino for one in found.values() if stat.S_ISDIR(one.st_mode)}

    def rebuild(self, place: Path, inode: int | None = None) -> None:
        """Make ``place`` the directory as it is found after the failure."""
        place.mkdir()
        for name, child in self.entries.get(inode or self.root.stat().st_ino, {}).items():
            if child in self.folders:
                self.rebuild(place / name, child)
            else:
                (place / name).write_bytes(self.contents.get(child, b""))


def test_the_power_may_fail_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "live"
    root.mkdir()
    disk, durable, points = Disk(root), 0, 0
    images: list[tuple[Path, int]] = []

    def before(_name: str) -> None:
        nonlocal points
        image = tmp_path / f"image-{points}"
        disk.rebuild(image)
        images.append((image, durable))
        points += 1

    def synced(call: Any) -> Any:
        def stand_in(descriptor: int) -> Any:
            result = call(descriptor)
            disk.sync(descriptor)
            return result

        return stand_in

    with monkeypatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, synced(getattr(os, name)))
        is_building = False

        def once(name: str) -> None:
            nonlocal is_building
            if not is_building:  # building an image changes the disk too
                is_building = True
                before(name)
                is_building = False

        watch(once, lambda name, call: patch.setattr(os, name, call))
        for durable in live(str(root)):  # noqa: B007 - what fails behind the yield knows of it
            continue
    assert durable == BATCHES * BATCH and points > 60
    with monkeypatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, lambda _descriptor: None)
        for image, known in images:
            require_right(str(image), known)


@pytest.mark.parametrize("unsynced", ["fsync", "fdatasync"])
def test_the_model_notices_a_missing_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsynced: str
) -> None:
    root = tmp_path / "live"
    root.mkdir()
    disk = Disk(root)
    with monkeypatch.context() as patch:
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, disk.sync if name != unsynced else lambda _descriptor: None)
        for _durable in live(str(root)):
            continue
    disk.rebuild(tmp_path / "image")
    with pytest.raises((AssertionError, SessionError)):
        require_right(str(tmp_path / "image"), BATCHES * BATCH)
