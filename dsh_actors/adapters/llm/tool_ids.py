"""Ids of tool calls as another server accepts them; the same id always becomes the same. Pure."""

from __future__ import annotations

import hashlib
import re

__all__ = ["MAX_ID_CHARS", "nine_id", "safe_id"]

MAX_ID_CHARS = 64

_SAFE = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_ID_CHARS}}}", re.ASCII)
_NINE = re.compile(r"[A-Za-z0-9]{9}", re.ASCII)


def safe_id(call_id: str) -> str:
    """``call_id`` where every server takes it: 1 to 64 letters, digits, ``_``, ``-``. Else one made of it."""
    if _SAFE.fullmatch(call_id):
        return call_id
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", call_id[:40], flags=re.ASCII)
    return f"{readable}_{_hash(call_id)[:16]}"


def nine_id(call_id: str) -> str:
    """``call_id`` where it is nine letters or digits, as Mistral's servers want it; else one made of it."""
    return call_id if _NINE.fullmatch(call_id) else _hash(call_id)[:9]


def _hash(call_id: str) -> str:
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()
