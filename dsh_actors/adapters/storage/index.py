"""The index of all sessions (``$DSH_HOME/index.sqlite3``): a cache that may be deleted at any time.

It makes listing fast and keeps totals and words for searching. The sessions themselves are asked
whether a row still holds, so a missing, stale or busy index costs time and nothing else. Native code.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from dsh_actors.adapters.storage.index_file import IndexFile, OpenIndex
from dsh_actors.adapters.storage.index_fold import Projection
from dsh_actors.adapters.storage.index_search import Hit, literal, search
from dsh_actors.adapters.storage.index_sources import IndexSource, Place
from dsh_actors.adapters.storage.index_text import document_text
from dsh_actors.core.events import Event, wrong_payload
from dsh_actors.core.ids import SessionId
from dsh_actors.core.state import Counters
from dsh_actors.errors import EventRefused, SessionError
from dsh_actors.ports import SessionListing

__all__ = ["SessionIndex"]

_AT_ONCE = 200
_KEPT = frozenset({"ok", "interrupted", "empty"})
"""What is damaged or not understood is looked at each time: it may be put right behind our back."""

_LISTING = "id, cwd, title, created, updated, turns, status, parent"
_TOTALS = tuple(Counters.__slots__)

_Row = tuple[str, str, SessionListing]
"""(key, revision, listing)"""

_Document = tuple[int, str, int, str]
"""(seq, type, time, text)"""


class SessionIndex:
    """Used by one thread at a time; several processes may use the file."""

    def __init__(self, path: str, source: IndexSource) -> None:
        self._file = IndexFile(path)
        self._source = source

    def listings(
        self, cwd: str | None = None, limit: int | None = None, *, roots_only: bool = False
    ) -> Iterator[SessionListing]:
        """As `SessionStorage.list`, at most ``limit``, reading only sessions whose row does not hold.

        ``roots_only`` leaves sub-agents' sessions out.
        """
        # How many of the newest are sub-agents' is seen when they are looked at.
        places = self._source.places(cwd, None if roots_only else limit)
        index = self._file.open()
        shown = self._shown(places, cwd, index, roots_only)
        try:
            yield from islice(shown, limit)
            if index is not None and cwd is None and limit is None:
                _forget_others(index, {place.key for place in places})
        finally:
            shown.close()  # what was read is remembered before the index is closed
            if index is not None:
                index.close()

    def project(self, session_id: SessionId) -> bool:
        """Bring a session's row, totals and words up to date, reading what was added since the last time.

        Whether that was possible; not if the index is busy. Raises what reading the session raises, and
        `EventRefused` for events that do not fit.
        """
        place = self._source.place(session_id)
        revision, identity = self._source.revision(place), self._source.identity(place)
        index = self._file.open()
        if index is None or revision is None or identity is None:
            return False
        try:
            projection = _load(index, place.key, identity)
            events = self._source.events(session_id, projection.next_seq)
            while batch := list(islice(events, _AT_ONCE)):
                documents = [found for event in batch if (found := _document(event, projection)) is not None]
                if not _save(index, place.key, identity, projection, documents):
                    return False
            header = self._source.header(session_id)
            told = projection.summary
            title, turns, status = told.title, told.turns, told.status
            created, parent = header.created_at, header.agent_above
            listing = SessionListing(
                header.id, header.cwd, title, created, place.updated, turns, status, parent
            )
            return _remember(index, [(place.key, revision, listing)], projected=True)
        finally:
            index.close()

    def catch_up(self) -> None:
        """Bring the words of all sessions up to date. What cannot be read is left out."""
        index = self._file.open()
        if index is None:
            return
        try:
            places = self._source.places(None, None)
            known = dict(index.fetch("SELECT key, revision FROM projections"))
            stale = [place for place in places if known.get(place.key) != self._source.revision(place)]
            chunks = (stale[start : start + _AT_ONCE] for start in range(0, len(stale), _AT_ONCE))
            found = [listing for chunk in chunks for listing in self._listings_of(chunk, index)]
            _forget_others(index, {place.key for place in places})
        finally:
            index.close()
        for listing in found:
            try:
                self.project(listing.id)
            except (SessionError, EventRefused):
                continue  # `dsh session verify` says what is wrong with it

    def search(self, phrases: Sequence[str], cwd: str | None = None, limit: int = 20) -> list[Hit] | None:
        """The sessions with an event that holds all ``phrases``, best first; new events are found too.

        None where there is nothing to look for, or no index to look in.
        """
        literals = [text for phrase in phrases if (text := literal(phrase)) is not None]
        if not literals:
            return None
        self.catch_up()
        index = self._file.open()
        if index is None:
            return None
        try:
            return search(index, " ".join(literals), cwd, limit)
        finally:
            index.close()

    def find(self, phrase: str, limit: int = 20) -> list[tuple[SessionId, int, str]]:
        """(session, seq, type) of the events that hold the words of ``phrase`` in order, best first."""
        quoted = literal(phrase)
        index = self._file.open() if quoted is not None else None
        if index is None:
            return []
        try:
            return [
                (SessionId(session), seq, kind)
                for session, seq, kind in index.fetch(
                    "SELECT sessions.id, documents.seq, documents.type FROM texts"
                    " JOIN documents ON documents.document = texts.rowid"
                    " JOIN sessions ON sessions.key = documents.key"
                    " WHERE texts MATCH ? ORDER BY texts.rank, documents.time DESC LIMIT ?",
                    (quoted, limit),
                )
            ]
        finally:
            index.close()

    def _shown(
        self, places: Sequence[Place], cwd: str | None, index: OpenIndex | None, roots_only: bool
    ) -> Generator[SessionListing, None, None]:
        for start in range(0, len(places), _AT_ONCE):
            for listing in self._listings_of(places[start : start + _AT_ONCE], index):
                # Directories of different names can share a project.
                is_here = cwd is None or listing.cwd in (None, cwd)
                if is_here and not (roots_only and listing.parent):
                    yield listing

    def _listings_of(self, places: Sequence[Place], index: OpenIndex | None) -> Iterator[SessionListing]:
        known = {} if index is None else _known(index, places)
        fresh: list[_Row] = []
        try:
            for place in places:
                revision = self._source.revision(place)
                row = known.get(place.key)
                if row is not None and row[0] == revision:
                    yield self._as_of_now(place, row[1])
                    continue
                listing = self._source.listing(place)
                if revision is not None and listing.status in _KEPT and _fits(listing):
                    fresh.append((place.key, revision, listing))
                yield listing
        finally:
            if index is not None and fresh:
                _remember(index, fresh)

    def _as_of_now(self, place: Place, listing: SessionListing) -> SessionListing:
        status = "live" if self._source.is_live(place) else listing.status
        return replace(listing, status=status, updated=place.updated)


def _known(index: OpenIndex, places: Sequence[Place]) -> dict[str, tuple[str, SessionListing]]:
    marks = ",".join("?" * len(places))
    rows = index.fetch(
        f"SELECT key, revision, {_LISTING}, crc FROM sessions WHERE key IN ({marks})",
        [place.key for place in places],
    )
    if any(_crc(row[:-1]) != row[-1] for row in rows):
        index.is_damaged = True  # SQLite does not notice a flipped bit
        return {}
    return {key: (revision, SessionListing(*listing)) for key, revision, *listing, _crc in rows}


def _fits(listing: SessionListing) -> bool:
    """Whether a column holds its numbers. One that none holds must not keep the others' lines out."""
    return max(abs(number) for number in (listing.created, listing.updated, listing.turns)) < 1 << 63


def _crc(values: Sequence[object]) -> int:
    return zlib.crc32(repr(tuple(values)).encode())


def _remember(index: OpenIndex, rows: Sequence[_Row], *, projected: bool = False) -> bool:
    """Store lines of the list; ``projected``: the words of these sessions are up to date as well."""
    values = [
        (key, revision, *(getattr(one, name) for name in _LISTING.split(", "))) for key, revision, one in rows
    ]
    columns = f"key, revision, {_LISTING}, crc"
    insert = f"INSERT OR REPLACE INTO sessions ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

    def remember(database: sqlite3.Connection) -> None:
        database.executemany(insert, [(*row, _crc(row)) for row in values])
        if projected:
            update = "UPDATE projections SET revision = ? WHERE key = ?"
            database.executemany(update, [(revision, key) for key, revision, _ in rows])

    return index.write(remember)


def _forget_others(index: OpenIndex, keys: set[str]) -> None:
    """Drop what belongs to sessions that are gone."""
    rows = index.fetch("SELECT key FROM sessions UNION SELECT key FROM projections")
    gone = {key for (key,) in rows} - keys

    def forget(database: sqlite3.Connection) -> None:
        for key in gone:
            _forget_documents(database, key)
            database.execute("DELETE FROM projections WHERE key = ?", (key,))
            database.execute("DELETE FROM sessions WHERE key = ?", (key,))

    if gone:
        index.write(forget)


def _forget_documents(database: sqlite3.Connection, key: str) -> None:
    query = "DELETE FROM texts WHERE rowid IN (SELECT document FROM documents WHERE key = ?)"
    database.execute(query, (key,))
    database.execute("DELETE FROM documents WHERE key = ?", (key,))


def _load(index: OpenIndex, key: str, identity: str) -> Projection:
    """Where the last projection of this very session ended, or the beginning."""
    rows = index.fetch("SELECT fold FROM projections WHERE key = ? AND identity = ?", (key, identity))
    try:
        return Projection.load(rows[0][0]) if rows else Projection()
    except (ValueError, TypeError):
        return Projection()


def _document(event: Event, projection: Projection) -> _Document | None:
    projection.observe(event)
    try:
        text = document_text(event)
    except (KeyError, TypeError, AttributeError) as error:
        raise wrong_payload(event, error) from error
    return None if text is None else (event.seq, event.type, event.time, text)


def _save(
    index: OpenIndex, key: str, identity: str, projection: Projection, documents: Sequence[_Document]
) -> bool:
    """Store a piece of a projection together with its documents, so that neither runs ahead."""
    totals = [getattr(projection.counters, name) for name in _TOTALS]
    columns = ", ".join(("key", "identity", "next_seq", "fold", *_TOTALS))
    values = [key, identity, projection.next_seq, projection.dump(), *totals]
    marks = ",".join("?" * len(values))

    def save(database: sqlite3.Connection) -> None:
        same = database.execute(
            "SELECT 1 FROM projections WHERE key = ? AND identity = ?", (key, identity)
        ).fetchone()
        if same is None:
            _forget_documents(database, key)
        database.execute(f"INSERT OR REPLACE INTO projections ({columns}) VALUES ({marks})", values)
        for seq, kind, time, text in documents:
            row = (key, seq, kind, time)
            found = database.execute("INSERT INTO documents (key, seq, type, time) VALUES (?, ?, ?, ?)", row)
            database.execute("INSERT INTO texts (rowid, text) VALUES (?, ?)", (found.lastrowid, text))

    return index.write(save)
