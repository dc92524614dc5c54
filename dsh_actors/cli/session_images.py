"""The images that stored sessions refer to: checked, swept, written into an export and read from one."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator

from dsh_actors.adapters.storage.attachments import AttachmentStore
from dsh_actors.cli.lines import json_line
from dsh_actors.core.events import Event
from dsh_actors.core.images import images_of
from dsh_actors.core.messages import ImageRef
from dsh_actors.errors import AttachmentError, SessionNotFound
from dsh_actors.ports import SessionStorage

__all__ = ["ImageTally", "image_line", "sweep"]


class ImageTally:
    """Collects the images of the events that pass through it. ``refs``: each once, by digest."""

    def __init__(self) -> None:
        self.refs: dict[str, ImageRef] = {}

    def observe(self, event: Event) -> None:
        for ref in images_of(event):
            self.refs.setdefault(ref.digest, ref)

    def passing(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            self.observe(event)
            yield event

    def faults(self, store: AttachmentStore) -> Iterator[str]:
        """What is wrong with those that are not whole in the store."""
        for ref in self.refs.values():
            try:
                store.read(ref)
            except AttachmentError as error:
                yield error.message


def image_line(ref: ImageRef, data: bytes) -> bytes:
    """An image as a line of an export."""
    text = base64.b64encode(data).decode("ascii")
    return json_line({"type": "attachment", "attachment": ref.to_json(), "data": text})


def sweep(stored: SessionStorage, store: AttachmentStore) -> tuple[int, int]:
    """Remove images that no session refers to; how many, and their bytes.

    Raises `SessionError` where a session cannot be read to its end: it may refer to any of them.
    """
    store.remove_drafts()
    unused = store.idle()
    if not unused:
        return 0, 0
    for listing in stored.list():
        try:
            for event in stored.read(listing.id):
                unused.difference_update(ref.digest for ref in images_of(event))
        except SessionNotFound:
            continue  # removed meanwhile
        if not unused:
            break
    freed = [store.remove(digest) for digest in sorted(unused)]
    return sum(size > 0 for size in freed), sum(freed)
