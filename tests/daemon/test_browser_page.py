"""The status page of a real daemon in a real headless browser, at the width of a desk and of a phone.

Where chromium and its driver are not on the PATH only the page's structure is checked.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from dsh_actors.daemon.client import DaemonClient
from dsh_actors.daemon.page import page_policy, status_page
from tests.browser_kit import Browser, browser, driver
from tests.cli.agent_kit import Served, served, serving
from tests.cli.dsh_process import PATIENCE_S, Dsh
from tests.cli.process_fixtures import model_server, model_server_process
from tests.model_server import C, ModelServer, T

__all__ = ["browser", "driver", "model_server", "model_server_process", "served"]

HOSTILE = "<img src=x onerror=document.title='out'><script>document.title='out'</script>"
WIDTH = "return Math.max(document.documentElement.scrollWidth, innerWidth)"


def shown(selector: str) -> str:
    """Script: the text of what the selector finds and the user sees."""
    return (
        f"return [...document.querySelectorAll({selector!r})]"
        ".filter(e => e.checkVisibility()).map(e => e.textContent)"
    )


def click(selector: str, text: str = "") -> str:
    return (
        f"const found = [...document.querySelectorAll({selector!r})]"
        f".find(e => e.textContent.includes({text!r})); found.focus(); found.click()"
    )


def enter(name: str, text: str) -> str:
    """Script: a field gets a text as if it were typed."""
    return (
        f"const field = document.getElementById({name!r}); field.value = {text!r};"
        "field.dispatchEvent(new Event('input'))"
    )


class Page:
    """The page in the browser, and the daemon behind it. Nothing waits by time but for what it looks for."""

    def __init__(self, browser: Browser, served: Served) -> None:
        self.browser = browser
        self.served = served
        self.client = DaemonClient(served.socket)
        browser.open(f"{served.url}/#token={served.token}")

    def until(self, code: str, holds: Callable[[Any], bool]) -> Any:
        """What ``code`` gives, as soon as it holds."""
        end = time.monotonic() + PATIENCE_S
        while not holds(value := self.browser.run(code)):
            assert time.monotonic() < end, f"{code} still gives {value!r}"
        return value

    def sees(self, selector: str, text: str) -> None:
        self.until(shown(selector), lambda found: any(text in each for each in found))

    def misses(self, selector: str, text: str = "") -> None:
        self.until(shown(selector), lambda found: not any(text in each for each in found))

    def create(self, prompt: str, **more: Any) -> str:
        task = {"prompt": prompt or None, "model": Dsh.model, "cwd": str(self.served.dsh.cwd), **more}
        return str(self.client.create(task)["id"])

    def ask(self, prompt: str) -> str:
        """An agent that will ask for a command."""
        return self.create(prompt, approve=str(self.served.rules))

    def answer(self, agent_id: str) -> dict[str, Any]:
        end = self.client.wait([agent_id])[agent_id]
        assert end is not None
        return end

    def assert_sound(self) -> None:
        assert self.browser.run(WIDTH) == self.browser.width
        assert self.browser.run("return document.title") != "out"
        assert self.browser.run("return document.querySelectorAll('img, main script').length") == 0
        assert self.browser.complaints == []


@pytest.fixture
def page(browser: Browser | None, served: Served, model_server: ModelServer) -> Iterator[Page | None]:
    if browser is None:
        yield None
        return
    opened = Page(browser, served)
    opened.sees("#connection", "live")
    yield opened
    for info in list(opened.client.agents()):
        opened.client.dispose(str(info["id"]))
    browser.open("about:blank")
    opened.client.close()


def test_the_page_is_one_file_that_lets_nothing_else_run(served: Served) -> None:
    with requests.Session() as session:
        session.trust_env = False
        answer = session.get(served.url + "/", timeout=PATIENCE_S)  # the page itself is no secret
    assert answer.text == status_page()
    assert answer.headers["Content-Security-Policy"] == page_policy()
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page_policy() and "unsafe" not in page_policy()
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", answer.text)
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", answer.text)
    assert served.token not in answer.text


def test_an_agent_appears_asks_and_goes_on_when_it_is_allowed(
    page: Page | None, model_server: ModelServer
) -> None:
    model_server.script(C("bash", {"command": "echo allowed > allowed.txt"}), T("Made " + HOSTILE))
    if page is None:
        assert 'id="question-list"' in status_page()
        return
    agent_id = page.ask(f"make it {HOSTILE}")
    page.sees("#list a", "make it <img")
    page.sees("#list a", "asking")
    page.sees("#list a .doing", "1.1 bash")
    page.sees(".question", "command: echo allowed > allowed.txt")
    page.sees(".question", "a person decides")
    page.assert_sound()
    page.browser.run(click(".question button", "Allow"))
    page.misses("#questions")
    assert page.answer(agent_id)["answer"] == "Made " + HOSTILE
    assert (page.served.dsh.cwd / "allowed.txt").read_text() == "allowed\n"
    page.sees("#list a", "idle")
    page.assert_sound()


def test_a_call_that_is_denied_is_not_made(page: Page | None, model_server: ModelServer) -> None:
    turned = "touch refused.txt # \u202eoh\x1b[2J \u2066x"
    seen = "touch refused.txt # \\u202eoh\\u001b[2J \\u2066x"
    model_server.script(C("bash", {"command": turned}), T(f"As you {turned}."))
    if page is None:
        assert "Deny" in status_page()
        return
    agent_id = page.ask("touch it")
    page.sees("#list a", "touch it")
    page.browser.run(click("#list a", "touch it"))
    page.sees("#stream summary", "asking")
    page.sees("#stream summary", seen)
    page.sees(".question pre", seen)  # who decides sees the characters in the order that a shell does
    page.browser.run(click(".question button", "Deny"))
    page.misses("#questions")
    assert page.answer(agent_id)["reason"] == "denied"
    page.sees("#stream summary", "denied")
    page.sees("#stream .banner", "Turn 1 is complete")
    page.sees("#stream .reply", seen)
    assert not (page.served.dsh.cwd / "refused.txt").exists()
    page.assert_sound()


def test_the_events_of_an_agent_read_as_turns_with_calls_that_unfold(
    page: Page | None, model_server: ModelServer
) -> None:
    wide = "x" * 3_000
    model_server.script(
        C("bash", {"command": f"echo {wide}"}, text="Let me see. " + HOSTILE), T("Seen."), T("Twice.")
    )
    if page is None:
        assert 'role="log"' in status_page()
        return
    agent_id = page.create(f"look {HOSTILE}")
    page.answer(agent_id)
    page.sees("#list a", "look")
    page.browser.run(click("#list a", "look"))
    page.sees("#stream .user", "look <img")
    page.sees("#stream .banner", "Turn 1 is complete")
    assert page.browser.run(shown("#stream .body")) == []
    page.browser.run("document.querySelectorAll('#stream details').forEach(d => d.open = true)")
    assert any(wide in text for text in page.browser.run(shown("#stream .body")))
    page.sees("#stream .reply", "Seen.")
    page.assert_sound()
    page.browser.run(enter("text", "again"))
    page.browser.run(click("#compose button", "Send"))
    page.sees("#stream .reply", "Twice.")
    page.sees("#said", "Delivered.")
    page.assert_sound()


def test_a_turn_is_steered_and_cancelled(page: Page | None, model_server: ModelServer) -> None:
    model_server.script(C("bash", {"command": "true"}), T("Never."))
    if page is None:
        assert "Cancel turn" in status_page()
        return
    page.ask("wait for me")
    page.sees("#list a", "wait for me")
    page.browser.run(click("#list a", "wait for me"))
    page.sees(".question", "bash")
    page.browser.run(enter("how", "steer"))
    page.browser.run(enter("text", "aside"))
    page.browser.run(click("#compose button", "Send"))
    page.sees(".facts", "1 for a step")
    page.browser.run(click("#cancel"))
    page.misses("#questions")
    page.sees("#stream .banner", "Turn 1 ended: aborted")
    page.sees("#facts", "idle")
    assert model_server.count() == 1
    page.assert_sound()


def test_many_agents_are_searched_filtered_and_shown_in_part(page: Page | None, long_form: bool) -> None:
    if page is None:
        assert 'id="query"' in status_page()
        return
    count = 1_000 if long_form else 120
    names = [page.create("", session_id=f"{page.browser.width}-{n}") for n in range(count)]
    page.sees("#count", f"{count:,} of {count:,} agents")
    assert len(page.browser.run(shown("#list a"))) == 100
    page.assert_sound()
    page.browser.run(click("#more"))
    page.until(shown("#list a"), lambda found: len(found) == min(count, 200))
    page.browser.run(enter("query", f"IDLE {names[7]}"))
    page.sees("#count", f"0 of {count:,} agents")
    page.browser.run(enter("query", f"-7 {names[7].upper()}"))
    page.sees("#list a", names[7])
    page.sees("#states button", f"idle {count:,}")
    page.browser.run("document.activeElement.blur()")
    page.browser.press("/")
    assert page.browser.run("return document.activeElement.id") == "query"
    page.assert_sound()


def test_without_the_right_token_nothing_is_told(browser: Browser | None, served: Served) -> None:
    if browser is None:
        assert 'id="entry"' in status_page()
        return
    browser.open(served.url + "/")
    browser.run("sessionStorage.clear()")
    browser.open("about:blank")
    # The page that had a token is left; a request that it made in between was refused.
    assert all("401 (Unauthorized)" in each for each in browser.complaints)
    browser.open(served.url + "/")
    assert browser.run(shown("#entry label, .side")) != []
    assert browser.run(shown(".side")) == [] and browser.complaints == []
    browser.run(enter("token", served.token))
    browser.run(click("#entry button"))
    end = time.monotonic() + PATIENCE_S
    while browser.run(shown("#connection")) != ["live"]:
        assert time.monotonic() < end
    assert browser.run("return location.href") == served.url + "/"
    assert browser.complaints == []


def test_the_page_comes_back_with_the_daemon(
    browser: Browser | None, tmp_path: Path, model_server: ModelServer
) -> None:
    if browser is None or browser.width < 1000:  # the width plays no part
        assert "trying again" in status_page()
        return
    with serving(tmp_path, model_server) as served:
        opened = Page(browser, served)
        model_server.script(T("Before."), T("After."))
        agent_id = opened.create("stay")
        opened.sees("#list a", "stay")
        opened.browser.run(click("#list a", "stay"))
        opened.sees("#stream .reply", "Before.")
        opened.answer(agent_id)
        port = served.url.rpartition(":")[2]
        served.running.send_signal(15)
        assert served.running.wait().code in (0, 143)
        opened.sees("#connection", "no connection")
        again = served.dsh.start("serve", "--listen", f"127.0.0.1:{port}")
        again.wait_for(lambda run: "serving at" in run.stderr)
        opened.sees("#connection", "live")
        opened.sees("#streaming", "live")
        opened.client.deliver(agent_id, "more", "send")
        opened.sees("#stream .reply", "After.")
        turns = opened.browser.run(shown("#stream .turnhead"))
        assert [turn[:6] for turn in turns] == ["Turn 1", "Turn 2"]  # nothing twice
        opened.client.close()
        browser.open("about:blank")
