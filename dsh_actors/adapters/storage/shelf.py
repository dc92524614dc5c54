"""The images of one harness: those of its home, and those that are not kept. Loads nothing before it must."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dsh_actors.core.messages import ImageRef
from dsh_actors.errors import AttachmentError

if TYPE_CHECKING:
    from dsh_actors.adapters.storage.attachments import AttachmentStore, MemoryAttachments

__all__ = ["AttachmentShelf"]


class AttachmentShelf:
    """Without a ``home`` images live as long as the process.

    ``prepare`` is called before something is stored on the disk; it may raise `ConfigError`.
    """

    def __init__(self, home: str | None, prepare: Callable[[], None]) -> None:
        self._home = home
        self._prepare = prepare
        self._stores: dict[None, tuple[AttachmentStore | None, MemoryAttachments]] = {}

    def put(self, data: bytes, name: str | None = None, *, ephemeral: bool = False) -> ImageRef:
        """Raises what `AttachmentStore.put` and the preparation of the home raise."""
        disk, memory = self._places()
        if ephemeral or disk is None:
            return memory.put(data, name)
        self._prepare()
        return disk.put(data, name)

    def read(self, ref: ImageRef) -> bytes:
        """Raises `AttachmentError`."""
        disk, memory = self._places()
        try:
            return memory.read(ref)
        except AttachmentError:
            if disk is None:
                raise
        return disk.read(ref)

    def _places(self) -> tuple[AttachmentStore | None, MemoryAttachments]:
        if None not in self._stores:
            from dsh_actors.adapters.storage.attachments import MemoryAttachments, open_attachments

            disk = None if self._home is None else open_attachments(self._home)
            # One atomic step: tools ask from native threads of their own.
            self._stores.setdefault(None, (disk, MemoryAttachments()))
        return self._stores[None]
