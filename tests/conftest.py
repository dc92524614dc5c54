"""What every test shares: a hermetic environment, the long forms, the property profile."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

_FOREIGN = ("DSH_", "DEEPSEEK_", "OPENAI_", "ANTHROPIC_", "XDG_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")

_CLAIMS = pytest.StashKey[dict[str, bool]]()

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


def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Pass over the tests of a file that another run has claimed."""
    folder = item.config.getoption("--share")
    if folder is None:
        return None
    claims = item.config.stash.setdefault(_CLAIMS, {})
    name = str(item.path.relative_to(item.config.rootpath)).replace("/", "+")
    if name not in claims:
        try:
            os.mkdir(os.path.join(folder, name))
            claims[name] = True
        except FileExistsError:
            claims[name] = False
    return None if claims[name] else True


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
