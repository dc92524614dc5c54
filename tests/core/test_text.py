"""The depth that JSON of ours may have: one limit, for what cleans and for what checks."""

from __future__ import annotations

from typing import Any

import pytest

from dsh_actors.core.text import MAX_DEPTH, clean_json, require_lossless
from dsh_actors.errors import EventRefused


def nested(levels: int, key: str = "\ud800") -> Any:
    """Lists and objects in turn, ``levels`` of them."""
    inner: Any = "\ud83d"
    for level in range(levels):
        inner = {key: inner} if level % 2 else [inner]
    return inner


def called_from(frames: int, levels: int) -> Any:
    """`clean_json` called from deep inside a program."""
    return called_from(frames - 1, levels) if frames else clean_json(nested(levels))


def test_what_is_as_deep_as_allowed_is_cleaned_from_anywhere() -> None:
    clean = called_from(300, MAX_DEPTH)
    require_lossless(clean, "x")
    for level in reversed(range(MAX_DEPTH)):
        clean = clean["\ufffd"] if level % 2 else clean[0]
    assert clean == "\ufffd"


def test_what_is_deeper_or_has_no_end_is_refused_by_both() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (nested(MAX_DEPTH + 1, "a"), endless, {"a": endless}):
        with pytest.raises(EventRefused, match="nested deeper"):
            clean_json(value)
        with pytest.raises(EventRefused, match="nested deeper"):
            require_lossless(value, "x")


def test_a_copy_has_the_order_of_its_original_and_shares_nothing_with_it() -> None:
    value = {"b": [1, ("x", None)], "a": {}, "\ud83d\ude00": True}
    clean = clean_json(value)
    assert list(clean.items()) == [("b", [1, ["x", None]]), ("a", {}), ("\U0001f600", True)]
    assert clean["a"] is not value["a"]
