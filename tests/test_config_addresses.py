"""Addresses in the configuration: which are refused, and that nothing secret in them is ever said."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsh_actors.config import load_config
from dsh_actors.config.addresses import is_web_address, proxy_secrets, shown_address
from dsh_actors.config.load import Config
from dsh_actors.errors import ConfigError
from dsh_actors.providers import provider_config

SECRET = "canary-7f3a9c"


def load(root: Path, table: str, **env: str) -> Config:
    (root / "config.toml").write_text(f"[providers.lab]\n{table}\n", "utf-8")
    return load_config(env={"DSH_HOME": str(root), **env}, cwd=str(root))


@pytest.mark.parametrize(
    "url",
    [
        *("http://h", "https://h/v1", "HTTP://H:8000/v1/", "http://127.0.0.1:1", "http://[::1]:8000/v1"),
        *("http://me:pw@h/v1", "https://h/d?api-version=2024-10-01", "http://my_box.local./v1", "http://é.example"),
        f"http://{'a' * 63}.example/",
    ],
)
def test_an_address_that_can_be_tried_is_one(url: str) -> None:
    assert is_web_address(url)


@pytest.mark.parametrize(
    "url",
    [
        *(None, 5, "", "h", "localhost:8000/v1", "ftp://h", "http://", "http:///v1", "http://h:0", "http://h:99999"),
        *("http://[::1/v1", "http://h:port", "http://a b/v1", " http://h", "http://h ", "http://h/v1\n", "http://h\0"),
        *("http://a..b/v1", "http://.b", f"http://{'a' * 64}.b", f"http://{'é' * 64}.b", "http://a|b/", "http://h\udcff"),
        f"http://{'a.' * 150}b/",
    ],
)
def test_an_address_that_no_connection_can_be_made_to_is_none(url: object) -> None:
    assert not is_web_address(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://h/v1?a=b&c", "https://h/v1?a=b&c"),
        (f"https://me:{SECRET}@h/v1", "https://h/v1"),
        (f"https://h/v1?api-version=1&key={SECRET}&x=1", "https://h/v1?api-version=1&key=***&x=1"),
        (f"https://h/v1?API%5FKEY={SECRET}", "https://h/v1?API%5FKEY=***"),
        (f"https://h/v1?code={SECRET}&sig={SECRET}&token=", "https://h/v1?code=***&sig=***&token="),
    ],
)
def test_people_see_an_address_without_its_secrets(url: str, shown: str) -> None:
    assert shown_address(url) == shown


@pytest.mark.parametrize(
    "url",
    [f"ftp://me:{SECRET}@h/", f"http://me:{SECRET}@h:0/", f"me:{SECRET}@h/v1", f"http://a..b/?key={SECRET}"],
)
def test_a_refused_address_is_not_repeated_where_it_may_hold_a_secret(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f'base_url = "{url}"')
    assert "https://host/v1" in caught.value.message and SECRET not in caught.value.message
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, 'base_url = "https://h"', DEEPSEEK_BASE_URL=url)
    assert "DEEPSEEK_BASE_URL" in caught.value.message and SECRET not in caught.value.message


def test_a_key_in_the_place_of_its_variable_is_refused_unseen(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f'base_url = "https://h"\napi_key_env = "{SECRET}"')
    assert "api_key_env is the name of a variable" in caught.value.message
    assert SECRET not in caught.value.message


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (f'base_url = "https://h/v1?api-version=1&key={SECRET}"', "providers.lab.base_url?key"),
        (f'base_url = "https://me:{SECRET}@h/v1"', "providers.lab.base_url"),
        (
            f'base_url = "https://h"\nextra_headers = {{ X-Pass = "{SECRET}" }}',
            "providers.lab.extra_headers.X-Pass",
        ),
        (
            f'base_url = "https://h"\nextra_headers = {{ Authorization = "Bearer {SECRET}" }}',
            "providers.lab.extra_headers.Authorization",
        ),
    ],
)
def test_secrets_of_a_providers_table_are_known_and_not_shown(table: str, name: str, tmp_path: Path) -> None:
    config = load(tmp_path, table)
    assert config.secrets() == {name: SECRET}
    assert SECRET not in str(list(config.rows())) + repr(config)


def test_passwords_of_proxies_are_secrets_in_every_form(tmp_path: Path) -> None:
    env = {"HTTP_PROXY": f"http://me:{SECRET}@p:1", "https_proxy": "me:can%40ary@p:1", "ALL_PROXY": "http://[x@"}
    assert proxy_secrets(env) == {"HTTP_PROXY": SECRET, "https_proxy": "can%40ary", "https_proxy#": "can@ary"}
    config = load(tmp_path, 'base_url = "https://h"', **env, all_proxy="http://me:pw@p:1")
    assert set(config.secrets().values()) == {SECRET, "can%40ary", "can@ary", "pw"}


def test_certificates_that_are_not_there_are_refused_before_a_request(tmp_path: Path) -> None:
    config = load(tmp_path, f'base_url = "https://h"\nca_file = "{tmp_path}/none.pem"')
    with pytest.raises(ConfigError, match=r"provider lab: there is no ca_file .*none\.pem"):
        provider_config(config, config.providers["lab"])


@pytest.mark.parametrize("key", ["peak_hours", "peak_days", "except_days"])
def test_hours_of_a_peak_without_its_price_are_refused(key: str, tmp_path: Path) -> None:
    price = f"{{ input = 1, output = 2, {key} = [5] }}"
    with pytest.raises(ConfigError, match=f"{key} means nothing without a peak price"):
        load(tmp_path, f'base_url = "https://h"\nmodels = [{{ id = "m", price = {price} }}]')
