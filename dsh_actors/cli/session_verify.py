"""`dsh session verify`: is what is stored whole, and does it add up?"""

from __future__ import annotations

import click

from dsh_actors.adapters.storage.attachments import AttachmentStore
from dsh_actors.cli.session_common import (
    as_json_option,
    configuration,
    flush,
    images,
    storage,
    write_json,
    write_text,
)
from dsh_actors.cli.session_images import ImageTally
from dsh_actors.core.ids import SessionId
from dsh_actors.core.verify import Report, Verifier, fault_of
from dsh_actors.errors import (
    SessionCorrupt,
    SessionError,
    SessionNotFound,
    SessionUnsupported,
    StorageError,
    UsageError,
)
from dsh_actors.ports import SessionStorage

__all__ = ["COMMAND", "verify_session"]


@click.command("verify", short_help="Check that sessions are whole and add up.")
@click.argument("sessions", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every stored session.")
@click.option("--requests", is_flag=True, help="Derive every model request again and compare its digest.")
@as_json_option
def verify(sessions: tuple[str, ...], every: bool, requests: bool, as_json: bool) -> int:
    """Check sessions: bytes, chain of segments, numbering, event types, that the events fit together, the
    newest checkpoint, and the images they refer to.

    Reads only. The first place of each kind of fault is named.
    """
    if every == bool(sessions):
        raise UsageError("name the sessions to verify, or give --all")
    config = configuration()
    stored, kept_images = storage(config), images(config)
    names = [SessionId(name) for name in sessions] or [listing.id for listing in stored.list()]
    if sessions:
        _require_all(stored, names)
    bad: list[tuple[SessionId, Report]] = []
    for name in names:
        report = verify_session(stored, name, requests=requests, kept_images=kept_images)
        if report.faults:
            bad.append((name, report))
        if as_json:
            write_json({"id": name, **report.to_json()})
        else:
            _write_report(name, report, requests)
    if not bad:
        return 0
    flush()
    first, report = bad[0]
    message = f"{len(bad)} of {len(names)} sessions did not pass; {first}: {report.faults[0].reason}"
    if all(report.status == "unsupported" for _, report in bad):
        raise SessionUnsupported(message, hint="a newer dsh may read it")
    if report.faults[0].kind == "image":
        raise SessionCorrupt(message, hint="attach the same file to any run, which stores it again")
    try:
        stored.damaged(first).header()
    except SessionError as error:
        # Nothing can be salvaged there: it is not damage, or there is nothing left.
        kind = StorageError if isinstance(error, StorageError) else SessionCorrupt
        raise kind(message, hint=error.hint) from error
    raise SessionCorrupt(message, hint="dsh session salvage ID copies what is readable")


def verify_session(
    stored: SessionStorage,
    session_id: SessionId,
    *,
    requests: bool = False,
    kept_images: AttachmentStore | None = None,
) -> Report:
    """Raises nothing for what is wrong with the session. ``kept_images`` None leaves images unchecked."""
    try:
        header = stored.header(session_id)
    except SessionError as error:
        return Report(faults=[fault_of(error)])
    try:
        kept = stored.checkpoint(session_id)
    except SessionError:
        kept = None  # the same damage is met in the log, and named there
    checkpoint = None if kept is None else (kept.next_seq, kept.state)
    verifier = Verifier(header, requests=requests, checkpoint=checkpoint)
    tally = ImageTally()
    try:
        for event in tally.passing(stored.read(session_id)):
            verifier.observe(event)
    except SessionError as error:
        verifier.fault_of(error)
    for reason in () if kept_images is None else tally.faults(kept_images):
        verifier.fault("image", None, reason)
    return verifier.finish()


def _require_all(stored: SessionStorage, names: list[SessionId]) -> None:
    """A name that does not exist is a mistake, and found before the long work."""
    for name in names:
        try:
            stored.header(name)
        except SessionNotFound:
            raise
        except SessionError:
            continue  # damage is what this command reports


def _write_report(name: SessionId, report: Report, requests: bool) -> None:
    text = f"{name}  {report.status}  {report.events} events"
    if requests:
        text += f"  {report.requests} requests"
    if report.closers:
        text += f"  interrupted ({report.closers} events will close it)"
    write_text(text)
    for fault in report.faults:
        write_text(f"  {fault.kind}: {fault.reason}")


COMMAND = verify
