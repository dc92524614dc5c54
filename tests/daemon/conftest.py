"""A daemon that leaves nothing behind."""

from __future__ import annotations

import pytest

from dsh_actors.runtime.actor import live_actors
from dsh_actors.runtime.tasks import live_tasks
from tests.daemon.host_kit import Daemon


@pytest.fixture
def make_daemon(tmp_path):
    """Make daemons in one home, one after another; each is closed at the end."""
    made = []

    def make(**options):
        made.append(Daemon(tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
    assert live_actors() == []
    assert live_tasks() == []


@pytest.fixture
def daemon(make_daemon):
    return make_daemon()
