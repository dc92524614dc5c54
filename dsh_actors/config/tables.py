"""Members of configuration tables, checked as they are read. All raise `ConfigError` with the place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dsh_actors.config.keys import nearest
from dsh_actors.errors import ConfigError

__all__ = ["count_in", "refuse_unknown", "text_in", "texts_in"]


def count_in(table: Mapping[str, Any], key: str, where: str) -> int | None:
    """A number of tokens; None where it is not there."""
    value = table.get(key)
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigError(f"{where}: {key} must be a whole number of tokens, not {value!r}")
    return value


def text_in(table: Mapping[str, Any], key: str, where: str) -> str | None:
    """A text that is not blank; None where it is not there."""
    value = table.get(key)
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise ConfigError(f"{where}: {key} must be a text, not {value!r}")
    return value


def texts_in(table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...] | None:
    """A list of texts; None where it is not there."""
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(word, str) and word.strip() for word in value):
        raise ConfigError(f"{where}: {key} must be a list of texts")
    return tuple(value)


def refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Name the nearest known key for one that means nothing."""
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; {nearest(key, known)}")
