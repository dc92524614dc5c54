"""The HTML page of a session: what it shows, and that nothing in a log gets out of its place."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import re
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.cli import transcript_fold
from dsh_actors.cli.transcript_html import html
from dsh_actors.core.events import Event, Replace, SessionHeader
from dsh_actors.errors import StorageError
from tests.cli.transcript_sample import HEADER, Element, LogBuilder, Page, asked, page_of, price_of, rich_log

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"`&lt; --></style></pre></details>"
    '\x00\x1b[31m\x7f\x9b\u202eevil\u2066\u2028\ud800 مرحبا **b** [l](javascript:alert(3)) [m](https://x.org/"><b>)'
)
TAGS = frozenset(
    [
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "a",
        "header",
        "p",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "dl",
        "div",
        "dt",
        "dd",
        "small",
        "nav",
        "details",
        "summary",
        "ol",
        "ul",
        "li",
        "b",
        "span",
        "main",
        "section",
        "article",
        "svg",
        "rect",
        "pre",
        "code",
        "strong",
        "em",
        "blockquote",
        "hr",
        "br",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "footer",
        "script",
        "input",
        "output",
        "button",
        "time",
    ]
)
ATTRIBUTES = frozenset(
    [
        "lang",
        "charset",
        "http-equiv",
        "content",
        "name",
        "class",
        "href",
        "id",
        "dir",
        "rel",
        "datetime",
        "open",
        "hidden",
        "role",
        "type",
        "placeholder",
        "for",
        "start",
        "viewbox",
        "preserveaspectratio",
        "x",
        "y",
        "width",
        "height",
        "scope",
        "tabindex",
        "autocomplete",
        "spellcheck",
        "data-lang",
    ]
)


@pytest.fixture(scope="module")
def page() -> Element:
    return page_of(rich_log())


def step(page: Element, number: int) -> Element:
    return page.all("article", "step")[number - 1]


def visible_texts(root: Element, css: str) -> list[str]:
    return [element.text for element in root.all(css=css) if not element.is_folded]


# --- what it shows ---------------------------------------------------------------------------


def test_the_head_tells_what_the_session_is(page: Element) -> None:
    head = page.one("header", "masthead")
    assert head.one("h1").text == "Mend the discount"
    for fact in ("s-1", "/srv/shop", "acme/large", "2026-01-01 00:00:00 UTC", "failed"):
        assert fact in head.text
    assert page.one("head").one("title").text == "Mend the discount – dsh session"


def test_without_a_title_the_first_prompt_is_it() -> None:
    log = LogBuilder().open_turn().open_step().user("Count the\n pears").close_step().close_turn()
    assert page_of(log.events).one("h1").text == "Count the pears"


def test_a_session_without_events_says_so() -> None:
    empty = page_of([])
    assert empty.one("h1").text == "s-1" and "Nothing has happened" in empty.one("main").text


def test_turns_and_steps_have_anchors_and_every_link_has_a_target(page: Element) -> None:
    ids = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    assert {"t1", "t2", "t1-s1", "t1-s2", "t1-s3", "t2-s1"} <= set(ids)
    targets = {element.attributes["href"][1:] for element in page.all("a")}
    assert targets <= set(ids) and {"t1", "t2", "t1-s2"} <= targets


def test_user_context_and_notice_are_told_apart(page: Element) -> None:
    users = page.all(css="user")
    assert [user.one("pre").text.strip() for user in users] == [
        "Mend the discount; touch nothing else.",
        "And the cart?",
    ]
    assert not any(user.is_folded for user in users)
    labels = [label.text for label in page.all("span", "label")]
    assert labels == ["Context", "Request", "Reasoning", "Notice", "Compaction", "Summary", "Event"]
    assert all(
        pre.is_folded for css in ("context", "note") for part in page.all(css=css) for pre in part.all("pre")
    )


def test_reasoning_and_calls_are_folded_and_tell_what_they_are_about(page: Element) -> None:
    think = page.one("details", "think")
    assert "open" not in think.attributes and "Look before" in think.one("summary").text
    bash, read = step(page, 1).all("details", "call")
    assert "open" not in bash.attributes
    assert "run-tests --all" in bash.one("summary").text and "error EXIT_STATUS" in bash.one("summary").text
    assert "1 failed" in bash.one("summary").text and "1.5 s" in bash.one("summary").text
    assert "12 ms" in read.one("summary").text and "price.py" in read.one("summary").text


def test_arguments_are_a_list_of_names_and_values_with_line_feeds_as_lines(page: Element) -> None:
    arguments = step(page, 1).all("details", "call")[0].one("dl", "args")
    assert [name.text for name in arguments.all("dt")] == ["command", "timeout_s"]
    assert [value.text.strip() for value in arguments.all("dd")] == ["run-tests\n--all", "20"]


@pytest.mark.parametrize("raw", ["not json", "[1, 2]", '"text"', "[" * 100_000, '{"a": 1e999}', "{}", ""])
def test_arguments_of_any_form_are_shown(raw: str) -> None:
    log = LogBuilder().open_turn().open_step().reply(asked("c", "bash", raw)).close_step().close_turn()
    call = page_of(log.events).one("details", "call")
    assert raw[:50] in call.text or raw in ("{}", '{"a": 1e999}')


def test_retries_limits_denials_and_interruptions_are_seen_without_unfolding(page: Element) -> None:
    banners = visible_texts(page, "banner")
    assert banners == [
        "RATE_LIMIT (HTTP 429): slow down — retry 1 of 5 after 2.0 s",
        "The reply was interrupted; this is what had arrived.",
        "Limit reached: max steps 4.",
        "The turn failed. INVALID_CREDENTIAL (HTTP 401): no more keys",
    ]
    denied = page.one("details", "denied")
    assert "denied" in denied.one("summary").text and "root is not allowed" in denied.one("summary").text
    for fact in ("no-root", "--approve all", "it needs root", "Approval: rejected"):
        assert fact in denied.text


@pytest.mark.parametrize(
    ("reason", "word", "sentence"),
    [
        ({"kind": "aborted", "reason": {"kind": "user"}}, "cancelled", "by the user"),
        ({"kind": "aborted", "reason": {"kind": "hook", "reason": "deadline"}}, "cancelled", "deadline"),
        ({"kind": "interrupted"}, "interrupted", "interrupted here"),
        ({"kind": "max-tokens"}, "cut off", "output limit"),
        ({"kind": "blocked"}, "blocked", "refused"),
        ({"kind": "of-a-later-version"}, "of-a-later-version", "of-a-later-version"),
    ],
)
def test_how_a_turn_ended_is_said(reason: dict[str, Any], word: str, sentence: str) -> None:
    turn = page_of(LogBuilder().open_turn().close_turn(**reason).events).one("section", "turn")
    assert turn.one("span", "chip").text == word
    assert sentence in turn.one("p", "banner").text


def test_an_open_turn_and_a_call_without_a_result_are_shown_as_such() -> None:
    log = LogBuilder().open_turn().open_step().reply(asked("c", "bash", "{}")).call("c", "bash", "{}")
    page = page_of(log.events)
    assert page.one("section", "turn").all("span", "chip")[0].text == "open"
    assert "no result" in page.one("details", "call").one("summary").text


def test_calls_with_the_same_id_get_their_own_results() -> None:
    log = LogBuilder().open_turn().open_step()
    log.reply(asked("c", "first", "{}"), asked("c", "second", "{}"))
    log.call("c", "first", "{}").call("c", "second", "{}").result("c", "one").result("c", "two")
    calls = page_of(log.close_step().close_turn().events).all("details", "call")
    assert [call.all("pre")[-1].text.strip() for call in calls] == ["one", "two"]


def test_a_result_without_its_call_and_a_shortened_one_are_shown() -> None:
    log = LogBuilder().open_turn().open_step().result("lost", "found")
    log.result("lost", "fo", op=Replace(2, 2)).close_step().close_turn()
    main = page_of(log.events).one("main")
    assert "found" in main.text and "shortened for the model" in main.one(css="note-line").text


def test_tokens_and_cost_stand_at_each_step_and_in_the_totals(page: Element) -> None:
    first = step(page, 1).one("p", "facts").text
    # 1,000 in at 2, 4,000 cached at 0.5 and 300 out at 10, each for a million
    assert "in 1,000 · cached 4,000 · out 300 · reasoning 120 · $0.0070" in first
    assert "in 500 · out 100 · $0.0020" in step(page, 2).one("p", "facts").text
    tiles = {tile.one("dt").text: tile.one("dd").text for tile in page.one("dl", "tiles").all("div")}
    assert tiles["Input tokens"] == "1,500 + 4,000 cached"
    assert tiles["Output tokens"] == "400 120 reasoning"
    assert tiles["Cost"] == "$0.0090" and tiles["Steps"] == "4 1 retry" and tiles["Tool calls"] == "3 1 error"


def test_a_cost_that_is_not_known_is_not_made_up() -> None:
    log = LogBuilder().open_turn().open_step().request("other")
    log.reply(
        {"type": "text", "text": "x"}, usage={"inputTokens": 5, "outputTokens": 5}
    ).close_step().close_turn()
    page = page_of(log.events)
    assert "not known" in page.one("dl", "tiles").text and "$" not in page.one("main").text


def test_the_time_of_a_step_is_split_into_model_tools_and_waiting(page: Element) -> None:
    assert "model 1.0 s · tools 1.5 s · first token 200 ms" in step(page, 1).one("p", "facts").text
    assert "model 600 ms · waiting 2.0 s" in step(page, 2).one("p", "facts").text
    widths = [(rect.attributes["class"], rect.attributes["width"]) for rect in step(page, 1).all("rect")]
    assert widths == [("model", "400"), ("tool", "600")]


def test_the_waterfall_of_a_turn_has_a_row_for_each_step_on_one_axis(page: Element) -> None:
    rows = page.all("details", "waterfall")[0].all("li")
    assert [row.one("a").attributes["href"] for row in rows] == ["#t1-s1", "#t1-s2", "#t1-s3"]
    # The turn lasts 5.1 s; the tools of step 1 start after 1 s.
    tools = [rect for rect in rows[0].all("rect") if "tool" in rect.classes]
    assert [round(float(rect.attributes["x"])) for rect in tools] == [196, 196]
    assert "failed" in tools[0].classes and "failed" not in tools[1].classes


def test_a_clock_that_was_set_back_draws_nothing_outside_of_the_axis() -> None:
    log = LogBuilder().open_turn().wait(50).open_step().wait(-5_000).reply(asked("c", "bash", "{}"))
    log.call("c", "bash", "{}").wait(-10).result("c", "x").close_step().close_turn()
    for rect in page_of(log.events).all("rect"):
        left, width = float(rect.attributes["x"]), float(rect.attributes["width"])
        assert left >= 0 and width >= 0 and left + width <= 1_000


def test_chunks_are_not_shown(page: Element) -> None:
    assert "a streamed piece" not in page.text


def test_markdown_of_a_reply_is_laid_out(page: Element) -> None:
    assert step(page, 3).one(css="reply").one("strong").text == "mended"


def test_what_a_fork_brought_along_is_marked() -> None:
    header = SessionHeader(HEADER.id, 0, None, HEADER.id, 2)
    log = LogBuilder().open_turn().close_turn().add("session/end-seed", {}).open_turn().close_turn()
    page = page_of(log.events, header)
    assert "Forked from" in page.one("header", "masthead").text
    after_first = [child for child in page.one("main").children if isinstance(child, Element)]
    assert [element.tag for element in after_first] == ["section", "p", "section"]


# --- nothing gets out ------------------------------------------------------------------------


def assert_sound(text: str) -> Element:
    """Only our tags and attributes, one script, no control or direction override, all of it UTF-8."""
    text.encode()
    root = Page(text).root
    for element in root.all():
        assert element.tag in TAGS, element.tag
        names = {name for name in element.attributes if not name.startswith("aria-")}
        assert names <= ATTRIBUTES, (element.tag, names - ATTRIBUTES)
        assert re.match(r"#|https?://", element.attributes.get("href", "#")), element.attributes
    assert len(root.all("script")) == len(root.all("style")) == 1
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text)
    return root


def poisoned(value: Any, keep: frozenset[str]) -> Any:
    """``value`` with every string but those under the kept keys made hostile."""
    if isinstance(value, dict):
        return {key: inner if key in keep else poisoned(inner, keep) for key, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner, keep) for inner in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize(
    "keep",
    [
        frozenset({"type", "kind", "form", "status", "id", "callId", "toolCallId", "arguments"}),
        frozenset({"type", "kind", "id", "callId", "toolCallId"}),
        frozenset({"type"}),
        frozenset(),
    ],
)
def test_hostile_text_anywhere_stays_text(keep: frozenset[str]) -> None:
    events = [replace(event, data=poisoned(event.data, keep)) for event in rich_log()]
    events.append(Event(HOSTILE, len(events), 0, {HOSTILE: HOSTILE}, ignorable=True))
    header = replace(HEADER, id=HOSTILE, cwd="/" + HOSTILE, agent_preset=HOSTILE, parent_session=HOSTILE)
    root = assert_sound("".join(html(header, events, price_of=lambda _: None)))
    assert "alert(1)" in root.one("main").text and "␀␛[31m" in root.one("main").text


def test_hostile_arguments_stay_text() -> None:
    log = LogBuilder().open_turn().open_step()
    log.reply(asked("c", HOSTILE, json.dumps({HOSTILE: HOSTILE, "path": HOSTILE, "more": [{HOSTILE: 1}]})))
    assert_sound("".join(html(HEADER, log.close_step().close_turn().events, price_of=price_of)))


@given(
    st.lists(
        st.sampled_from([*HOSTILE, "\n", "```", "- ", "1. ", "> ", "| a |\n|---|\n", "**", "# "]), max_size=60
    )
)
def test_any_reply_stays_in_its_place(pieces: list[str]) -> None:
    log = LogBuilder().open_turn().open_step().reply({"type": "text", "text": "".join(pieces)})
    root = assert_sound("".join(html(HEADER, log.close_step().close_turn().events, price_of=price_of)))
    assert len(root.all("article")) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_a_payload_of_any_shape_stops_nothing(data: st.DataObject) -> None:
    events = rich_log()
    at = data.draw(st.integers(0, len(events) - 1))
    key = data.draw(st.sampled_from(sorted(events[at].data) or ["x"]))
    events[at] = replace(events[at], data=events[at].data | {key: data.draw(json_values)})
    assert_sound("".join(html(HEADER, events, price_of=price_of)))


def test_the_policy_admits_this_style_and_this_script_and_nothing_else(page: Element) -> None:
    policy = next(m.attributes["content"] for m in page.all("meta") if "http-equiv" in m.attributes)
    for tag in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.one(tag).text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy


def test_the_page_asks_nobody_for_anything(page: Element) -> None:
    assert not any({"src", "srcset", "action", "style"} & element.attributes.keys() for element in page.all())
    assert not re.search(
        r"url\(|@import|fetch\(|XMLHttp|innerHTML", page.one("style").text + page.one("script").text
    )


# --- size ------------------------------------------------------------------------------------


def test_a_huge_output_is_cut_in_the_middle_with_a_note() -> None:
    log = LogBuilder().open_turn().open_step().reply(asked("c", "bash", "{}")).call("c", "bash", "{}")
    log.result("c", "begin" + "x" * 5_000_000 + "the end").close_step().close_turn()
    text = "".join(html(HEADER, log.events, price_of=price_of))
    assert len(text) < 200_000
    call = Page(text).root.one("details", "call")
    assert "4,940,012 characters are left out" in call.one("p", "cut").text
    assert "begin" in call.text and "the end" in call.text


def long_log(steps: int, output: str) -> Iterator[Event]:
    log = LogBuilder().open_turn()
    for number in range(steps):
        log.open_step().reply({"type": "text", "text": "Next."}, asked(f"c{number}", "bash", "{}"))
        log.call(f"c{number}", "bash", "{}").wait(10).result(f"c{number}", output).close_step()
        yield from log.events[-5:] if number else log.events
    yield from log.close_turn().events[-1:]


def test_memory_is_bounded_by_a_step_and_late_outputs_of_a_long_session_are_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transcript_fold, "LARGE_PAGE", 8_000_000)
    output = "o" * 50_000
    events = list(long_log(400, output))  # 20 MB of output, one string
    tracemalloc.start()
    try:
        size = sum(len(piece) for piece in html(HEADER, events, price_of=price_of))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 8_000_000 < size < 10_000_000
    assert peak < 7_000_000


def test_a_turn_of_many_steps_shows_the_longest_in_its_waterfall() -> None:
    page = page_of(long_log(300, "x"))
    waterfall = page.one("details", "waterfall")
    assert len(waterfall.all("li")) == 120 and "the 120 longest of 300 steps" in waterfall.one("summary").text
    assert len(page.all("article", "step")) == 300


def test_no_room_for_the_page_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_spool: object, _text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transcript_fold.Spool, "write", full)
    with pytest.raises(StorageError, match="No space left") as refused:
        list(html(HEADER, rich_log(), price_of=price_of))
    assert "TMPDIR" in (refused.value.hint or "")


def test_the_spool_gives_back_what_was_written_whatever_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript_fold, "_PIECE", 3)
    spool = transcript_fold.Spool()
    spool.write("häß")
    start = spool.size
    spool.write("日本語🙂")
    assert "".join(spool.read(0, start)) == "häß" and "".join(spool.read(start, spool.size)) == "日本語🙂"
    spool.close()
