"""What the subcommands of `dsh session` share: the storage, the configuration, and what they print with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from dsh_actors.adapters.storage.backend import DiskStorage
from dsh_actors.cli.failures import describe_error, one_line
from dsh_actors.cli.places import working_directory
from dsh_actors.cli.printing import flush, note, now_ms, size_text, time_text, write, write_json, write_text
from dsh_actors.cli.stored import open_storage
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
