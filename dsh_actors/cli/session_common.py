"""What the subcommands of `dsh session` share: the storage, output as bytes, times and sizes as text."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from dsh_actors.adapters.storage.backend import DiskStorage
from dsh_actors.cli.failures import describe_error, one_line
from dsh_actors.cli.lines import for_terminal, json_line
from dsh_actors.cli.places import working_directory
from dsh_actors.cli.stored import open_storage
from dsh_actors.cli.streams import STREAMS
from dsh_actors.config import Config, find_home, load_config
from dsh_actors.config.toml_file import read_toml
from dsh_actors.errors import ConfigError

if TYPE_CHECKING:
    from dsh_actors.adapters.storage.attachments import AttachmentStore

__all__ = [
    "as_json_option",
    "configuration",

    "flush",
    "images",
    "note",
    "now_ms",
    "size_text",
    "storage",
    "time_text",
    "write",
    "write_json",
    "write_text",
]

as_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


def configuration(*, reading: bool = True) -> Config:
    """The user's own configuration: where sessions are does not depend on the project at hand.

    For ``reading`` one with mistakes will do: they are told in one line on standard error, and of its
    files no more counts than which back end has the sessions. Raises `ConfigError`.
    """
    cwd = working_directory(None)
    try:
        return load_config(cwd=cwd, project_file=False)
    except ConfigError as error:
        if not reading:
            raise
        config = load_config(cwd=cwd, project_file=False, own_files=False, options=_backend())
        warning = f"dsh: warning: {describe_error(error)}; reading sessions with the default configuration"
        click.echo(one_line(warning), err=True)
        return config


def _backend() -> dict[str, Any]:
    """What a file that is at least TOML says about where sessions are."""
    home = find_home(os.environ).path
    try:
        section = read_toml(os.path.join(home, "config.toml")).get("session") if home is not None else None
    except ConfigError:
        return {}
    backend = section.get("backend") if isinstance(section, dict) else None
    return {"session.backend": backend} if backend in ("segments", "sqlite") else {}


def storage(config: Config | None = None, *, reading: bool = True) -> DiskStorage:
    """The stored sessions. Those who are not only ``reading`` need a configuration without mistakes."""
    return open_storage(config or configuration(reading=reading))


def images(config: Config | None = None) -> AttachmentStore:
    """The stored images. Raises `ConfigError` where there is no home."""
    from dsh_actors.adapters.storage.attachments import open_attachments  # most subcommands need none

    return open_attachments((config or configuration()).require_home())


def note(text: str) -> None:
    """One line on standard error that changes nothing about the outcome."""
    click.echo(for_terminal(f"dsh: {text}"), err=True)


def write(data: bytes) -> None:
    """Data for a program or a file; what a terminal would obey is shown there instead."""
    if STREAMS.stdout_is_terminal():
        data = for_terminal(data.decode()).encode()
    sys.stdout.buffer.write(data)


def flush() -> None:
    """Deliver what was written: an error that is raised now would take its place."""
    sys.stdout.flush()


def write_json(value: Any) -> None:
    write(json_line(value))


def write_text(text: str) -> None:
    """One line of text."""
    write(f"{text}\n".encode("utf-8", "backslashreplace"))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def time_text(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "?"


def size_text(size: int) -> str:
    """Bytes for people."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
