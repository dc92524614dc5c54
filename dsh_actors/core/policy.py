"""Approval policies: may this tool call run, must somebody be asked, or is it refused.

Pure: a decision depends on the arguments only. Whether a tool exists at all, and whether a file
lies inside the workspace, is decided elsewhere.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dsh_actors.core.globs import has_magic, nearest, path_glob, text_glob
from dsh_actors.core.shell_words import CommandPart, command_parts
from dsh_actors.errors import ConfigError

__all__ = [
    "POLICY_MODES",
    "POLICY_NAMES",
    "ApprovalPolicy",
    "Decision",
    "PolicyMode",
    "Rule",
    "Verdict",
    "decide",
    "require_known",
]

PolicyMode = Literal["workspace", "read-only", "all", "rules"]
POLICY_MODES: tuple[PolicyMode, ...] = get_args(PolicyMode)
Verdict = Literal["allow", "deny", "ask"]

POLICY_NAMES = ("workspace", "read-only", "all")
"""The policies that are chosen by name; every other word is a rule file."""

_VERDICTS = ("allow", "deny", "ask")
_FILE_KEYS = ["default", "rule"]
_RULE_KEYS = ["tool", "command", "path", "decision", "reason"]
_JOINED = re.compile(r"[;&|\n]")
_BYTE_SUFFIX = re.compile(r"#byte=\d+\Z")


@dataclass(frozen=True, slots=True)
class Rule:
    """One ``[[rule]]``. It matches when all its patterns do; ``None`` is no condition.

    ``tool`` is a glob on the name. ``command`` is a glob on the ``command`` argument (see `decide`).
    ``path`` is a glob on the path argument, relative to the working directory or absolute, in which
    ``**`` spans names and ``x/**`` includes ``x``. A rule with ``path`` looks at that argument only: a
    command, or a search that starts above the path, is not stopped by it.
    """

    decision: Verdict
    tool: str = "*"
    command: str | None = None
    path: str | None = None
    reason: str | None = None
    name: str = "rule"


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """``mode`` is one of `POLICY_MODES`; ``rules`` and ``default`` count in mode ``rules`` only.

    ``name`` is the rule file's, for messages.
    """

    mode: PolicyMode = "workspace"
    rules: tuple[Rule, ...] = ()
    default: Verdict = "ask"
    name: str = ""

    @staticmethod
    def from_toml(data: Mapping[str, Any], name: str) -> ApprovalPolicy:
        """A rule file's content as a policy. Raises `ConfigError` that says what is wrong where."""
        _refuse_unknown(data, _FILE_KEYS, name)
        default = _verdict(data.get("default", "ask"), f"{name}: default")
        tables = data.get("rule", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            raise ConfigError(f"{name}: rules are written as [[rule]] tables")
        rules = tuple(_rule(table, f"{name}: rule {number}") for number, table in enumerate(tables, 1))
        return ApprovalPolicy("rules", rules, default, name)


@dataclass(frozen=True, slots=True)
class Decision:
    """``rule`` names what decided, ``reason`` is for the model, ``hint`` says what would allow the call."""

    kind: Verdict
    rule: str
    reason: str = ""
    hint: str | None = None


def decide(
    policy: ApprovalPolicy,
    tool_name: str,
    changes: bool,
    arguments: Mapping[str, Any],
    path: str | None,
    cwd: str,
    real_path: str | None = None,
) -> Decision:
    """What ``policy`` says about one call. ``changes``: the tool may change something.

    ``path`` is the call's path argument as the model wrote it; ``real_path``, where known, is where
    it leads (``~`` and symbolic links resolved), so that no other name gets around a rule.

    In mode ``rules`` the first rule that matches decides. A shell command is split into its simple
    commands, each is decided on its own, and the strictest answer counts (deny, ask, allow):

    * a deny or ask rule also sees a command without its leading assignments, wrappers (``env``,
      ``sudo``, ``exec`` …), quotes, extra blanks and the directory of the program;
    * an allow rule sees the command as it is written, and lets it write to a file (``> x``) only
      where the pattern has a ``>`` or is ``*``;
    * an allow pattern that itself joins commands (``;``, ``&``, ``|``, newline) is matched against the
      whole, if that has as many commands as the pattern.

    Limits: what a program starts (``sh -c``, ``xargs``, scripts), variables and aliases are not looked
    into, and the lines of a here-document count as commands. Rules guard against accidents; the sandbox
    is what holds against intent.
    """
    match policy.mode:
        case "rules":
            return _decide_by_rules(policy, tool_name, arguments, path, cwd, real_path)
        case "read-only" if changes:
            reason = f"{tool_name} may change something, and the approval policy is read-only"
            return Decision("deny", "read-only", reason, "--approve workspace")
        case mode:
            return Decision("allow", mode)


def _decide_by_rules(
    policy: ApprovalPolicy,
    tool: str,
    arguments: Mapping[str, Any],
    path: str | None,
    cwd: str,
    real_path: str | None,
) -> Decision:
    rules = [rule for rule in policy.rules if text_glob(rule.tool).match(tool)]
    names = _path_names(path, cwd, real_path)
    rules = [rule for rule in rules if rule.path is None or _path_matches(rule, names)]
    command = arguments.get("command")
    if not isinstance(command, str):
        return _verdict_of(next((rule for rule in rules if rule.command is None), None), policy, tool)
    whole = command.strip()
    parts = command_parts(whole)
    verdicts = [
        _verdict_of(
            next((rule for rule in rules if _command_matches(rule, part, whole, parts)), None),
            policy,
            tool,
        )
        for part in parts
    ]
    return max(verdicts, key=lambda decision: ("allow", "ask", "deny").index(decision.kind))


def _command_matches(rule: Rule, part: CommandPart, whole: str, parts: list[CommandPart]) -> bool:
    if rule.command is None or not rule.command.strip("* \t"):
        return True
    text = rule.command.strip()
    pattern = text_glob(text)
    if rule.decision != "allow":
        return any(pattern.match(form) for form in (whole, *part.forms))
    if _JOINED.search(text):
        # As many commands as the pattern has: its stars must not let further ones in.
        fits = len(command_parts(text)) == len(parts) and pattern.match(whole) is not None
        return fits and (">" in text or not any(each.writes for each in parts))
    return pattern.match(part.text) is not None and (">" in text or not part.writes)


def _path_names(path: str | None, cwd: str, real_path: str | None) -> list[tuple[str, ...]]:
    """For each location the path may mean, the names by which a pattern may match it."""
    if path is None:
        return []
    locations: list[str] = []
    if not (path.startswith("~") and real_path is not None):
        locations.append(posixpath.normpath(posixpath.join(cwd, path)))
        if _BYTE_SUFFIX.search(path):
            locations.append(posixpath.normpath(posixpath.join(cwd, _BYTE_SUFFIX.sub("", path))))
    if real_path is not None:
        locations.append(real_path)
    base = cwd.rstrip("/") + "/"
    return [
        (place, place[len(base) :]) if place.startswith(base) else (place, ".") if place == cwd else (place,)
        for place in dict.fromkeys(locations)
    ]


def _path_matches(rule: Rule, names: list[tuple[str, ...]]) -> bool:
    assert rule.path is not None
    pattern = path_glob(rule.path.removeprefix("./"), subtree=True)
    hits: Iterable[bool] = (any(pattern.match(form) for form in forms) for forms in names)
    # Permission needs every name of the place to be permitted; a refusal needs one.
    return bool(names) and (all(hits) if rule.decision == "allow" else any(hits))


def _verdict_of(rule: Rule | None, policy: ApprovalPolicy, tool: str) -> Decision:
    if rule is None:
        kind, name, reason = policy.default, f"{policy.name}: default", None
    else:
        kind, name, reason = rule.decision, rule.name, rule.reason
    if kind == "allow":
        return Decision("allow", name)
    text = reason or f"{tool} {'is refused' if kind == 'deny' else 'needs approval'} by {name}"
    return Decision(kind, name, text, f"an allow rule before it in {policy.name}")


def _rule(table: dict[str, Any], where: str) -> Rule:
    _refuse_unknown(table, _RULE_KEYS, where)
    for key in ("tool", "command", "path", "reason"):
        value = table.get(key)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise ConfigError(f"{where}: {key} must be a text that is not blank")
        if value is not None and key != "reason" and _has_open_bracket(value, escapes=key == "path"):
            raise ConfigError(f"{where}: the [ in {key} is never closed; write [[] for the character itself")
    if "decision" not in table:
        raise ConfigError(f'{where}: decision is missing (decision = "allow", "deny" or "ask")')
    decision = _verdict(table["decision"], f"{where}: decision")
    if not any(key in table for key in ("tool", "command", "path")):
        raise ConfigError(f"{where}: needs one of tool, command, path; what matches all goes into default")
    return Rule(
        decision, table.get("tool", "*"), table.get("command"), table.get("path"), table.get("reason"), where
    )


def _has_open_bracket(pattern: str, *, escapes: bool) -> bool:
    """Whether a ``[`` begins no class. With ``escapes`` a backslash hides what follows it."""
    position = 0
    while position < len(pattern):
        if escapes and pattern[position] == "\\":
            position += 1
        elif pattern[position] == "[":
            # The first character belongs to the class, also where it is a bracket.
            first = position + 2 if pattern[position + 1 : position + 2] in ("!", "^") else position + 1
            position = pattern.find("]", first + 1)
            if position < 0:
                return True
        position += 1
    return False


def require_known(policy: ApprovalPolicy, arguments: Mapping[str, Collection[str]]) -> None:
    """Refuse rules that can match no call. ``arguments`` names the arguments of each tool there is.

    A glob may match no tool yet. Raises `ConfigError` naming the rule.
    """
    for rule in policy.rules:
        matched = [name for name in arguments if text_glob(rule.tool).match(name)]
        if not matched and not has_magic(rule.tool):
            close = nearest(rule.tool, list(arguments))
            advice = f"did you mean {close!r}?" if close else f"known are {', '.join(sorted(arguments))}"
            raise ConfigError(f"{rule.name}: there is no tool {rule.tool!r}; {advice}")
        for key, pattern in (("command", rule.command), ("path", rule.path)):
            if matched and pattern is not None and not any(key in arguments[name] for name in matched):
                others = sorted(name for name, keys in arguments.items() if key in keys)
                advice = f"tools that have one: {', '.join(others)}" if others else "no tool has one"
                raise ConfigError(f"{rule.name}: {rule.tool} has no {key}, so it never matches; {advice}")


def _verdict(value: Any, where: str) -> Verdict:
    if value not in _VERDICTS:
        raise ConfigError(f"{where} must be allow, deny or ask, not {value!r}")
    verdict: Verdict = value
    return verdict


def _refuse_unknown(table: Mapping[str, Any], known: list[str], where: str) -> None:
    for key in table:
        if key not in known:
            close = nearest(key, known)
            advice = f"did you mean {close!r}?" if close else f"known are {', '.join(known)}"
            raise ConfigError(f"{where}: unknown key {key!r}; {advice}")
