"""Where the prompt comes from: the argument, a file, standard input, and attached files.

Everything is read before anything else exists. With a prompt at hand standard input is not touched.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dsh_actors.cli.streams import STREAMS
from dsh_actors.core.quoted_files import ImageFile, quoted_file
from dsh_actors.core.text import decode_output
from dsh_actors.errors import ImageRefused, UsageError

__all__ = ["Prompt", "argument_text", "read_prompt", "read_text_file"]

_MAYBE_IMAGE = (b"\x89PNG", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"RIFF")
_PIECE = 1 << 16
MAX_PROMPT_BYTES = 64 << 20
"""No model takes as much; what is larger is a device, or a mistake."""

_TOO_LARGE = f"larger than {MAX_PROMPT_BYTES >> 20} MiB, the most that a prompt may have"


@dataclass(frozen=True, slots=True)
class Prompt:
    """``notes`` are worth a warning at the end of the run."""

    text: str
    notes: tuple[str, ...] = ()
    images: tuple[ImageFile, ...] = ()


def argument_text(argument: str) -> str:
    """A command line argument as UTF-8, whatever the locale took its bytes for."""
    return decode_output(os.fsencode(argument))


def read_prompt(
    argument: str | None,
    prompt_file: str | None,
    files: Sequence[str],
    *,
    stdin_max_bytes: int | None = None,
    stdin_timeout_s: float | None = None,
) -> Prompt:
    """Raises `UsageError` for a prompt that is blank, missing, given twice or unreadable, and for ``files``
    that cannot be attached."""
    if argument is not None and prompt_file is not None:
        raise UsageError("give the prompt as an argument or with --prompt-file, not both")
    notes: tuple[str, ...] = ()
    if prompt_file not in (None, "-"):
        text, source = read_text_file(str(prompt_file), "--prompt-file"), f"{prompt_file} is"
    elif argument not in (None, "-"):
        text, source = argument_text(str(argument)), "the prompt is"
    else:
        explicit = argument == "-" or prompt_file == "-"
        raw, notes = _read_stdin(explicit, stdin_max_bytes, stdin_timeout_s)
        text, source = decode_output(raw.removeprefix(b"\xef\xbb\xbf")), "standard input is"
    if not text.strip():
        raise UsageError(f"no prompt: {source} blank")
    quoted, images = _attached(files)
    return Prompt("\n\n".join([*quoted, text, *_naming(images)]), notes, tuple(images))


def _attached(paths: Sequence[str]) -> tuple[list[str], list[ImageFile]]:
    """Text files, quoted, and images."""
    quoted: list[str] = []
    images: list[ImageFile] = []
    size = 0
    for path in paths:
        raw = _read_file(path, "--file")
        if _is_image(raw):
            images.append(_image(path, raw, images))
            continue
        quoted.append(_quoted(path, raw))
        size += len(quoted[-1])
        if size > MAX_PROMPT_BYTES:
            raise UsageError(f"--file: all files together are {_TOO_LARGE}")
    return quoted, images


def _is_image(raw: bytes) -> bool:
    if not raw.startswith(_MAYBE_IMAGE):
        return False
    # A recording begins with RIFF too; a damaged picture is still better named as one.
    return not raw.startswith(b"RIFF") or raw[8:12] == b"WEBP"


def _image(path: str, raw: bytes, before: Sequence[ImageFile]) -> ImageFile:
    from dsh_actors.core.images import inspect_image, require_batch  # few runs have any

    name = argument_text(path)
    try:
        require_batch(len(before) + 1, sum(len(image.data) for image in before) + len(raw))
        inspect_image(raw, name)
    except ImageRefused as error:
        raise ImageRefused(f"--file: {error.message}", code=error.code, hint=error.hint) from error
    return ImageFile(name, raw)


def _naming(images: Sequence[ImageFile]) -> Iterator[str]:
    """Tells the model what it is shown."""
    if images:
        word = "image" if len(images) == 1 else "images"
        yield f"Attached {word}: {', '.join(image.name for image in images)}"


def read_text_file(path: str, option: str) -> str:
    """A whole file as text. Raises `UsageError` naming the option."""
    return decode_output(_read_file(path, option).removeprefix(b"\xef\xbb\xbf"))


def _read_file(path: str, option: str) -> bytes:
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_PROMPT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{option}: cannot read {path}: {reason}") from error
    if len(raw) > MAX_PROMPT_BYTES:
        raise UsageError(f"{option}: {path} is {_TOO_LARGE}")
    return raw


def _quoted(path: str, raw: bytes) -> str:
    """A text file as part of the prompt."""
    if b"\0" in raw[:8192]:
        raise UsageError(f"--file: {path} is not a text file")
    return quoted_file(argument_text(path), decode_output(raw.removeprefix(b"\xef\xbb\xbf")))


def _read_stdin(
    explicit: bool, max_bytes: int | None, timeout_s: float | None
) -> tuple[bytes, tuple[str, ...]]:
    if not STREAMS.has_stdin:
        raise UsageError("no prompt, and standard input is closed")
    if not explicit and STREAMS.stdin_is_terminal():
        raise UsageError("no prompt", hint="give one as argument, by --prompt-file or on standard input")
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    pieces: list[bytes] = []
    size = 0
    while size <= (MAX_PROMPT_BYTES if max_bytes is None else max_bytes):
        # A writer that never pauses has its input cut as well as one that never writes.
        left = None if give_up is None else give_up - time.monotonic()
        if left is not None and (left <= 0 or not select.select([0], [], [], left)[0]):
            return whole_characters(b"".join(pieces)), (f"standard input was cut after {timeout_s:g} s",)
        try:
            piece = os.read(0, _PIECE)
        except OSError as error:
            raise UsageError(f"cannot read standard input: {error.strerror}") from error
        if not piece:
            return b"".join(pieces), ()
        pieces.append(piece)
        size += len(piece)
    if max_bytes is None:
        raise UsageError(
            f"standard input is {_TOO_LARGE}", hint="--stdin-max-bytes takes its beginning and no more"
        )
    kept = whole_characters(b"".join(pieces)[:max_bytes])
    return kept, (f"standard input was cut after {len(kept)} bytes",)


def whole_characters(raw: bytes) -> bytes:
    """``raw`` without a character of UTF-8 that was cut at its end."""
    for back in range(1, min(4, len(raw) + 1)):
        byte = raw[-back]
        if byte & 0xC0 != 0x80:
            length = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
            return raw[:-back] if length > back else raw
    return raw
