"""From a line of a tasks file to what `Run` needs, checked, with the command line's options behind it."""

from __future__ import annotations

import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from dsh_actors.cli.batch_input import MAX_LINE_BYTES, Line
from dsh_actors.cli.options import RunArguments, agent_options, config_overrides
from dsh_actors.cli.places import working_directory
from dsh_actors.config import Config, load_config
from dsh_actors.config.cost_limit import require_price
from dsh_actors.core.batch import digest_of
from dsh_actors.core.ids import SessionId
from dsh_actors.core.policy import POLICY_NAMES
from dsh_actors.core.text import JsonObject, json_fault, read_json
from dsh_actors.errors import UsageError
from dsh_actors.runs import RunPlan
from dsh_actors.runtime.files import run_native
from dsh_actors.task_spec import MAX_ID_LENGTH, TaskSpec

if TYPE_CHECKING:
    from dsh_actors.ports import SessionStorage

__all__ = ["LineReading", "Task", "TaskPlanner"]

_MAX_CONFIGS = 256
_NOT_OF_THE_TASK = ("limits.", "model.max_retries", "approval.fail_on_denied")
"""Options that bound a task or judge it and do not change what it is: one that is done stays done."""


@dataclass(frozen=True, slots=True)
class Task:
    """One line that could be read. ``fault`` is what is wrong with it, None for a good one.

    ``id`` is None only where the line does not tell. ``digest`` changes with whatever is asked for.
    """

    line: int
    id: str | None
    digest: str
    spec: TaskSpec | None = None
    fault: UsageError | None = None


class LineReading:
    """Turns lines into tasks, in order; knows the ids that were taken."""

    def __init__(self, planner: TaskPlanner) -> None:
        self._planner = planner
        self._taken: dict[bytes, int] = {}

    def task(self, line: Line) -> Task:
        """Raises nothing: a line that is no task has a fault."""
        raw_digest = hashlib.sha256(line.data or b"").hexdigest()[:16]
        name: str | None = None
        try:
            value = _parsed(line)
            name = _claimed_id(value)
            spec = TaskSpec.from_json(value, f"line {line.number}")
            name = spec.name or str(line.number)
            self._take(name, line.number)
            if not (spec.prompt or "").strip():
                raise UsageError(f"line {line.number}: there is no prompt")
            asked = {key: each for key, each in value.items() if key != "id"}
            digest = digest_of(asked, self._planner.identity(spec))
        except UsageError as error:
            return Task(line.number, name, raw_digest, fault=error)
        except RecursionError:
            # What can just be read may be too deep to be written.
            fault = UsageError(f"line {line.number} is nested too deeply")
            return Task(line.number, name, raw_digest, fault=fault)
        return Task(line.number, name, digest, self._planner.with_defaults(spec))

    def _take(self, name: str, line: int) -> None:
        """Raises `UsageError` for an id that another line has. A short digest of each is kept."""
        key = hashlib.blake2b(name.encode(), digest_size=12).digest()
        before = self._taken.setdefault(key, line)
        if before != line:
            raise UsageError(f"line {line}: the id {name!r} is that of line {before} already")


def _claimed_id(value: Any) -> str | None:
    """What a line calls itself, good or not: whoever reads its result wants to know."""
    name = value.get("id") if isinstance(value, dict) else None
    return name if isinstance(name, str) and name.isprintable() and len(name) <= MAX_ID_LENGTH else None


def _parsed(line: Line) -> Any:
    where = f"line {line.number}"
    if line.data is None:
        raise UsageError(f"{where} is longer than {MAX_LINE_BYTES >> 20} MiB")
    data = line.data.removeprefix(b"\xef\xbb\xbf") if line.number == 1 else line.data
    try:
        return read_json(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{where} is not UTF-8 (byte {error.start + 1})") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON: {json_fault(error)}") from error


class TaskPlanner:
    """Knows the options of the command line, and the configuration of each directory.

    ``base`` is the directory that relative ones of tasks start at. ``needs_price``: only what has a known
    price may run.
    """

    def __init__(
        self, arguments: RunArguments, config: Config, storage: SessionStorage, *, needs_price: bool = False
    ) -> None:
        self.base = config.cwd
        self._arguments = arguments
        self._storage = storage
        self._needs_price = needs_price
        self._overrides = _absolute(config_overrides(arguments))
        given = agent_options(arguments, config, "")
        names = {field.name for field in fields(TaskSpec)} - {"name", "prompt", "cwd", "session_id", "keys"}
        self._defaults = {
            name: getattr(given, name) for name in names if getattr(given, name, None) is not None
        }
        self._configs: OrderedDict[str, Config] = OrderedDict()
        self._identity = {
            "keys": {k: v for k, v in self._overrides.items() if not k.startswith(_NOT_OF_THE_TASK)},
            "options": self._defaults,
        }

    def identity(self, spec: TaskSpec) -> JsonObject:
        """What besides the line itself says what is asked for."""
        return {**self._identity, "cwd": self._place(spec)}

    def with_defaults(self, spec: TaskSpec) -> TaskSpec:
        """``spec`` with the options of the command line where it says nothing."""
        silent = TaskSpec()
        taken = {
            name: value
            for name, value in self._defaults.items()
            if getattr(spec, name) == getattr(silent, name)
        }
        return replace(spec, **taken)

    def config(self, folder: str) -> Config:
        """The configuration in force in a directory, as `dsh run` there has it. Raises `ConfigError`."""
        known = self._configs.get(folder)
        if known is None:
            known = self._configs[folder] = load_config(cwd=folder, options=self._overrides)
            if len(self._configs) > _MAX_CONFIGS:
                self._configs.popitem(last=False)
        self._configs.move_to_end(folder)
        return known

    def plan(self, spec: TaskSpec) -> RunPlan:
        """How `dsh run` would do it. Raises `UsageError` or what reading a session raises."""
        fork: tuple[SessionId, int | None] | None = None
        if spec.resume is None and spec.fork is None:
            config = self.config(working_directory(self._place(spec)))
            model = None
        else:
            session, at_seq = self._origin(spec)
            fork = (session, at_seq) if spec.fork is not None else None
            config = self.config(self._recorded_place(spec, session))
            model = self._model_of(spec, config, session)
        options = replace(spec, cwd=None).options(config, model=model)
        if self._needs_price:
            require_price(config, options.model, int(time.time() * 1000), "--max-total-cost")
        return RunPlan(
            spec.prompt or "",
            options,
            spec.resume,
            config.price,
            fail_on_denied=config.approval.fail_on_denied,
            fork=fork,
            no_wait=self._arguments.no_wait,
            simple_exit=self._arguments.simple_exit,
        )

    def _place(self, spec: TaskSpec) -> str:
        return os.path.normpath(os.path.join(self.base, os.path.expanduser(spec.cwd or ".")))

    def _origin(self, spec: TaskSpec) -> tuple[SessionId, int | None]:
        if spec.fork is None:
            return SessionId(spec.resume or ""), None
        from dsh_actors.cli.stored import fork_point

        return fork_point(self._storage, spec.fork)

    def _recorded_place(self, spec: TaskSpec, session: SessionId) -> str:
        """A session works where it was begun."""
        recorded = self._storage.header(session).cwd or self._place(spec)
        if spec.cwd is not None and working_directory(self._place(spec)) != recorded:
            raise UsageError(f"session {session} works in {recorded}, not in {self._place(spec)}")
        if not os.path.isdir(recorded):
            raise UsageError(f"session {session} works in {recorded}, which is not a directory here")
        return working_directory(recorded)

    def _model_of(self, spec: TaskSpec, config: Config, session: SessionId) -> str | None:
        """None where the line names one; empty for the one that the session used last."""
        if "agent.model" in spec.keys:
            return None
        if config.origins["agent.model"] == "option":
            return config.agent.model
        is_limited = config.limits.max_cost is not None or "limits.max_cost" in spec.keys
        if not is_limited and not self._needs_price:
            return ""
        from dsh_actors.cli.stored import recorded_model

        return run_native(recorded_model, self._storage, session) or ""


def _absolute(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A rule file named on the command line is looked for from the current directory, not a task's."""
    policy = overrides.get("approval.policy")
    if policy is None or policy in POLICY_NAMES:
        return dict(overrides)
    return {**overrides, "approval.policy": os.path.abspath(os.path.expanduser(policy))}
