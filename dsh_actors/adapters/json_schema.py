"""JSON Schema for structured answers, with the library `jsonschema`: no network, bounded time.

Imported only where there is a schema. What may take long runs in a native thread or, where one
regular expression could hold up the whole process, in a process of its own that can be ended.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

from dsh_actors.adapters.tools.regex_guard import compile_safely
from dsh_actors.core.answers import AnswerRefused, require_plain
from dsh_actors.core.text import JsonObject, JsonValue, shorten
from dsh_actors.errors import ToolError, UsageError
from dsh_actors.runtime.files import run_native

__all__ = ["AnswerSchema"]

CHECK_S = 10.0
"""How long one answer may be looked at, in seconds of the processor: a busy machine changes no verdict."""

APART_S = 2
"""The same for a process that looks at what may never end; whole seconds."""

_PATIENCE = 10
"""How many times as long such a process may take by the clock."""

MAX_SCHEMA_BYTES = 1 << 20
"""A schema stands in the prompt of every request; a larger one is a mistake."""

_MAX_ERRORS = 20
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_DATA = ("const", "enum", "default", "examples")


class _NeedsProcess(Exception):
    """A regular expression may take for ever on this text."""


class _TooLong(Exception):
    """The time for an answer is over."""


class _Budget:
    """Travels with a validator through a schema, in the place of a checker of formats: none is checked."""

    __slots__ = ("ends", "is_killable")

    def __init__(self) -> None:
        self.ends = 0.0
        self.is_killable = False
        """Whether this process is there for one answer only, and may hang."""

    def check(self, instance: Any, format: str) -> None:
        """Take every format, as the library does by itself."""

    def spend(self) -> None:
        """Raises `_TooLong` when the time is over."""
        if time.thread_time() > self.ends:
            raise _TooLong


class AnswerSchema:
    """A schema that has been checked, for one agent. Made by `AnswerSchema.of`."""

    def __init__(self, schema: JsonObject, kind: Any) -> None:
        from referencing import Registry

        self.schema = schema
        self._budget = _Budget()
        # An empty registry fetches nothing, whatever a schema refers to.
        self._validator = _bounded(kind)(schema, registry=Registry(), format_checker=self._budget)

    @staticmethod
    def of(schema: Any) -> AnswerSchema:
        """Raises `UsageError` for what is no JSON Schema, or one that refers to what is not in it."""
        return AnswerSchema(schema, run_native(_checked_kind, schema))

    def errors(self, value: JsonValue) -> list[str]:
        """What in ``value`` does not fit, each with its place; empty if it fits. Only the caller waits."""
        try:
            return run_native(self.errors_here, value)
        except _NeedsProcess:
            return _errors_elsewhere(self.schema, value)

    def errors_here(self, value: JsonValue, *, is_killable: bool = False) -> list[str]:
        """*Native.* As `errors`, for a process that may hang, or raises `_NeedsProcess`."""
        self._budget.ends, self._budget.is_killable = time.thread_time() + CHECK_S, is_killable
        try:
            return [_line(error) for error in islice(self._validator.iter_errors(value), _MAX_ERRORS)]
        except _NeedsProcess:
            raise
        except _TooLong:
            return [_too_long(CHECK_S)]
        except RecursionError:
            return ["$: the schema refers to itself without end, or is nested too deeply for this value"]
        except Exception as error:  # the library meets whatever stands in somebody's schema
            return [f"$: it cannot be checked: {type(error).__name__}: {shorten(str(error), 200)}"]


def _too_long(seconds: float) -> str:
    return f"$: checking it took longer than {seconds:g} s"


def _checked_kind(schema: Any) -> Any:
    """The class of validators of a schema. Raises what `AnswerSchema.of` raises."""
    if not isinstance(schema, dict):
        raise UsageError("the schema must be a JSON object")
    try:
        require_plain(schema)
    except AnswerRefused as error:
        raise UsageError(f"the schema cannot be used: {error}") from error
    text = json.dumps(schema)
    if len(text) > MAX_SCHEMA_BYTES:
        raise UsageError(f"the schema is larger than {MAX_SCHEMA_BYTES >> 10} KiB")
    return _kind_of(text)


@lru_cache(maxsize=64)
def _kind_of(text: str) -> Any:
    """Many agents have the same schema: it is checked once."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry

    schema = json.loads(text)
    kind: Any = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        place, message = _path(error.absolute_path), shorten(error.message, 300)
        raise UsageError(f"not a valid JSON Schema: {place}: {message}") from error
    except RecursionError as error:
        raise UsageError("not a valid JSON Schema: it is nested too deeply") from error
    _require_local(schema, kind(schema, registry=Registry())._resolver)
    return kind


def _require_local(schema: JsonObject, resolver: Any) -> None:
    """Raises `UsageError` for a reference that leads out of the schema, or nowhere."""
    refs: list[str] = []
    has_bases = False
    work: list[Any] = [schema]
    while work:
        node = work.pop()
        if isinstance(node, dict):
            has_bases = has_bases or (node is not schema and "$id" in node)
            refs += [node[name] for name in _REFS if isinstance(node.get(name), str)]
            work += [each for name, each in node.items() if name not in _DATA]
        elif isinstance(node, list):
            work += node
    for ref in refs:
        if not ref.startswith("#"):
            raise UsageError(
                f"the schema refers to {shorten(ref, 200)!r}, which is not in it",
                hint='nothing is fetched: put it under "$defs" and refer to it as "#/$defs/NAME"',
            )
        if not has_bases:
            _require_target(resolver, ref)


def _require_target(resolver: Any, ref: str) -> None:
    from referencing.exceptions import Unresolvable

    try:
        resolver.lookup(ref)
    except Unresolvable as error:
        raise UsageError(f"the schema refers to {shorten(ref, 200)!r}, which it does not have") from error


# --- bounded keywords -------------------------------------------------------------------------

Keyword = Callable[[Any, Any, Any, Any], Any]


@lru_cache(maxsize=16)
def _bounded(kind: Any) -> Any:
    """The validator class ``kind`` with keywords that look at the clock."""
    from jsonschema.validators import extend

    changed: dict[str, Keyword] = {"pattern": _pattern, "uniqueItems": _unique}
    keywords = {
        name: _timed(changed.get(name) or keyword) for name, keyword in dict(kind.VALIDATORS).items()
    }
    if "patternProperties" in keywords:
        keywords["patternProperties"] = _timed(_pattern_properties)
        # They look at the patterns of their neighbour too.
        for name in ("additionalProperties", "unevaluatedProperties"):
            if name in keywords:
                keywords[name] = _after_patterns(keywords[name])
    return extend(kind, keywords)


def _timed(keyword: Keyword) -> Keyword:
    def timed(validator: Any, argument: Any, instance: Any, schema: Any) -> Iterator[Any]:
        validator.format_checker.spend()
        yield from keyword(validator, argument, instance, schema) or ()

    return timed


def _search(budget: _Budget, pattern: str, text: str) -> bool:
    """Whether a regular expression is found; only where it surely ends soon, or nobody waits for others."""
    if not budget.is_killable and not _is_quick(pattern, len(text)):
        raise _NeedsProcess
    import re

    return re.search(pattern, text) is not None


@lru_cache(maxsize=256)
def _most_chars(pattern: str) -> int:
    try:
        return compile_safely(pattern, ignore_case=False).max_chars if pattern else 1 << 40
    except ToolError:
        return 0


def _is_quick(pattern: str, length: int) -> bool:
    return length <= _most_chars(pattern)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[Any]:
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not _search(validator.format_checker, pattern, instance):
        yield ValidationError(f"{shorten(instance, 80)!r} does not match {shorten(pattern, 120)!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[Any]:
    if not isinstance(instance, dict):
        return
    for pattern, subschema in patterns.items():
        for name, member in instance.items():
            if _search(validator.format_checker, pattern, name):
                yield from validator.descend(member, subschema, path=name, schema_path=pattern)


def _after_patterns(keyword: Keyword) -> Keyword:
    def guarded(validator: Any, argument: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if isinstance(instance, dict) and not validator.format_checker.is_killable:
            longest = max(map(len, instance), default=0)
            if any(not _is_quick(each, longest) for each in schema.get("patternProperties", ())):
                raise _NeedsProcess
        yield from keyword(validator, argument, instance, schema)

    return guarded


def _unique(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
    """In one walk; comparing each with each takes too long for a list of thousands."""
    from jsonschema.exceptions import ValidationError

    if wanted and isinstance(instance, list):
        seen: set[Any] = set()
        for item in instance:
            key = _key(item)
            if key in seen:
                yield ValidationError(f"the item {shorten(json.dumps(item), 80)} stands there twice")
                return
            seen.add(key)


def _key(value: JsonValue) -> Any:
    """Equal for equal values of JSON: 1 is 1.0, and true is not 1."""
    if isinstance(value, dict):
        return "object", frozenset((name, _key(each)) for name, each in value.items())
    if isinstance(value, list):
        return "array", tuple(_key(each) for each in value)
    return ("boolean", value) if isinstance(value, bool) else value


# --- what is said -----------------------------------------------------------------------------


def _line(error: Any) -> str:
    """One error with its place; of alternatives, with what is wrong in the one that fits best."""
    text = f"{_path(error.absolute_path)}: {shorten(error.message, 200)}"
    if error.context:
        # What went wrong far inside an alternative belongs to the one that was meant.
        nearest = max(error.context, key=lambda each: (len(each.absolute_path), each.validator != "type"))
        text += f"; nearest: {_path(nearest.absolute_path)}: {shorten(nearest.message, 120)}"
    return text


def _path(parts: Any) -> str:
    """``$.name[0]``, for people and models."""
    text = "$"
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if part.isidentifier() else f"[{json.dumps(part, ensure_ascii=False)}]"
    return shorten(text, 200)


# --- another process --------------------------------------------------------------------------


def _errors_elsewhere(schema: JsonObject, value: JsonValue) -> list[str]:
    """The errors, found by a process that is ended when it takes too long. Only the caller waits."""
    code = "import sys, json; sys.path[:0] = json.loads(sys.argv[1]); "
    code += "from dsh_actors.adapters.json_schema import main; main()"
    argv = [sys.executable, "-I", "-c", code, json.dumps([path for path in sys.path if path])]
    try:
        done = subprocess.run(
            argv,
            input=json.dumps([APART_S, schema, value]).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=APART_S * _PATIENCE,
            env={"PATH": os.environ.get("PATH", "")},
            start_new_session=True,
            check=True,
        )
        found = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return [_too_long(APART_S)]
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        if getattr(error, "returncode", None) in (-signal.SIGXCPU, -signal.SIGKILL):
            return [_too_long(APART_S)]
        return [f"$: it cannot be checked: {shorten(str(error), 200)}"]
    return [str(each) for each in found]


def main() -> None:
    """The other process: a schema and a value on standard input, the errors on standard output."""
    seconds, schema, value = json.load(sys.stdin)
    # Whatever becomes of the harness, it does not run on.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    from jsonschema.validators import Draft202012Validator, validator_for

    checked = AnswerSchema(schema, validator_for(schema, default=Draft202012Validator))
    json.dump(checked.errors_here(value, is_killable=True), sys.stdout)
