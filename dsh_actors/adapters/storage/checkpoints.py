"""Checkpoint files: the folded state of a session beside its log, each proved against the log.

A checkpoint counts when the log has the very record that it was made after. That its state is
the fold of that log is its writer's word: only folding everything would tell. Without usable
checkpoints a session opens the same, later.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass

from dsh_actors.adapters.storage.files import write_atomically
from dsh_actors.adapters.storage.frames import FrameDamage, compress_frame, opened
from dsh_actors.adapters.storage.layout import CHECKPOINTS_NAME, fsync_directory, storage_error
from dsh_actors.adapters.storage.recovery import LogReader, Place
from dsh_actors.core.codec import encode_batch
from dsh_actors.core.events import Event
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import EventRefused, SessionError
from dsh_actors.ports import Checkpoint

__all__ = ["FORMAT", "Found", "newest_checkpoint", "record_digest", "save_checkpoint"]

FORMAT = 1
KEPT = 2

_NAME = re.compile(r"(\d{12,})\.json\.zst")


@dataclass(frozen=True, slots=True)
class Found:
    """A usable checkpoint and where the log goes on behind it."""

    checkpoint: Checkpoint
    place: Place


def newest_checkpoint(directory: str, session_id: str) -> Found | None:
    """The newest one that can be read and fits the log; None if there is none. Raises nothing."""
    for next_seq, name in reversed(_stored(directory)):
        try:
            found, digest = _read(os.path.join(directory, CHECKPOINTS_NAME, name), session_id, next_seq)
            before = next(LogReader(directory).events(next_seq - 1), None)
        except (SessionError, EventRefused, FrameDamage, ValueError, TypeError, KeyError, RecursionError):
            continue  # damaged, foreign, newer, or in a log that is: the log itself is what counts
        if before is not None and before.seq == next_seq - 1 and record_digest(before) == digest:
            return found
    return None


def record_digest(event: Event) -> str:
    """SHA-256 of an event's own line, however it is packed in the log."""
    return hashlib.sha256(encode_batch((event,))).hexdigest()


def save_checkpoint(
    directory: str, session_id: str, checkpoint: Checkpoint, place: Place, digest: str
) -> None:
    """Store a checkpoint whose events are durable, and remove all but the newest `KEPT`.

    ``place`` is where the event ``next_seq`` is or will be, ``digest`` that of the record before
    it. Raises `EventRefused` for a state without a JSON form, `StorageFull` or `StorageError`;
    what was stored before is still there then.
    """
    row: JsonObject = {
        "type": "checkpoint",
        "format": FORMAT,
        "session": session_id,
        "next_seq": checkpoint.next_seq,
        "segment": place[0],
        "offset": place[1],
        "record_sha256": digest,
        "state": checkpoint.state,
    }
    try:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise EventRefused(f"checkpoint {checkpoint.next_seq} has no JSON form: {error}") from error
    folder = os.path.join(directory, CHECKPOINTS_NAME)
    path = os.path.join(folder, f"{checkpoint.next_seq:012d}.json.zst")
    try:
        _make_folder(directory, folder)
        write_atomically(path, (compress_frame(line),))
        _remove_others(directory, checkpoint.next_seq)
    except OSError as error:
        raise storage_error(error, "write", path) from error


def _read(path: str, session_id: str, next_seq: int) -> tuple[Found, str]:
    with opened(path) as frames:
        if frames.frame_end(0) != frames.size:
            raise FrameDamage(0, "a checkpoint is one whole frame")
        row = json.loads(b"".join(frames.pieces(0, frames.size)).decode())
    state, segment, offset, digest = row["state"], row["segment"], row["offset"], row["record_sha256"]
    fits = row["type"] == "checkpoint" and row["format"] == FORMAT and row["session"] == session_id
    if not (fits and row["next_seq"] == next_seq and type(state) is dict and type(offset) is int):
        raise EventRefused(f"{path} is no checkpoint of this session")
    return Found(Checkpoint(next_seq, state), (segment, offset)), digest


def _stored(directory: str) -> list[tuple[int, str]]:
    try:
        names = os.listdir(os.path.join(directory, CHECKPOINTS_NAME))
    except OSError:
        return []  # none were saved, or they cannot be read: then there are none to use
    found = [(int(match[1]), match[0]) for match in map(_NAME.fullmatch, names) if match is not None]
    return sorted(one for one in found if one[0] > 0)


def _make_folder(directory: str, folder: str) -> None:
    if os.path.isdir(folder):
        return
    changed_ns = os.stat(directory).st_mtime_ns
    os.mkdir(folder, 0o700)
    # The directory's date tells when the session changed, which this is not.
    os.utime(directory, ns=(changed_ns, changed_ns))
    fsync_directory(directory)


def _remove_others(directory: str, next_seq: int) -> None:
    """Older ones beyond those kept, and ones from a future that the log does not have any more."""
    stored = _stored(directory)
    kept = [seq for seq, _name in stored if seq <= next_seq][-KEPT:]
    for seq, name in stored:
        if seq not in kept:
            os.unlink(os.path.join(directory, CHECKPOINTS_NAME, name))
