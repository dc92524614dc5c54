"""`dsh session export`: a session whole, in a format for programs or for people. Streams."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator

import click

from dsh_actors.adapters.storage.attachments import AttachmentStore
from dsh_actors.cli.lines import json_line, write_atomically
from dsh_actors.cli.session_common import configuration, images, note, storage, write
from dsh_actors.cli.session_images import ImageTally, image_line
from dsh_actors.core.events import Event, SessionHeader
from dsh_actors.core.ids import SessionId
from dsh_actors.core.pricing import PriceOf
from dsh_actors.errors import (
    AttachmentError,
    HarnessError,
    StorageError,
    StorageFull,
    UsageError,
    is_disk_full,
)

__all__ = ["COMMAND", "FORMATS", "Exporter"]

Exporter = Callable[[SessionHeader, Iterable[Event], PriceOf, AttachmentStore], Iterator[bytes]]
"""Makes the pieces of an export. The price of ``PROVIDER/MODEL`` is None where it is not known."""


def _jsonl(
    header: SessionHeader, events: Iterable[Event], _price_of: PriceOf, store: AttachmentStore
) -> Iterator[bytes]:
    """The plain layout of the original harness, one header line, then one event a line; then the images."""
    tally = ImageTally()
    yield from _plain(header, tally.passing(events), _price_of, store)
    for ref in tally.refs.values():
        try:
            data = store.read(ref)
        except AttachmentError as error:
            note(f"{error.message}; the export goes without it")
            continue
        yield image_line(ref, data)


def _plain(
    header: SessionHeader, events: Iterable[Event], _price_of: PriceOf, _store: AttachmentStore
) -> Iterator[bytes]:
    yield json_line({"type": "session", **header.to_json()})
    for event in events:
        yield json_line(event.to_json())


def _markdown(
    header: SessionHeader, events: Iterable[Event], _price_of: PriceOf, store: AttachmentStore
) -> Iterator[bytes]:
    from dsh_actors.cli.transcript import markdown

    for piece in markdown(header, events, store.path):
        yield piece.encode("utf-8", "backslashreplace")


def _html(
    header: SessionHeader, events: Iterable[Event], price_of: PriceOf, store: AttachmentStore
) -> Iterator[bytes]:
    from dsh_actors.cli.transcript_html import html

    for piece in html(header, events, price_of=price_of, read_image=store.read):
        yield piece.encode("utf-8", "backslashreplace")


FORMATS: dict[str, Exporter] = {"jsonl": _jsonl, "markdown": _markdown, "html": _html}


@click.command("export", short_help="Print a session whole, for programs or people.")
@click.argument("session")
@click.option("--format", "form", type=click.Choice(list(FORMATS)), default="jsonl", show_default=True)
@click.option("--no-images", is_flag=True, help="Only references to images: the plain layout.")
@click.option("-o", "--output", metavar="FILE", help="Write to a file instead, atomically.")
def export(session: str, form: str, no_images: bool, output: str | None) -> int:
    """Print a session whole: its header and every event as JSON lines, or for people to read.

    The images that JSON lines refer to follow the events, a line each.
    """
    if no_images and form != "jsonl":
        raise UsageError("--no-images is for --format jsonl")
    config = configuration()
    sessions, session_id = storage(config), SessionId(session)
    exporter = _plain if no_images else FORMATS[form]
    header, events = sessions.header(session_id), sessions.read(session_id)
    pieces = exporter(header, events, config.price, images(config))
    if output is None:
        for piece in pieces:
            write(piece)
        return 0
    try:
        write_atomically(output, pieces)
    except OSError as error:
        raise _unwritable(output, error) from error
    return 0


def _unwritable(path: str, error: OSError) -> HarnessError:
    """The user's mistake, a disk without room, or a disk that fails."""
    message = f"cannot write {path}: {error.strerror}"
    if is_disk_full(error):
        return StorageFull(message)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS):
        return UsageError(message, hint="choose another file with --output")
    return StorageError(message)


COMMAND = export
