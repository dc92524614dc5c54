"""A real headless browser for tests: one session of a chromedriver, at the width of a desk and of a phone.

Where chromium and its driver are not on the PATH there is none, and tests check less. The output says which.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

__all__ = ["Browser", "browser", "driver"]

PATIENCE_S = 60
WIDTHS = ((1280, 900), (390, 844))
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


class Browser:
    """One session of a chromedriver; only what the tests need of the WebDriver protocol."""

    def __init__(self, driver: str, size: tuple[int, int], profile: Path) -> None:
        self._session = requests.Session()
        self._session.trust_env = False
        # A window has a least width; the screen of a phone does not.
        screen = {"width": size[0], "height": size[1], "pixelRatio": 1.0}
        chrome = {
            "args": [*FLAGS, f"--user-data-dir={profile}"],
            "mobileEmulation": {"deviceMetrics": screen},
        }
        options: dict[str, Any] = {"goog:chromeOptions": chrome}
        options["goog:loggingPrefs"] = {"browser": "ALL"}
        made = self._post(f"{driver}/session", {"capabilities": {"alwaysMatch": options}})
        self._url = f"{driver}/session/{made['sessionId']}"
        self.width = size[0]

    def _post(self, url: str, body: dict[str, Any]) -> Any:
        answer = self._session.post(url, json=body, timeout=PATIENCE_S)
        assert answer.ok, answer.text
        return answer.json()["value"]

    def open(self, address: str) -> None:
        self._post(f"{self._url}/url", {"url": "about:blank"})
        self._post(f"{self._url}/url", {"url": address})

    def run(self, code: str) -> Any:
        return self._post(f"{self._url}/execute/sync", {"script": code, "args": []})

    def press(self, key: str) -> None:
        actions = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._post(f"{self._url}/actions", {"actions": [{"type": "key", "id": "k", "actions": actions}]})

    @property
    def complaints(self) -> list[str]:
        """What the page's console holds: errors, refused requests."""
        return [entry["message"] for entry in self._post(f"{self._url}/se/log", {"type": "browser"})]

    def close(self) -> None:
        with contextlib.suppress(requests.RequestException):
            self._session.delete(self._url, timeout=PATIENCE_S)
        self._session.close()


@pytest.fixture(scope="module")
def driver() -> Iterator[str | None]:
    """The address of a chromedriver, None where there is no browser."""
    program = shutil.which("chromedriver")
    if program is None or shutil.which("chromium") is None:
        print("checked by structure only: there is no chromium with its driver on the PATH")
        yield None
        return
    print("checked in chromium")
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen([program, "--port=0"], stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if found := re.search(rb"successfully on port (\d+)", line):
                    port = int(found[1])
                    break
            else:
                code = process.wait(PATIENCE_S)
                errors.seek(0)
                pytest.fail(f"chromedriver ended with {code}: {b''.join(said)!r} {errors.read()!r}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture(scope="module", params=WIDTHS, ids=["desk", "phone"])
def browser(
    driver: str | None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser | None]:
    if driver is None:
        yield None
        return
    opened = Browser(driver, request.param, tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()
