"""`dsh session import`: a session from an exported file, ours or the original harness's."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import IO, BinaryIO, cast

import click

from dsh_actors.adapters.storage.importing import ImportFile, store_session
from dsh_actors.cli.session_common import (
    as_json_option,
    configuration,
    images,
    storage,
    write_json,
    write_text,
)
from dsh_actors.cli.session_images import ImageTally
from dsh_actors.cli.streams import STREAMS
from dsh_actors.config import prepare_home
from dsh_actors.core.events import Event
from dsh_actors.errors import SessionExists, UsageError
from dsh_actors.task_spec import chosen_session_id, session_exists

__all__ = ["COMMAND"]


@click.command("import", short_help="Store a session from an exported file.")
@click.argument("file")
@click.option("--session-id", metavar="ID", help="Another id than the one in the file.")
@as_json_option
def import_(file: str, session_id: str | None, as_json: bool) -> int:
    """Store a session from FILE (- for standard input): JSON lines, plain or zstd.

    The whole file is checked first. A torn last line is left out; any other damage, an unknown event
    or a retired format is refused, and nothing is stored. Images that the session refers to and that
    neither the file nor this home has are counted; the session works without them.
    """
    config = configuration(reading=False)
    stored = storage(config)
    with _opened(file) as source:
        header, left_out = source.header()
        if session_id is not None:
            header = replace(header, id=chosen_session_id(session_id))
        else:
            chosen_session_id(header.id, "choose another with --session-id")
        if session_exists(stored, header.id):
            hint = "choose another id with --session-id"
            raise SessionExists(f"session {header.id!r} exists already", hint=hint)
        checked = source.check()
        if checked == 0:
            raise UsageError(f"{source.name} has a header and no events: there is nothing to import")
        prepare_home(config.require_home())
        store, tally = images(config), ImageTally()
        events = _as_checked(source, checked, source.events(store.keep))
        count = store_session(stored, header, tally.passing(events))
    missing = len(list(tally.faults(store)))
    if as_json:
        lost = {"missing_images": missing} if missing else {}
        write_json({"id": header.id, "events": count, "left_out": left_out, **lost})
    else:
        note = f" (unknown in its header, left out: {', '.join(left_out)})" if left_out else ""
        gone = f" ({missing} of {len(tally.refs)} images are missing)" if missing else ""
        write_text(f"{header.id}: {count} events{note}{gone}")
    return 0


def _as_checked(source: ImportFile, count: int, events: Iterator[Event]) -> Iterator[Event]:
    """``events``. Raises `UsageError` at their end if there were not ``count``."""
    found = 0
    for event in events:
        found += 1
        yield event
    if found != count:
        raise UsageError(f"{source.name} changed while it was read; nothing was stored")


@contextmanager
def _opened(name: str) -> Iterator[ImportFile]:
    """The file, or a temporary copy of what cannot be read twice. Raises `UsageError`."""
    with ExitStack() as stack:
        try:
            if name == "-":
                source: IO[bytes] | None = sys.stdin.buffer if STREAMS.has_stdin else None
            else:
                source = stack.enter_context(open(name, "rb"))
            if source is None:
                raise UsageError("there is no standard input to read from")
            if name == "-" or not source.seekable():
                copy = stack.enter_context(tempfile.TemporaryFile())
                shutil.copyfileobj(source, copy)
                source = copy
        except OSError as error:
            raise UsageError(f"cannot read {name}: {error.strerror}") from error
        yield ImportFile(cast(BinaryIO, source), "standard input" if name == "-" else name)


COMMAND = import_
