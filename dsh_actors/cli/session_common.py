"""What the subcommands of `dsh session` share: the storage, output as bytes, times and sizes as text."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Any

import click

from dsh_actors.adapters.storage.backend import DiskStorage
from dsh_actors.cli.options import working_directory
from dsh_actors.cli.render import for_terminal, json_line
from dsh_actors.cli.stored import exists, open_storage
from dsh_actors.cli.streams import STREAMS
from dsh_actors.config import Config, load_config

__all__ = [
    "as_json_option",
    "configuration",
    "exists",
    "flush",
    "now_ms",
    "size_text",
    "storage",
    "time_text",
    "write",
    "write_json",
    "write_text",
]

as_json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")


def configuration() -> Config:
    """The user's own configuration: where sessions are does not depend on the project at hand."""
    return load_config(cwd=working_directory(None), project_file=False)


def storage(config: Config | None = None) -> DiskStorage:
    return open_storage(config or configuration())


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
