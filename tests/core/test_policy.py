"""Approval policies: who may do what, and which tricks do not get around a rule."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.globs import path_glob, text_glob
from dsh_actors.core.options import AgentOptions
from dsh_actors.core.policy import ApprovalPolicy, Decision, decide
from dsh_actors.core.shell_words import command_parts
from dsh_actors.errors import ConfigError


def rules(*tables: dict[str, Any], default: str = "ask") -> ApprovalPolicy:
    return ApprovalPolicy.from_toml({"default": default, "rule": list(tables)}, "rules.toml")


def bash(policy: ApprovalPolicy, command: str) -> Decision:
    return decide(policy, "bash", True, {"command": command}, None, "/w")


def file(policy: ApprovalPolicy, path: str, tool: str = "read", real_path: str | None = None) -> Decision:
    return decide(policy, tool, tool != "read", {"path": path}, path, "/w", real_path)


NO_PUSH = rules({"tool": "bash", "command": "git push*", "decision": "deny"}, default="allow")
ONLY_GIT = rules({"tool": "bash", "command": "git status*", "decision": "allow"}, default="deny")


def test_the_default_policy_of_an_agent_allows_work_in_the_workspace() -> None:
    policy = AgentOptions("m", "/w").policy
    assert bash(policy, "make").kind == "allow"
    assert decide(policy, "write", True, {"path": "x"}, "x", "/w") == Decision("allow", "workspace")


def test_read_only_refuses_every_tool_that_changes_and_says_what_would_allow_it() -> None:
    policy = ApprovalPolicy("read-only")
    refused = bash(policy, "ls")
    assert (refused.kind, refused.rule, refused.hint) == ("deny", "read-only", "--approve workspace")
    assert "bash" in refused.reason
    assert decide(policy, "todo_write", False, {}, None, "/w").kind == "allow"


def test_all_allows_everything() -> None:
    assert bash(ApprovalPolicy("all"), "rm -rf /").kind == "allow"


def test_the_first_rule_that_matches_decides() -> None:
    policy = rules(
        {"tool": "write", "path": "src/gen/**", "decision": "deny", "reason": "generated"},
        {"tool": "write", "path": "src/**", "decision": "allow"},
        {"tool": "wri*", "decision": "deny"},
    )
    assert file(policy, "src/gen/a.c", "write") == Decision(
        "deny", "rules.toml: rule 1", "generated", "an allow rule before it in rules.toml"
    )
    assert file(policy, "src/a.c", "write").kind == "allow"
    assert file(policy, "other", "write").rule == "rules.toml: rule 3"
    assert file(policy, "other", "edit") == Decision(
        "ask",
        "rules.toml: default",
        "edit needs approval by rules.toml: default",
        "an allow rule before it in rules.toml",
    )


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "  git push origin\n",
        "git  push",
        "A=1 B='x y' git push",
        "cd x; git push",
        "cd x&&git push",
        "true || git push",
        "ls\ngit push",
        "ls & git push",
        "ls | git push",
        "(git push)",
        'echo "$(git push)"',
        "echo `git push`",
        "if true; then git push; fi",
        "{ git push; }",
        "/usr/bin/git push",
        "g\\it push",
        "'git' \"push\"",
        "git \\\npush",
        "sudo -u me env -i X=1 git push",
        "exec git push",
        ">log git push",
        "echo a # don't\ngit push",
        "cat <<EOF\ndon't\nEOF\ngit push",
        "cat <<EOF\ndon't\nEOF\ntrue; git push",
        "echo \\$'\\'; git push",
        "! git push",
    ],
)
def test_a_denied_command_is_found_in_its_disguises(command: str) -> None:
    assert bash(NO_PUSH, command).kind == "deny"


@pytest.mark.parametrize(
    "command", ["git pull", "git commit -m 'fix; git push'", "echo git push", "# git push"]
)
def test_a_command_that_only_mentions_a_denied_one_is_left_alone(command: str) -> None:
    assert bash(NO_PUSH, command).kind == "allow"


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf /",
        "git status && rm x",
        "git status\nrm x",
        "git status $(rm x)",
        "git status > ~/.bashrc",
        "GIT_DIR=/evil git status",
        "git status # '\nrm x",
    ],
)
def test_an_allow_rule_lets_nothing_else_through(command: str) -> None:
    assert bash(ONLY_GIT, command).kind == "deny"


@pytest.mark.parametrize("command", ["git status", "git status -s 2>&1", "git status >/dev/null; git status"])
def test_an_allow_rule_covers_each_command_of_its_kind(command: str) -> None:
    assert bash(ONLY_GIT, command).kind == "allow"


def test_an_allow_pattern_with_several_commands_takes_as_many_and_no_more() -> None:
    policy = rules({"tool": "bash", "command": "cd * && make*", "decision": "allow"}, default="deny")
    assert bash(policy, "cd src && make all").kind == "allow"
    assert bash(policy, "cd src && rm x && make all").kind == "deny"


def test_the_strictest_answer_of_several_commands_counts() -> None:
    policy = rules(
        {"command": "ls*", "decision": "allow"},
        {"command": "rm*", "decision": "deny"},
        default="ask",
    )
    assert bash(policy, "ls; make").kind == "ask"
    assert bash(policy, "make; rm x; ls").kind == "deny"


@pytest.mark.parametrize(
    "path",
    ["secrets/key", "./secrets/a/b", "x/../secrets/key", "/w/secrets/key", "secrets", "secrets/key#byte=9"],
)
def test_a_denied_path_is_found_under_its_other_names(path: str) -> None:
    policy = rules({"path": "secrets/**", "decision": "deny"}, default="allow")
    assert file(policy, path).kind == "deny"


def test_a_denied_place_is_found_behind_a_link_and_a_home_directory() -> None:
    policy = rules({"path": "/home/me/.ssh/**", "decision": "deny"}, default="allow")
    assert file(policy, "link/key", real_path="/home/me/.ssh/key").kind == "deny"
    assert file(policy, "~/.ssh/key", real_path="/home/me/.ssh/key").kind == "deny"


def test_an_allowed_name_that_leads_elsewhere_is_not_allowed() -> None:
    policy = rules({"path": "src/**", "decision": "allow"}, default="deny")
    assert file(policy, "src/a", real_path="/w/src/a").kind == "allow"
    assert file(policy, "src/link", real_path="/etc/passwd").kind == "deny"
    assert file(policy, "src/../x").kind == "deny"


def test_a_path_rule_says_nothing_about_a_call_without_a_path() -> None:
    policy = rules({"path": "**", "decision": "deny"}, default="allow")
    assert bash(policy, "ls").kind == "allow"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"defualt": "ask"}, "r.toml: unknown key 'defualt'; did you mean 'default'?"),
        ({"zzz": 1}, "r.toml: unknown key 'zzz'; known are default, rule"),
        ({"default": "maybe"}, "r.toml: default must be allow, deny or ask, not 'maybe'"),
        ({"default": ["ask"]}, "r.toml: default must be allow, deny or ask, not ['ask']"),
        ({"rule": {"tool": "bash"}}, "r.toml: rules are written as [[rule]] tables"),
        (
            {"rule": [{"tool": "bash", "decision": "deny"}, {"comand": "x", "decision": "deny"}]},
            "r.toml: rule 2: unknown key 'comand'; did you mean 'command'?",
        ),
        (
            {"rule": [{"tool": "bash"}]},
            'r.toml: rule 1: decision is missing (decision = "allow", "deny" or "ask")',
        ),
        ({"rule": [{"tool": 3, "decision": "ask"}]}, "r.toml: rule 1: tool must be a text that is not blank"),
        (
            {"rule": [{"path": " ", "decision": "ask"}]},
            "r.toml: rule 1: path must be a text that is not blank",
        ),
        (
            {"rule": [{"decision": "ask"}]},
            "r.toml: rule 1: needs one of tool, command, path; what matches all goes into default",
        ),
    ],
)
def test_a_wrong_rule_file_is_refused_with_the_place(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ApprovalPolicy.from_toml(data, "r.toml")
    assert caught.value.message == message


@given(st.text(alphabet="ab ;&|()$'\"`\\\n#><={}", max_size=30))
def test_any_text_splits_and_is_decided(command: str) -> None:
    assert command_parts(command)
    assert bash(NO_PUSH, command).kind in ("allow", "deny")


@given(st.text(alphabet="ab/*?[]{},!-\\", max_size=20), st.text(alphabet="ab/", max_size=10))
def test_any_text_is_a_glob(pattern: str, path: str) -> None:
    path_glob(pattern).match(path)
    path_glob(pattern, subtree=True).match(path)
    text_glob(pattern).match(path)


@pytest.mark.parametrize(
    ("pattern", "hits", "misses"),
    [
        ("*.py", ["a.py", ".py"], ["d/a.py", "a.pyc"]),
        ("**/*.py", ["a.py", "d/e/a.py"], ["a.c"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "ab"]),
        ("{a,b/*}.c", ["a.c", "b/x.c"], ["b.c", "x.c"]),
        ("{a,{b,c}}", ["a", "b", "c"], ["{a,b}"]),
        ("a{b", ["a{b"], ["ab"]),
        ("[!a-c]?", ["xa", "d1"], ["ax", "x/"]),
        ("x[/]y", [], ["x/y"]),
        ("a\\*b", ["a*b"], ["axb"]),
        ("[z-a]", [], ["z", "a"]),
    ],
)
def test_path_globs_match_as_documented(pattern: str, hits: list[str], misses: list[str]) -> None:
    glob = path_glob(pattern)
    assert [path for path in hits + misses if glob.match(path)] == hits
