"""The configuration: layers, origins, refusals with a place, and secrets that stay out of sight."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.config import KEYS, Config, find_home, load_config, parse_duration, prepare_home
from dsh_actors.config.wire import profile_in_force
from dsh_actors.core.outcome import Price
from dsh_actors.core.retry import RetryPolicy
from dsh_actors.errors import ConfigError


class World:
    """A home, a project and an environment of a test's own."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.project = root / "project"
        self.home.mkdir()
        (self.project / ".dsh").mkdir(parents=True)
        self.env = {"DSH_HOME": str(self.home)}

    def user(self, text: str) -> World:
        (self.home / "config.toml").write_text(text, "utf-8")
        return self

    def local(self, text: str) -> World:
        (self.project / ".dsh" / "config.toml").write_text(text, "utf-8")
        return self

    def load(self, cwd: Path | None = None, **options: object) -> Config:
        named = {name.replace("__", "."): value for name, value in options.items()}
        return load_config(env=self.env, cwd=str(cwd or self.project), options=named)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_without_files_the_defaults_are_in_force(world: World) -> None:
    config = world.load()
    assert (config.agent.model, config.model.max_retries, config.limits.tool_timeout_s) == (
        "deepseek/deepseek-flash",
        5,
        120.0,
    )
    assert {config.origins[key.name] for key in KEYS} == {"default"}


def test_each_layer_overrides_the_one_below_and_is_named(world: World) -> None:
    world.user('[limits]\nmax_steps = 1\nmax_tokens = 1\ntimeout = "5m"\n[agent]\nmodel = "a/b"\n')
    world.local("[limits]\nmax_steps = 2\nmax_tokens = 2\n")
    world.env["DSH_LIMITS_MAX_STEPS"] = "3"
    config = world.load(agent__model="c/d")
    assert (config.limits.max_steps, config.limits.max_tokens, config.limits.timeout_s) == (3, 2, 300.0)
    assert config.agent.model == "c/d"
    assert config.origins["limits.max_steps"] == "DSH_LIMITS_MAX_STEPS"
    assert config.origins["limits.max_tokens"] == str(world.project / ".dsh" / "config.toml")
    assert config.origins["limits.timeout"] == str(world.home / "config.toml")
    assert config.origins["agent.model"] == "option"


def test_the_nearest_project_file_counts_up_to_the_root_of_the_repository(world: World) -> None:
    world.local("[limits]\nmax_steps = 2\n")
    below = world.project / "a" / "b"
    below.mkdir(parents=True)
    assert world.load(below).limits.max_steps == 2
    (world.project / "a" / ".git").mkdir()
    assert world.load(below).limits.max_steps is None


def test_the_home_is_no_project(tmp_path: Path) -> None:
    home = tmp_path / ".dsh"
    home.mkdir()
    (home / "config.toml").write_text('[approval]\npolicy = "all"\n', "utf-8")
    config = load_config(env={"HOME": str(tmp_path)}, cwd=str(tmp_path))
    assert (config.approval.policy, config.files) == ("all", (str(home / "config.toml"),))


@pytest.mark.parametrize(
    "text",
    [
        '[providers.deepseek]\nbase_url = "https://elsewhere.test"\n',
        '[approval]\npolicy = "all"\n',
        '[approval]\nsandbox = "off"\n',
        "[approval]\nfail_on_denied = false\n",
    ],
)
def test_a_project_cannot_reach_for_credentials_endpoints_or_approval(world: World, text: str) -> None:
    with pytest.raises(ConfigError, match="project cannot set"):
        world.local(text).load()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[limits]\nmax_stpes = 3\n", ["limits.max_stpes", "limits.max_steps"]),
        ("[limit]\nmax_steps = 3\n", ["[limit]", "limits"]),
        ('[limits]\nmax_steps = "many"\n', ["limits.max_steps", "whole number", "'many'"]),
        ("[limits]\nmax_steps = 0\n", ["limits.max_steps", "at least 1"]),
        ("[limits]\nmax_steps = true\n", ["limits.max_steps", "whole number"]),
        ('[limits]\ntimeout = "5 days"\n', ["limits.timeout", "duration"]),
        ('[approval]\nsandbox = "maybe"\n', ["approval.sandbox", "auto, require, off"]),
        ("limits = 3\n", ["limits", "[limits]"]),
        ("[limits\n", ["line 1"]),
        ('[providers.x]\nbase_ulr = "https://h"\n', ["providers.x", "base_ulr", "base_url"]),
        ("[providers.x]\n", ["providers.x", "base_url is missing"]),
        ('[providers.x]\nbase_url = "ftp://h"\n', ["providers.x", "https://host/v1"]),
        ('[providers.x]\nbase_url = "https://h:port"\n', ["providers.x", "https://host/v1"]),
        ('[providers.x]\nbase_url = "https://h"\n[[providers.x.models]]\n', ["models[0]", "id is missing"]),
        ('[providers.openai]\nmax_concurrency = 0\n', ["providers.openai", "max_concurrency", "not 0"]),
        ('[providers.openai]\nmax_concurrency = "4"\n', ["max_concurrency", "whole number"]),
        ('[providers.openai]\nca_file = "ca.pem"\n', ["ca_file", "absolute path", "'ca.pem'"]),
        ('[providers.openai]\nmax_concurrency = 65536\n', ["max_concurrency", "up to 65535"]),
        ('[providers.openai]\nca_file = "/a\\u0000b"\n', ["ca_file", "absolute path"]),
        ('[providers."a b"]\nbase_url = "https://h"\n', ["a provider's name", "a blank"]),
        ('[providers."a\\nb"]\nbase_url = "https://h"\n', ["a provider's name"]),
        (
            '[providers.x]\nbase_url = "https://h/v1/chat/completions"\n',
            ["must end before /chat/completions"],
        ),
        ('[providers.anthropic]\nbase_url = "https://h/v1/messages/"\n', ["must end before /messages"]),
        (
            '[providers.x]\nbase_url = "https://h"\nmodels = [{ id = "a" }, { id = "b" }, { id = "a" }]\n',
            ["models[2]", "'a' has a table already"],
        ),
        ("[model]\ntotal_timeout_s = 0\n", ["model.total_timeout_s", "duration"]),
        ("[model]\nqueue_timout_s = 5\n", ["model.queue_timeout_s"]),
    ],
)
def test_a_mistake_is_refused_with_its_file_and_the_nearest_right_word(
    world: World, text: str, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        world.user(text).load()
    assert str(world.home / "config.toml") in caught.value.message
    for word in words:
        assert word in caught.value.message


def test_a_wrong_variable_is_refused_by_its_name(world: World) -> None:
    world.env["DSH_LIMITS_MAX_STEPS"] = "x"
    with pytest.raises(ConfigError, match="DSH_LIMITS_MAX_STEPS"):
        world.load()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("1.5h", 5400), (0.5, 0.5), (7, 7)],
)
def test_durations_carry_units(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1", "5d", "m", "1e3", "nan", "inf", -3, True, None, "9" * 40])
def test_what_is_no_duration_is_refused(text: object) -> None:
    with pytest.raises(ValueError):
        parse_duration(text)


@given(st.text(max_size=8))
def test_a_duration_is_a_positive_number_or_an_error(text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert 0 < seconds <= 25 * 24 * 3600


# --- the home -----------------------------------------------------------------------------------


def test_dsh_home_wins_over_everything(tmp_path: Path) -> None:
    home = find_home({"DSH_HOME": str(tmp_path / "x"), "HOME": str(tmp_path)})
    assert (home.path, home.origin) == (str(tmp_path / "x"), "DSH_HOME")


def test_the_home_is_a_folder_of_the_user_and_else_of_xdg(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    assert find_home(env).path == str(tmp_path / ".dsh")
    assert find_home({**env, "HOME": "/proc/nowhere"}).path == str(tmp_path / "data" / "dsh")


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "/proc/nowhere"}, {"DSH_HOME": "relative"}])
def test_without_a_home_the_error_says_what_to_do(env: dict[str, str], tmp_path: Path) -> None:
    config = load_config(env=env, cwd=str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        config.require_home()
    assert caught.value.hint == "set DSH_HOME to a writable directory"
    with pytest.raises(ConfigError, match="no place for sessions") as caught:
        config.require_home(or_ephemeral=True)
    assert "--ephemeral" in (caught.value.hint or "")


def test_a_file_in_the_place_of_the_home_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / ".dsh").write_text("", "utf-8")
    assert "not a directory" in (find_home({"HOME": str(tmp_path)}).problem or "")


def test_looking_creates_nothing_and_preparing_creates_a_private_folder(tmp_path: Path) -> None:
    config = load_config(env={"HOME": str(tmp_path)}, cwd=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    prepare_home(config.require_home())
    assert os.stat(tmp_path / ".dsh").st_mode & 0o777 == 0o700


# --- providers and secrets ----------------------------------------------------------------------


def test_a_provider_of_the_users_own(world: World) -> None:
    world.user(
        '[providers.lab]\nbase_url = "http://127.0.0.1:1/v1/"\napi_key_env = "LAB_KEY"\n'
        'max_concurrency = 3\nca_file = "/etc/lab.pem"\n'
        '[[providers.lab.models]]\nid = "m"\ncontext_window = 1000\nprice = { input = 1, output = 2.5 }\n'
    )
    config = world.load()
    lab = config.providers["lab"]
    assert (lab.type, lab.base_url, lab.builtin_url) == ("openai_compatible", "http://127.0.0.1:1/v1", False)
    assert (lab.max_concurrency, lab.ca_file) == (3, "/etc/lab.pem")
    shown = {name: value for name, value, _ in config.rows()}
    assert shown["providers.lab.max_concurrency"] == 3
    assert shown["providers.lab.ca_file"] == "/etc/lab.pem"
    assert config.price("lab/m") == Price(1.0, 2.5)
    assert config.price("lab/other") is None and config.price("nowhere/m") is None


def test_a_provider_of_a_vendors_type_has_the_vendors_address_unless_it_says_otherwise(world: World) -> None:
    world.user(
        '[providers.a]\ntype = "anthropic"\napi_key_env = "MINE"\n'
        '[providers.b]\ntype = "anthropic"\nbase_url = "http://127.0.0.1:1"\n'
    )
    providers = world.load().providers
    assert (providers["a"].base_url, providers["a"].api_key_env) == ("https://api.anthropic.com", "MINE")
    assert (providers["b"].base_url, providers["b"].api_key_env) == ("http://127.0.0.1:1", None)
    assert providers["anthropic"].builtin_url and not providers["a"].builtin_url
    assert "ANTHROPIC_API_KEY" in world.load().secret_variables()


def test_the_environment_moves_a_built_in_provider(world: World) -> None:
    assert world.load().providers["deepseek"].builtin_url
    world.env["DEEPSEEK_BASE_URL"] = "http://127.0.0.1:9/x"
    deepseek = world.load().providers["deepseek"]
    assert (deepseek.base_url, deepseek.builtin_url) == ("http://127.0.0.1:9/x", False)
    world.env["DEEPSEEK_BASE_URL"] = "nonsense"
    with pytest.raises(ConfigError, match="DEEPSEEK_BASE_URL"):
        world.load()


def store_key(world: World, mode: int = 0o600) -> Path:
    path = world.home / "credentials.toml"
    path.write_text('[openai]\napi_key = "sk-stored-canary"\n', "utf-8")
    path.chmod(mode)
    return path


def test_a_key_comes_from_the_environment_or_the_private_file(world: World) -> None:
    store_key(world)
    assert world.load().api_key("openai") == "sk-stored-canary"
    world.env["OPENAI_API_KEY"] = " sk-env-canary "
    config = world.load()
    assert config.api_key("openai") == "sk-env-canary"
    assert set(config.secrets().values()) == {"sk-env-canary", "sk-stored-canary"}
    assert "OPENAI_API_KEY" in config.secret_variables()
    assert config.api_key("deepseek") is None


def test_no_representation_of_the_configuration_shows_a_key(world: World) -> None:
    store_key(world)
    world.env["DEEPSEEK_API_KEY"] = "sk-env-canary"
    world.env["OPENAI_BASE_URL"] = "https://me:sk-url-canary@host/v1"
    config = world.load()
    assert "canary" not in repr(config) + str(list(config.rows()))
    assert "sk-url-canary" in config.secrets().values()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_key_file_that_others_can_read_is_refused(world: World, mode: int) -> None:
    store_key(world, mode)
    with pytest.raises(ConfigError) as caught:
        world.load()
    assert "chmod 600" in (caught.value.hint or "")


def test_a_broken_key_file_is_refused_without_showing_it(world: World) -> None:
    path = store_key(world)
    path.write_text('[openai]\napi_key = "sk-canary\n', "utf-8")
    with pytest.raises(ConfigError) as caught:
        world.load()
    assert "canary" not in caught.value.message and str(path) in caught.value.message


# --- the wire -----------------------------------------------------------------------------------

KIMI = """
[providers.kimi]
base_url = "http://127.0.0.1:1/v1"
profile = "kimi"
extra_body = { user_id = "team", nested = { a = [1] } }
extra_headers = { "X-Title" = "harness", "X-Api-Token" = "header-canary-1" }
[providers.kimi.quirks]
think_tags = true
[providers.kimi.retry]
max_retries = 2
initial_delay = "2s"
max_delay = 90
jitter = 0
"""


def test_a_provider_says_how_its_server_is_to_be_talked_to(world: World) -> None:
    wire = world.user(KIMI).load().providers["kimi"].wire
    profile = profile_in_force(wire, "openai_compatible", "http://127.0.0.1:1/v1")
    assert (profile.name, profile.think_tags, profile.omit_temperature) == ("kimi", True, True)
    assert profile.extra_body == {"user_id": "team", "nested": {"a": [1]}}
    assert wire.retry == RetryPolicy(2, 2000, 90_000, 0.0)


def test_the_wire_is_shown_with_its_origins_and_without_its_secrets(world: World) -> None:
    config = world.user(KIMI).load()
    rows = {name: (value, origin) for name, value, origin in config.rows()}
    path = str(world.home / "config.toml")
    assert rows["providers.kimi.profile"] == ("kimi", path)
    assert rows["providers.kimi.quirks.think_tags"] == (True, path)
    assert rows["providers.kimi.retry.initial_delay"] == (2.0, path)
    assert rows["providers.kimi.extra_headers.X-Api-Token"] == ("set", path)
    assert rows["providers.openai.profile"] == ("openai", "by base_url")
    assert rows["providers.deepseek.profile"] == ("deepseek", "by type")
    assert "canary" not in repr(config) + str(rows)
    assert rows["providers.kimi.max_concurrency"] == (256, path)
    assert "providers.kimi.ca_file" not in rows
    assert "header-canary-1" in config.secrets().values()
    assert "harness" not in config.secrets().values()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('profile = "kimmy"', ["providers.lab", "no profile 'kimmy'", "kimi"]),
        ("profile = 3", ["profile must be a text"]),
        ("quirks = { think_tag = true }", ["providers.lab", "think_tag", "think_tags"]),
        ('quirks = "x"', ["[providers.lab.quirks]"]),
        ("extra_body = { messages = [] }", ["extra_body", "messages cannot be set here"]),
        ("extra_body = { max_tokens = 3 }", ["max_tokens cannot be set here"]),
        ("extra_body = { day = 2026-01-01 }", ["no JSON form"]),
        ("extra_body = { x = nan }", ["no JSON form"]),
        ('extra_headers = { "a b" = "x" }', ["the header 'a b' cannot be set"]),
        ('extra_headers = { Host = "x" }', ["the header 'Host' cannot be set"]),
        ('extra_headers = { X-A = "canary\\n" }', ["the value of X-A must be"]),
        ("extra_headers = { X-A = 1 }", ["the value of X-A must be"]),
        ('quirks = { errors = { a = ["AUTH"] } }', ["errors: a must be a failure code", "['AUTH']"]),
        ("quirks = { errors = { a = {} } }", ["errors: a must be a failure code"]),
        ('quirks = { auth_header = "a b" }', ["the key cannot stand in the header 'a b'"]),
        ('quirks = { auth_header = "" }', ["the key cannot stand in the header ''"]),
        ('quirks = { auth_header = "é" }', ["the key cannot stand in the header"]),
        ('quirks = { auth_header = "content-length" }', ["the key cannot stand in the header"]),
        ("retry = { max_retrys = 1 }", ["retry", "max_retrys", "max_retries"]),
        ("retry = { max_retries = -1 }", ["retry", "must not be negative"]),
        ("retry = { max_retries = true }", ["max_retries must be a whole number"]),
        ('retry = { max_delay = "soon" }', ["max_delay"]),
        ('retry = { initial_delay = "20s" }', ["initial_delay (20 s) is longer than max_delay (10 s)"]),
        ("retry = { jitter = 2 }", ["jitter"]),
        ('type = "scripted"\nretry = {}', ["retry means nothing for the type scripted"]),
        ('type = "anthropic"\nextra_body = {}', ["extra_body means nothing for the type anthropic"]),
        ('type = "anthropic"\nprofile = "kimi"', ["profile means nothing for the type anthropic"]),
    ],
)
def test_a_mistake_about_the_wire_is_refused_with_its_place(
    world: World, text: str, words: list[str]
) -> None:
    world.user(f'[providers.lab]\nbase_url = "http://127.0.0.1:1/v1"\n{text}\n')
    with pytest.raises(ConfigError) as caught:
        world.load()
    for word in ("config.toml", *words):
        assert word in caught.value.message
    assert "canary" not in caught.value.message
