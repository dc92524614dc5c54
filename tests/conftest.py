"""What every test shares: a hermetic environment, the long forms, the property profile."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

_FOREIGN = ("DSH_", "DEEPSEEK_", "OPENAI_", "ANTHROPIC_", "XDG_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")

settings.register_profile(
    "suite",
    max_examples=60,
    deadline=None,  # a shared machine is slow at times; slowness is not what these tests are about
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("long", settings.get_profile("suite"), max_examples=2000, derandomize=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the long forms of the tests that have one")
    parser.addoption("--share", metavar="DIR", help="run the files of tests that no other run claims in DIR")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests of the files that no other run has claimed."""
    folder = session.config.getoption("--share")
    if folder is None or session.testsfailed or session.config.option.collectonly:
        return None
    mine = claimed(session, folder)
    item = next(mine, None)
    while item is not None:
        following = next(mine, None)
        # Whoever started the runs says in which test one of them died.
        Path(folder, f"at-{os.getpid()}").write_text(item.nodeid, "utf-8")
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        item = following
    return True


def claimed(session: pytest.Session, folder: str) -> Iterator[pytest.Item]:
    """The tests of this run, file by file: whoever makes the folder of a file's name has it."""
    for path, items in groupby(session.items, lambda item: item.path):
        try:
            os.mkdir(os.path.join(folder, str(path.relative_to(session.config.rootpath)).replace("/", "+")))
        except FileExistsError:
            continue
        yield from items


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "suite")
    for name in list(os.environ):
        if name.startswith(_FOREIGN) or name.lower() in _PROXIES:
            del os.environ[name]
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        # A shell's background job ignores some of them, and so would every program that is tested.
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session")
def long_form(pytestconfig: pytest.Config) -> bool:
    """Whether the long form of a test was asked for."""
    return bool(pytestconfig.getoption("--long"))
