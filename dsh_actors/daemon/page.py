"""The status page: one HTML file that needs nothing from elsewhere."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["status_page"]


@cache
def status_page() -> str:
    return Path(__file__).with_name("page.html").read_text("utf-8")
