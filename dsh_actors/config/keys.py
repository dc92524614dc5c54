"""The table of configuration keys: one row gives the default, the type and who may set it."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from dsh_actors.core.options import SANDBOX_MODES, TITLE_MODES
from dsh_actors.core.text import is_well_formed
from dsh_actors.errors import ConfigError

__all__ = ["KEYS", "KEYS_BY_NAME", "Key", "nearest", "parse_duration"]

Kind = Literal["text", "int", "number", "duration", "flag"]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h)?")
_UNITS = {None: 1, "s": 1, "m": 60, "h": 3600}
MAX_DURATION_S = 2_147_483.0
"""The longest wait that every timer of the system can hold: almost 25 days."""

_WORDS = {
    "text": "a text",
    "int": "a whole number",
    "number": "a number",
    "duration": 'a duration such as 90, "90s", "5m" or "2h"',
    "flag": "true or false",
}


@dataclass(frozen=True, slots=True)
class Key:
    """``name`` is ``section.key``. ``minimum`` is the least allowed number; ``above`` excludes it.

    ``project``: whether a project's own file may set it.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    minimum: float | None = None
    choices: tuple[str, ...] = ()
    project: bool = True

    @property
    def section(self) -> str:
        return self.name.partition(".")[0]

    @property
    def field(self) -> str:
        """The member of the section's dataclass: durations carry their unit."""
        key = self.name.partition(".")[2]
        return key if self.kind != "duration" or key.endswith("_s") else f"{key}_s"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return "DSH_" + self.name.replace(".", "_").upper()

    def parse(self, value: Any, where: str) -> Any:
        """``value`` from a TOML file, or as text from outside. Raises `ConfigError` naming ``where``."""
        if isinstance(value, str) and not is_well_formed(value):
            raise ConfigError(f"{where}: {self.name} is not UTF-8: {value!a}")
        parsed = self._convert(value)
        if parsed is None:
            raise ConfigError(f"{where}: {self.name} must be {_WORDS[self.kind]}, not {value!r}")
        if self.choices and parsed not in self.choices:
            choices = ", ".join(self.choices)
            raise ConfigError(f"{where}: {self.name} must be one of {choices}, not {parsed!r}")
        if self.minimum is not None and parsed < self.minimum:
            raise ConfigError(f"{where}: {self.name} must be at least {self.minimum:g}, not {value!r}")
        return parsed

    def _convert(self, value: Any) -> Any:
        match self.kind:
            case "text":
                return value if isinstance(value, str) and value.strip() else None
            case "int":
                return _whole(value)
            case "number":
                return _number(value)
            case "duration":
                try:
                    return parse_duration(value)
                except ValueError:
                    return None
            case "flag":
                words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
                return value if isinstance(value, bool) else words.get(str(value).lower())


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value.strip()):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def parse_duration(value: Any) -> float:
    """Seconds: a number, or a text with the unit s, m or h. Raises `ValueError` unless it is above 0."""
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip().lower())
        if match is None:
            raise ValueError(f"{value!r} is not {_WORDS['duration']}")
        value = float(match[1]) * _UNITS[match[2]]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_DURATION_S:
        raise ValueError(f"{value!r} is not a duration above 0 and below 25 days")
    return float(value)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word most like ``word``, or all of them where none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, 1, 0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(names)}" if names else "there is none"


KEYS: tuple[Key, ...] = (
    Key("agent.model", "text", "deepseek/deepseek-flash", "the model, as PROVIDER/MODEL"),
    Key("agent.max_output", "int", None, "tokens of one reply; unset leaves it to the provider", 1),
    Key("agent.reasoning", "text", None, "reasoning effort; unset leaves it to the provider"),
    Key("agent.preset", "text", None, "the agent preset"),
    Key("limits.max_steps", "int", None, "most model requests of a run, each with its tool calls", 1),
    Key("limits.max_tool_calls", "int", None, "most tool calls of a run", 1),
    Key("limits.max_tokens", "int", None, "most tokens of a run as reported, input and output", 1),
    Key("limits.max_cost", "number", None, "most cost of a run, in the currency of the model's price", 0),
    Key("limits.timeout", "duration", None, "longest time of a run; then it ends with exit code 124"),
    Key("limits.deadline", "duration", None, "as the timeout, but the model is warned before it"),
    Key("limits.tool_timeout", "duration", 120.0, "longest time of one tool call"),
    Key("limits.max_agents", "int", 100, "most sub-agents of a run", 0),
    Key("limits.max_concurrent_agents", "int", 8, "most sub-agents at work at once", 1),
    Key("limits.max_depth", "int", 3, "how deep sub-agents may be nested; 0 forbids them", 0),
    Key("model.connect_timeout_s", "duration", 10.0, "connecting to a provider"),
    Key("model.first_event_timeout_s", "duration", 660.0, "silence before a reply"),
    Key("model.queue_timeout_s", "duration", 660.0, "in the provider's queue while it gives signs of life"),
    Key("model.idle_timeout_s", "duration", 300.0, "silence inside a reply"),
    Key("model.total_timeout_s", "duration", None, "one request from its start to its end"),
    Key("model.max_retries", "int", 5, "repeated requests for one step", 0),
    Key("tools.max_parallel", "int", 10, "calls of one agent that run at once", 1),
    Key("tools.output_limit_bytes", "int", 50_000, "output of one call that the model sees", 1_000),
    Key(
        "session.backend",
        "text",
        "segments",
        "where sessions are kept: files, or one database",
        choices=("segments", "sqlite"),
        # Sessions of a user are in one place, whatever directory they work in.
        project=False,
    ),
    Key("session.write_window_ms", "int", 200, "how long events may wait to be written together", 0),
    Key("session.checkpoint_events", "int", 256, "new events before a turn's end saves a checkpoint", 1),
    Key("session.checkpoint_max_events", "int", 4_096, "new events before one is saved within a turn", 1),
    Key(
        "session.title",
        "text",
        "fallback",
        "titles: the first words (fallback), or a model's, asked once (first-prompt) or often (all-prompts)",
        choices=TITLE_MODES,
    ),
    Key("session.title_model", "text", None, "the model that writes titles; unset means the session's"),
    Key("session.segment_bytes", "int", 1_048_576, "a log file is closed at this size", 4_096),
    Key("session.segment_events", "int", 4_096, "a log file is closed at so many events", 1),
    Key(
        "approval.policy",
        "text",
        "workspace",
        "what it may do: workspace, read-only, all (every question is answered with yes; the sandbox"
        " stays), or a rule file",
        project=False,
    ),
    Key(
        "approval.sandbox",
        "text",
        "auto",
        "whether commands run in a sandbox",
        choices=SANDBOX_MODES,
        project=False,
    ),
    Key("approval.fail_on_denied", "flag", True, "a denied call makes the run exit 6", project=False),
    # A daemon serves every directory of its user: no project's file has a say in it.
    Key(
        "daemon.socket", "text", None, "its Unix socket; unset means daemon/socket in DSH_HOME", project=False
    ),
    Key("daemon.listen", "text", None, "also listen here, HOST:PORT of this machine", project=False),
    Key("daemon.approval_timeout", "duration", 300.0, "how long a question may wait", project=False),
    Key("daemon.max_live", "int", 10_000, "most agents that are awake at once", 1, project=False),
    Key("daemon.idle_after", "duration", 300.0, "an agent idle for so long is put to sleep", project=False),
    Key(
        "daemon.restart",
        "text",
        "resume",
        "agents at work when the daemon ended go on at its start, or sleep",
        choices=("resume", "sleep"),
        project=False,
    ),
    Key("daemon.event_queue", "int", 1_000, "events that a slow client may lag behind", 16, project=False),
)

KEYS_BY_NAME = {key.name: key for key in KEYS}
