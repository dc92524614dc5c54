"""The table of messages: every message is in it, and nobody waits for somebody above."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from dsh_actors.actors import protocol
from dsh_actors.actors.message_rules import RANKS, RULES

NOT_MESSAGES = {"Opened", "AgentStatus"}


def test_every_ask_goes_down_the_ranks():
    upward = [
        (message.__name__, rule)
        for message, rules in RULES.items()
        for rule in rules
        if rule.how == "ask" and RANKS[rule.receiver] >= RANKS[rule.sender]
    ]
    assert upward == []


def test_every_message_class_has_its_rules():
    classes = [
        cls
        for name, cls in inspect.getmembers(protocol, inspect.isclass)
        if cls.__module__ == protocol.__name__ and dataclasses.is_dataclass(cls) and name not in NOT_MESSAGES
    ]
    assert [cls.__name__ for cls in classes if cls not in RULES] == []


@pytest.mark.parametrize("message", list(RULES), ids=lambda cls: cls.__name__)
def test_messages_are_frozen_and_slotted(message):
    assert message.__dataclass_params__.frozen
    assert "__slots__" in message.__dict__
