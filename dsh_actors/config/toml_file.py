"""Reading one TOML file, with errors that name the file and the place."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from typing import Any

from dsh_actors.errors import ConfigError

__all__ = ["MAX_FILE_BYTES", "read_toml"]

MAX_FILE_BYTES = 4_000_000
"""A configuration file beyond this is a mistake (or a device)."""


def read_toml(path: str, *, secret: bool = False) -> dict[str, Any]:
    """The file's tables; an absent file is empty. Raises `ConfigError`.

    ``secret``: the error shows the place but nothing of the text.
    """
    try:
        raw = _read(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is too big for a configuration file")
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        text = str(error)
        place = re.search(r"\(at [^)]*\)", text)
        shown = f"syntax error {place[0] if place else ''}".strip() if secret else text
        raise ConfigError(f"{path}: {shown}") from None
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply for a configuration file") from None
    except ValueError as error:
        # Such as an integer of more digits than Python converts, which is no syntax error.
        raise ConfigError(f"{path}: {'a value is not valid' if secret else error}") from None


def _read(path: str) -> bytes:
    """The file's bytes, one more than allowed at most; nothing that could keep the reader waiting."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        info = os.fstat(descriptor)
        if stat.S_ISREG(info.st_mode):
            return file.read(MAX_FILE_BYTES + 1)
        if os.path.samestat(info, os.stat(os.devnull)):
            return b""
    raise ConfigError(f"{path} is not a regular file")
