"""The index is a cache: it makes the list fast, and whatever happens to it the list is right."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dsh_actors.adapters.storage.backend import open_disk_storage, open_index
from dsh_actors.adapters.storage.index import SessionIndex
from dsh_actors.config import SessionConfig, load_config
from dsh_actors.core.events import Event
from dsh_actors.core.ids import SessionId
from dsh_actors.errors import SessionNotFound
from dsh_actors.ports import SessionListing
from tests.adapters.storage.samples import OWNER, Ticking, child, header, turn

CWD = "/srv/shop"

HOLDER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
"""


def _settings(backend: str) -> SessionConfig:
    return replace(load_config(env={"HOME": "/"}).session, backend=backend)


class Home:
    """A home of one back end, with an index that counts how often a session is read."""

    def __init__(self, folder: Path, backend: str) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700)
        self.path = folder / "index.sqlite3"
        self.storage = open_disk_storage(str(folder), _settings(backend), OWNER, Ticking())
        self.index: SessionIndex = open_index(str(folder), self.storage)  # type: ignore[arg-type]
        self.reads: list[str] = []
        source = self.index._source
        read = source.listing

        def counted(place: object) -> SessionListing:
            listing = read(place)  # type: ignore[arg-type]
            self.reads.append(listing.id)
            return listing

        source.listing = counted  # type: ignore[method-assign, assignment]

    def store(self, name: str, *batches: list[Event], cwd: str | None = CWD) -> None:
        writer = self.storage.create(header(name, cwd))
        for batch in batches or (turn(0),):
            writer.append(batch)
        writer.close()

    def add(self, name: str, events: list[Event]) -> None:
        writer = self.storage.open(SessionId(name))
        assert writer.next_seq == events[0].seq
        writer.append(events)
        writer.close()

    def listed(self, limit: int | None = None, cwd: str | None = None) -> list[SessionListing]:
        """What the index lists, which must be what reading everything lists."""
        self.reads.clear()
        listings = list(self.index.listings(cwd, limit))
        assert listings == list(self.storage.list(cwd))[:limit]
        return listings

    def rows(self, query: str) -> list[tuple[object, ...]]:
        database = sqlite3.connect(self.path)
        try:
            return database.execute(query).fetchall()
        finally:
            database.close()


@pytest.fixture(params=["segments", "sqlite"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return Home(tmp_path / "home", request.param)


def test_only_sessions_that_changed_are_read_again(home: Home) -> None:
    for name in ("a", "b", "c"):
        home.store(name)
    assert [one.id for one in home.listed()] == ["c", "b", "a"]
    assert sorted(home.reads) == ["a", "b", "c"]
    home.listed()
    assert home.reads == []
    home.add("a", turn(9, 2))
    assert [(one.id, one.turns) for one in home.listed()] == [("a", 2), ("c", 1), ("b", 1)]
    assert home.reads == ["a"]


def test_a_short_list_reads_no_more_than_it_shows(home: Home) -> None:
    for number in range(10):
        home.store(f"s{number}")
    assert [one.id for one in home.listed(limit=3)] == ["s9", "s8", "s7"]
    assert home.reads == ["s9", "s8", "s7"]
    home.listed(limit=4)
    assert home.reads == ["s6"]


def test_a_list_that_is_left_early_has_learned_what_it_showed(home: Home) -> None:
    for number in range(4):
        home.store(f"s{number}")
    listings = home.index.listings()
    assert next(listings).id == "s3"
    assert next(listings).id == "s2"
    listings.close()  # type: ignore[attr-defined]
    home.listed()
    assert home.reads == ["s1", "s0"]


def test_a_list_of_one_directory_holds_its_sessions_only(home: Home) -> None:
    home.store("mine")
    home.store("other", cwd="/srv/other")
    home.store("same-project-name", cwd="/srv-shop")
    assert [one.id for one in home.listed(cwd=CWD)] == ["mine"]
    assert [one.id for one in home.listed(cwd=CWD, limit=1)] == ["mine"]


def test_a_live_session_is_shown_live_and_as_it_is_when_its_writer_went(home: Home) -> None:
    home.store("s1")
    home.listed()
    writer = home.storage.open(SessionId("s1"))
    assert home.listed()[0].status == "live"
    assert home.reads == []
    writer.append(turn(9, 2)[:3])
    assert [(one.status, one.turns) for one in home.listed()] == [("live", 2)]
    writer.close()
    assert [(one.status, one.turns) for one in home.listed()] == [("interrupted", 2)]


def test_a_session_in_the_middle_of_a_write_is_never_remembered_as_it_was_before(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", "segments")
    home.store("s1")
    directory = home.storage.path(SessionId("s1"))
    writer = home.storage.open(SessionId("s1"))
    assert writer.next_seq == 9
    # The directory is dated first, the bytes come later: somebody lists in between.
    os.utime(directory, (1_900_000_000, 1_900_000_000))
    home.index.project(SessionId("s1"))
    writer.append(turn(9, 2))
    os.utime(directory, (1_900_000_000, 1_900_000_000))
    writer.close()
    assert home.listed()[0].turns == 2


def test_what_was_set_aside_of_a_torn_tail_does_not_hide_that_the_log_grows(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", "segments")
    home.store("s", turn(0), turn(9))
    log = Path(home.storage.path(SessionId("s")), "log")
    segment = log / "000000000000.jsonl.zst"
    os.truncate(segment, segment.stat().st_size - 5)
    writer = home.storage.open(SessionId("s"))
    assert list(writer.replay()) and [*log.glob("*.torn")]
    writer.close()
    place = home.index._source.place(SessionId("s"))
    before = home.index._source.revision(place)
    os.truncate(segment, segment.stat().st_size + 1)
    os.utime(log.parent, ns=(0, 0))
    changed = home.index._source.revision(place)
    os.truncate(segment, segment.stat().st_size + 1)
    assert None not in (before, changed) and home.index._source.revision(place) != changed


def test_damaged_sessions_are_shown_as_such_each_time_and_hurt_nobody(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", "segments")
    for name in ("good", "bad", "newer", "empty"):
        home.store(name)
    root = home.folder / "sessions" / "srv-shop"
    segment = "log/000000000000.jsonl.zst"
    (root / "bad" / segment).write_bytes(b"garbage")
    home.add("newer", [Event("future/fact", 9, 0, {})])
    (root / "empty" / segment).write_bytes(b"")
    (root / "half").mkdir()
    expected = {"good": "ok", "bad": "corrupt", "newer": "unsupported", "empty": "empty", "half": "empty"}
    for _ in range(2):
        assert {one.id: one.status for one in home.listed()} == expected
    (root / "bad" / segment).write_bytes((root / "good" / segment).read_bytes())
    assert home.listed()[0].id is not None


def _garbage(path: Path) -> None:
    path.write_bytes(b"no database, but long enough to be looked at closely" * 50)


def _torn(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))


def _altered(*statements: str) -> Callable[[Path], None]:
    def alter(path: Path) -> None:
        database = sqlite3.connect(path)
        for statement in statements:
            database.execute(statement)
        database.commit()
        database.close()

    return alter


SPOILS = {
    "absent": Path.unlink,
    "blank": lambda path: path.write_bytes(b""),
    "garbage": _garbage,
    "torn": _torn,
    "foreign": _altered("PRAGMA application_id = 7"),
    "newer": _altered("PRAGMA user_version = 99"),
    "without its table": _altered("DROP TABLE sessions"),
    "with a changed row": _altered("UPDATE sessions SET turns = 7 WHERE id = 'a'"),
    "with another table": _altered("DROP TABLE sessions", "CREATE TABLE sessions (key)"),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_an_index_that_is_gone_foreign_or_damaged_is_made_again(home: Home, spoil: str) -> None:
    for name in ("a", "b"):
        home.store(name)
    home.listed()
    SPOILS[spoil](home.path)
    assert [one.id for one in home.listed()] == ["b", "a"]
    home.listed()
    home.listed()
    assert home.reads == []
    assert home.rows("SELECT count(*) FROM sessions") == [(2,)]


def test_a_damaged_index_is_not_taken_from_under_others_that_use_it(home: Home) -> None:
    home.store("a")
    home.listed()
    _garbage(home.path)
    guard = os.open(f"{home.path}.lock", os.O_RDWR)
    fcntl.flock(guard, fcntl.LOCK_SH)
    assert [one.id for one in home.listed()] == ["a"]
    assert home.path.read_bytes().startswith(b"no database")
    os.close(guard)
    home.listed()
    home.listed()
    assert home.reads == []


def test_a_busy_index_makes_nobody_wait_and_stays_stale(home: Home) -> None:
    home.store("a")
    home.listed()
    home.store("b")
    holder = child(HOLDER, home.path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    assert home.index.project(SessionId("b")) is False
    for _ in range(2):
        assert [one.id for one in home.listed()] == ["b", "a"]
        assert home.reads == ["b"]
    holder.communicate("done\n")
    assert home.index.project(SessionId("b")) is True
    home.listed()
    assert home.reads == []


def test_a_home_that_is_not_there_stays_so_and_a_place_for_no_index_is_done_without(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    storage = open_disk_storage(missing, _settings("segments"), OWNER, Ticking())
    assert list(open_index(missing, storage).listings()) == []  # type: ignore[arg-type]
    assert not os.path.exists(missing)
    home = Home(tmp_path / "home", "segments")
    home.store("a")
    home.path.mkdir()
    assert [one.id for one in home.listed()] == ["a"]
    assert home.index.project(SessionId("a")) is False


def test_what_belongs_to_removed_sessions_goes_with_a_full_list(home: Home) -> None:
    database = Home(home.folder.parent / "second", "sqlite")
    for name in ("a", "b"):
        database.store(name)
        assert database.index.project(SessionId(name))
    database.storage.delete(SessionId("a"))  # type: ignore[union-attr]
    assert [one.id for one in database.listed()] == ["b"]
    for table in ("sessions", "projections", "documents"):
        assert database.rows(f"SELECT DISTINCT key FROM {table}") == [("sqlite:b",)]
    assert database.rows("SELECT count(*) FROM texts") == [(1,)]


def test_a_projection_gives_the_line_the_totals_and_the_words(home: Home) -> None:
    home.store("s1", conversation(0, 1, "why is the shop slow"))
    assert home.index.project(SessionId("s1"))
    assert home.listed()[0].title == "why is the shop slow"
    assert home.reads == []
    totals = "turns, steps, tool_calls, input, output, cache_read"
    assert home.rows(f"SELECT {totals} FROM projections") == [(1, 1, 1, 10, 4, 2)]
    home.add("s1", [*conversation(9, 2, "and now"), Event("session/title", 18, 0, {"title": "Slow  shop"})])
    assert home.index.project(SessionId("s1"))
    assert home.rows(f"SELECT {totals} FROM projections") == [(2, 2, 2, 20, 8, 4)]
    listing = home.listed()[0]
    assert (listing.title, listing.turns, listing.status) == ("Slow shop", 2, "ok")
    assert home.reads == []
    assert home.index.find("is the   SHOP") == [("s1", 2, "user/message")]
    assert [seq for _, seq, _ in home.index.find("cat prices.txt")] == [13, 4]
    assert home.index.find("secret thought") == []
    assert home.index.find('why" OR "now') == []
    assert home.index.find(" ") == []


def test_a_projection_reads_only_what_was_added(home: Home) -> None:
    home.store("s1", conversation(0, 1, "one"))
    home.index.project(SessionId("s1"))
    asked: list[int] = []
    events = home.index._source.events
    home.index._source.events = lambda session, seq: (asked.append(seq), events(session, seq))[1]  # type: ignore[method-assign]
    home.add("s1", conversation(9, 2, "two"))
    home.index.project(SessionId("s1"))
    assert asked == [9]


def test_a_projection_of_another_session_under_the_same_id_begins_anew(tmp_path: Path) -> None:
    home = Home(tmp_path / "home", "sqlite")
    home.store("s1", conversation(0, 1, "old words"))
    home.index.project(SessionId("s1"))
    home.storage.delete(SessionId("s1"))  # type: ignore[union-attr]
    home.store("s1", conversation(0, 1, "new words"))
    home.index.project(SessionId("s1"))
    assert home.index.find("old words") == []
    assert home.index.find("new words") == [("s1", 2, "user/message")]
    assert home.listed()[0].turns == 1


def test_an_unknown_session_is_not_projected(home: Home) -> None:
    with pytest.raises(SessionNotFound):
        home.index.project(SessionId("none"))


def conversation(first_seq: int, number: int, prompt: str) -> list[Event]:
    """A turn with a tool call, its result, reasoning and usage: nine events."""
    place = {"turn": number, "step": 1}
    call = {"type": "tool-call", "id": "c", "name": "bash", "arguments": '{"command": "cat prices.txt"}'}
    blocks = [{"type": "reasoning", "text": "secret thought"}, {"type": "text", "text": "I look"}, call]
    usage = {"inputTokens": 10, "outputTokens": 4, "cacheReadTokens": 2}
    result = {"type": "tool-result", "toolCallId": "c", "content": [{"type": "text", "text": "pears 3"}]}
    reply = {**place, "message": {"content": blocks}, "usage": usage}
    chunk = {**place, "chunk": {"type": "usage", "usage": usage}}
    rows: list[tuple[str, dict[str, object]]] = [
        ("turn/start", {"turn": number}),
        ("step/start", place),
        ("user/message", {"content": [{"type": "text", "text": prompt}], "source": {"kind": "user"}}),
        ("assistant/chunk", chunk),
        ("assistant/message", reply),
        ("tool/call", {**place, "callId": "c", "name": "bash", "arguments": "{}"}),
        ("tool/result", {**place, "message": {"content": [result]}, "error": {"name": "E", "code": "X"}}),
        ("step/end", place),
        ("turn/end", {"turn": number, "reason": {"kind": "completed"}}),
    ]
    surface = {"user/message", "assistant/message", "tool/result"}
    return [
        Event(kind, seq, seq, data, "append" if kind in surface else None)
        for seq, (kind, data) in enumerate(rows, first_seq)
    ]


# --- searching --------------------------------------------------------------------------------


def found(home: Home, *words: str, **options: object) -> list[str] | None:
    hits = home.index.search(words, **options)  # type: ignore[arg-type]
    return None if hits is None else [hit.id for hit in hits]


def test_a_search_finds_what_was_added_without_anybody_having_projected_it(home: Home) -> None:
    home.store("s1", conversation(0, 1, "why is the shop slow"))
    home.store("s2", conversation(0, 1, "the shop is closed"), cwd="/elsewhere")
    assert found(home, "shop") and set(found(home, "shop") or ()) == {"s1", "s2"}
    assert found(home, "SLOW", "shop") == ["s1"]
    assert found(home, "shop", cwd="/elsewhere") == ["s2"]
    assert len(found(home, "shop", limit=1) or ()) == 1
    home.add("s1", conversation(9, 2, "and the quinces"))
    assert found(home, "quinces") == ["s1"]


def test_a_search_gives_each_session_once_with_the_event_that_fits_best(home: Home) -> None:
    many = "word " * 50
    home.store("s1", [*conversation(0, 1, f"{many} pear {many}"), *conversation(9, 2, "pear")])
    (hit,) = home.index.search(["pear"]) or ()
    assert (hit.seq, hit.type, hit.snippet, hit.cwd) == (11, "user/message", "pear", CWD)
    (long,) = home.index.search(["pear word"]) or ()
    assert long.seq == 2 and "pear word" in long.snippet and len(long.snippet) <= 200


def test_words_are_literal_and_whole(home: Home) -> None:
    home.store("s1", conversation(0, 1, 'a "b" c* OR braid'))
    assert found(home, 'b" c') == ["s1"]
    for words in ("aid", "c OR b", "b a"):
        assert found(home, words) == []
    assert found(home, "-", '"') is None


def test_a_title_that_somebody_wrote_is_found_and_one_that_repeats_the_prompt_is_not(home: Home) -> None:
    def title(text: str, seq: int, kind: str) -> Event:
        return Event("session/title", seq, 0, {"title": text, "messageSeqs": [2], "source": {"kind": kind}})

    used = {"provider": "p", "model": "m", "usage": {"inputTokens": 7, "outputTokens": 3}}
    asked = Event("session/title-llm-result", 11, 0, used, ignorable=True)
    named = [title("unlike", 9, "fallback"), title("Quinces", 10, "user"), asked]
    home.store("s1", [*conversation(0, 1, "fruit"), *named])
    assert found(home, "quinces") == ["s1"] and found(home, "unlike") == []
    assert home.listed()[0].title == "Quinces"
    assert home.rows("SELECT input, output FROM projections") == [(17, 7)]


def test_a_search_reads_again_only_what_has_changed(home: Home) -> None:
    home.store("s1", conversation(0, 1, "one"))
    home.store("s2", conversation(0, 1, "two"))
    assert found(home, "one") == ["s1"]
    home.add("s2", conversation(9, 2, "three"))
    projected: list[str] = []
    project = home.index.project
    home.index.project = lambda session: (projected.append(session), project(session))[1]  # type: ignore[method-assign]
    assert found(home, "three") == ["s2"] and found(home, "one") == ["s1"]
    assert projected == ["s2"]


def test_a_deleted_session_is_not_found(home: Home) -> None:
    home.store("s1", conversation(0, 1, "one"))
    assert found(home, "one") == ["s1"]
    home.storage.delete(SessionId("s1"))  # type: ignore[union-attr]
    assert found(home, "one") == []


def test_a_search_without_an_index_says_so(home: Home) -> None:
    home.store("s1", conversation(0, 1, "one"))
    home.path.mkdir()
    assert found(home, "one") is None
