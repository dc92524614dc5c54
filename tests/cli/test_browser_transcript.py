"""The HTML page of a session in a real headless browser, at the width of a desk and of a phone.

Where chromium and its driver are not on the PATH the same page is checked by its structure, which is
weaker: it cannot tell how wide a page comes out. The output of the test says which check it was.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dsh_actors.cli.transcript_html import html
from tests.browser_kit import Browser, browser, driver
from tests.cli.dsh_process import Dsh
from tests.cli.test_cli_transcript_html import HOSTILE, assert_sound, poisoned
from tests.cli.transcript_sample import HEADER, LogBuilder, asked, price_of, rich_log

__all__ = ["browser", "driver"]

@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A rich page, and one in which every text of the log tries to get out."""
    root = tmp_path_factory.mktemp("pages")
    keep = frozenset({"type", "kind", "form", "status", "id", "callId", "toolCallId"})
    log = LogBuilder().open_turn().open_step()
    wide = "x" * 3_000 + "\n" + "| " * 300
    log.user(wide).reply(
        {"type": "text", "text": f"```\n{wide}\n```\n`{wide[:2000]}`"}, asked("c", wide, wide)
    )
    log.call("c", "b", "{}").result("c", wide, meta={wide: wide}).close_step().close_turn()
    logs = {
        "rich": rich_log(),
        "hostile": [
            type(event)(event.type, event.seq, event.time, poisoned(event.data, keep), event.surface_op)
            for event in rich_log()
        ],
        "wide": log.events,
    }
    for name, events in logs.items():
        (root / name).with_suffix(".html").write_text("".join(html(HEADER, events, price_of=price_of)))
    return {name: (root / name).with_suffix(".html") for name in logs}


UNFOLD = "document.querySelectorAll('details').forEach(d => d.open = true);"
WIDTH = UNFOLD + "return Math.max(document.documentElement.scrollWidth, innerWidth)"
# A step is clipped at its edges, so what is too wide in it does not widen the page.
CLIPPED = (
    "return [...document.querySelectorAll('body *')].filter(e => e.clientWidth && !e.closest('.wide, .sr')"
    " && getComputedStyle(e).overflowX === 'visible' && e.scrollWidth > e.clientWidth + 1)"
    ".map(e => e.tagName + '.' + e.className)"
)
SHOWN = (
    "return [...document.querySelectorAll('main .unit')]"
    ".filter(u => u.getClientRects().length).map(u => u.textContent)"
)


@pytest.mark.parametrize("name", ["rich", "hostile", "wide"])
def test_a_page_fits_its_window_and_no_text_of_the_log_acts(
    browser: Browser | None, pages: dict[str, Path], name: str
) -> None:
    root = assert_sound(pages[name].read_text())
    assert any(meta.attributes.get("name") == "viewport" for meta in root.all("meta"))
    if browser is None:
        return
    browser.open(pages[name].as_uri())
    assert browser.run(WIDTH) == browser.width
    assert browser.run(CLIPPED) == []
    assert browser.run("return document.querySelectorAll('img, b b, script + script').length") == 0
    assert browser.complaints == []


def test_a_search_in_the_address_filters_and_highlights(
    browser: Browser | None, pages: dict[str, Path]
) -> None:
    script = assert_sound(pages["rich"].read_text()).one("script").text
    assert "location.hash" in script
    if browser is None:
        return
    browser.open(pages["rich"].as_uri() + "#q=run-tests")
    assert browser.run("return document.getElementById('found').value") == "2 in 1 place"
    (shown,) = browser.run(SHOWN)
    assert "1 failed" in shown and "Arguments" in shown  # the call was unfolded
    marked = browser.run("return [...document.querySelectorAll('mark')].map(m => m.textContent)")
    assert marked == ["run-tests", "run-tests"]


def test_keys_and_buttons_search_fold_and_unfold(browser: Browser | None, pages: dict[str, Path]) -> None:
    toolbar = assert_sound(pages["rich"].read_text()).one("div", "toolbar")
    assert "hidden" in toolbar.attributes  # of no use without the script
    if browser is None:
        return
    browser.open(pages["rich"].as_uri())
    assert browser.run("return document.getElementById('toolbar').hidden") is False
    browser.press("/")
    assert browser.run("return document.activeElement.id") == "query"
    count = "return document.querySelectorAll('main details[open]').length"
    everything = browser.run("return document.querySelectorAll('main details').length")
    browser.run("document.getElementById('expand').click()")
    assert browser.run(count) == everything
    browser.run("document.getElementById('collapse').click()")
    assert browser.run(count) == 0
    browser.run("document.getElementById('problems').click()")
    shown = browser.run(SHOWN)
    assert len(shown) == 6 and all(
        re.search("error|denied|RATE|interrupt|Limit|failed", text) for text in shown
    )


def test_a_search_that_is_given_up_leaves_the_page_as_it_was(
    browser: Browser | None, pages: dict[str, Path]
) -> None:
    assert "replaceWith" in assert_sound(pages["rich"].read_text()).one("script").text
    if browser is None:
        return
    browser.open(pages["rich"].as_uri())
    before = browser.run("return document.getElementById('main').innerHTML.replaceAll(' class=\"\"', '')")
    change = "const q = document.getElementById('query'); q.value = {!r}; location.hash = '#q=' + q.value;"
    wait = "return new Promise(done => setTimeout(() => done(document.querySelectorAll('mark').length), 0))"
    browser.run(change.format("the"))
    assert browser.run(wait) > 3
    browser.run(change.format(""))
    assert browser.run(wait) == 0
    after = browser.run("return document.getElementById('main').innerHTML.replaceAll(' class=\"\"', '')")
    assert after == before


def test_a_real_session_is_exported_and_reads_well(browser: Browser | None, dsh: Dsh) -> None:
    (dsh.cwd / "README.md").write_text("# Pears\n\nA shop that sells pears.\n")
    ran = dsh.run("-m", "scripted/demo", "--print-session-id", "What does this shop sell?")
    assert ran.code == 0
    session = ran.err.split()[0]
    done = dsh.call("session", "export", "--format", "html", "-o", "page.html", session)
    assert (done.code, done.err) == (0, "")
    file = dsh.cwd / "page.html"
    root = assert_sound(file.read_text())
    assert (
        root.one("h1").text == "What does this shop sell?" and session in root.one("header", "masthead").text
    )
    assert "README.md begins" in root.all("article", "step")[-1].text
    assert len(root.all("details", "call")) >= 3
    if browser is not None:
        browser.open(file.as_uri())
        assert browser.run(WIDTH) == browser.width and browser.complaints == []
        assert HOSTILE not in browser.run("return document.title")
