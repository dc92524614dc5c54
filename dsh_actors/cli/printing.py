"""What commands print: bytes and lines on standard output, notes on standard error, times and sizes."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Any

import click

from dsh_actors.cli.lines import for_terminal, json_line
from dsh_actors.cli.streams import STREAMS

__all__ = ["flush", "note", "now_ms", "size_text", "time_text", "write", "write_json", "write_text"]


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
