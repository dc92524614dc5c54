"""Searching the words that the index keeps: which sessions hold them, and where best. Native code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsh_actors.adapters.storage.index_file import OpenIndex
from dsh_actors.core.ids import SessionId
from dsh_actors.core.text import shorten

__all__ = ["Hit", "literal", "search"]

MAX_SNIPPET = 200
"""Code points."""

# The score is taken first: FTS5 gives it, and snippets, only where nothing is grouped.
_BEST = """
WITH found AS MATERIALIZED (SELECT rowid AS document, rank AS score FROM texts WHERE texts MATCH ?)
SELECT sessions.id, sessions.cwd, sessions.title, documents.document, documents.seq, documents.type,
 documents.time, min(found.score) AS score
FROM found JOIN documents USING (document) JOIN sessions ON sessions.key = documents.key
WHERE ? IS NULL OR sessions.cwd = ?
GROUP BY documents.key ORDER BY score, documents.time DESC LIMIT ?
"""


@dataclass(frozen=True, slots=True)
class Hit:
    """A session and the event in it that fits best. ``time`` is ms since the epoch; ``snippet`` one line."""

    id: SessionId
    cwd: str | None
    title: str | None
    seq: int
    type: str
    time: int
    snippet: str


def literal(phrase: str) -> str | None:
    """The query for the words of ``phrase`` in order, whatever signs are between them; None without any."""
    words = " ".join(phrase.replace("\0", " ").split())
    if not any(character.isalnum() for character in words):
        return None
    return '"' + words.replace('"', '""') + '"'


def search(index: OpenIndex, query: str, cwd: str | None, limit: int) -> list[Hit]:
    """The sessions (of ``cwd``) that fit, best first, each once. ``query`` is made of `literal` phrases."""
    rows = index.fetch(_BEST, (query, cwd, cwd, limit))
    return [
        Hit(SessionId(session), place, title, seq, kind, time, _snippet(index, query, document))
        for session, place, title, document, seq, kind, time, _score in rows
    ]


def _snippet(index: OpenIndex, query: str, document: int) -> str:
    select = "SELECT snippet(texts, 0, '', '', '…', 24) FROM texts WHERE texts MATCH ? AND rowid = ?"
    found: Sequence[tuple[str]] = index.fetch(select, (query, document))
    return shorten(" ".join(found[0][0].split()), MAX_SNIPPET) if found else ""
