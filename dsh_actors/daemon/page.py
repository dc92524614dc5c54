"""The status page: one file with its style and script inside, and the policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

__all__ = ["page_policy", "status_page"]

_SCRIPTS = ("page_api.js", "page_list.js", "page_questions.js", "page_agent.js", "page_main.js")


@cache
def _style() -> str:
    return _read("page.css")


@cache
def _script() -> str:
    """All parts as one, in a scope of their own."""
    return '"use strict";\n{\n' + "".join(map(_read, _SCRIPTS)) + "}\n"


@cache
def status_page() -> str:
    """The page as HTML. It needs no network but the daemon's own interface."""
    return _read("page.html").replace("/*STYLE*/", _style()).replace("/*SCRIPT*/", _script())


@cache
def page_policy() -> str:
    """Its Content-Security-Policy: this style and this script, by their digests; requests to the daemon."""
    return (
        f"default-src 'none'; style-src '{_digest(_style())}'; script-src '{_digest(_script())}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _read(name: str) -> str:
    return files("dsh_actors.daemon").joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
