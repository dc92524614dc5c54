"""The catalogue of models, and the configuration's models over it."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from dsh_actors.adapters.llm.model_facts import catalogue_facts
from dsh_actors.config import Config, load_config
from dsh_actors.config.models import ModelSettings, catalogue, catalogue_date, merged, model_in
from dsh_actors.core.chunks import CallConfig
from dsh_actors.core.pricing import Price, Tariff
from dsh_actors.errors import ConfigError, UsageError
from dsh_actors.providers import LazyProviders

CHEAP = int(datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp() * 1000)
PEAK = int(datetime(2026, 11, 30, 7, tzinfo=UTC).timestamp() * 1000)
HOLIDAY = int(datetime(2027, 1, 1, 7, tzinfo=UTC).timestamp() * 1000)


def configured(tmp_path: Path, text: str = "", **env: str) -> Config:
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(text)
    return load_config(env={"DSH_HOME": str(home), **env}, cwd=str(tmp_path))


def of_toml(text: str) -> ModelSettings:
    table: dict[str, Any] = {"id": "m", **tomllib.loads(text)}
    return model_in(table, "here")


# --- the catalogue ----------------------------------------------------------------------------


def test_the_catalogue_has_the_models_of_deepseek_with_sizes_defaults_and_capabilities() -> None:
    known = {model.id: model for model in catalogue("deepseek")}
    assert list(known) == [
        "deepseek-flash",
        "deepseek-v4-pro",
        "deepseek-v4-flash",
        "deepseek-v4-flash-vision-exp",
    ]
    for model in known.values():
        assert (model.context_window, model.max_output, model.default_output) == (1_048_576, 393_216, 256_000)
        assert (model.efforts, model.default_effort) == (("off", "low", "high", "max"), "high")
    assert known["deepseek-flash"].input_modalities == ("text", "image")
    assert known["deepseek-v4-pro"].input_modalities == ("text",)
    assert known["deepseek-v4-flash"].price == known["deepseek-flash"].price
    assert catalogue_date("deepseek") == "2026-11" and catalogue_date("openai_compatible") is None
    assert catalogue("openai_compatible") == () and catalogue_facts("openai_compatible") is None


@pytest.mark.parametrize(
    ("model", "moment", "price"),
    [
        ("deepseek-flash", CHEAP, Price(0.15, 0.6, 0.003)),
        ("deepseek-flash", PEAK, Price(0.3, 1.2, 0.006)),
        ("deepseek-flash", HOLIDAY, Price(0.15, 0.6, 0.003)),
        ("deepseek-v4-pro", CHEAP, Price(0.66, 1.98, 0.022)),
        ("deepseek-v4-pro", PEAK, Price(1.32, 3.96, 0.044)),
    ],
)
def test_the_prices_of_deepseek_are_those_of_the_hour(
    tmp_path: Path, model: str, moment: int, price: Price
) -> None:
    assert configured(tmp_path).price_at(f"deepseek/{model}", moment) == price


def test_the_prices_hold_for_the_vendors_own_name_behind_any_address_and_for_no_other(tmp_path: Path) -> None:
    text = (
        '[providers.other]\ntype = "deepseek"\nbase_url = "http://127.0.0.1:1"\n'
        '[providers.mixed]\ntype = "deepseek"\nbase_url = "http://127.0.0.1:1"\n'
        '[[providers.mixed.models]]\nid = "deepseek-flash"\nprice = { input = 7, output = 8 }\n'
    )
    config = configured(tmp_path, text, DEEPSEEK_BASE_URL="http://127.0.0.1:1")
    assert config.price_at("deepseek/deepseek-flash", CHEAP) == Price(0.15, 0.6, 0.003)
    assert config.price("other/deepseek-flash") is None
    assert config.models("other")[0].context_window == 1_048_576
    assert config.price("mixed/deepseek-flash") == Price(7, 8)
    assert config.price("deepseek/nothing-like-it") is None


def test_a_built_in_name_with_another_type_is_another_vendor(tmp_path: Path) -> None:
    text = '[providers.openai]\ntype = "deepseek"\nbase_url = "http://127.0.0.1:1"\n'
    assert configured(tmp_path, text).price("openai/deepseek-flash") is None


# --- the configuration over it ----------------------------------------------------------------


def test_the_configuration_wins_field_by_field_and_adds_models(tmp_path: Path) -> None:
    text = (
        '[[providers.deepseek.models]]\nid = "deepseek-flash"\nmax_output = 1000\ndefault_output = 500\n'
        '[[providers.deepseek.models]]\nid = "own"\ncontext_window = 9\ncapabilities = ["image"]\n'
    )
    config = configured(tmp_path, text, DEEPSEEK_API_KEY="sk-0123456789")
    flash, *_, own = config.models("deepseek")
    assert (flash.max_output, flash.default_output, flash.context_window) == (1000, 500, 1_048_576)
    assert isinstance(flash.price, Tariff)
    assert own == ModelSettings("own", 9, capabilities=("image",))
    assert len(config.models("deepseek")) == 5
    provider = LazyProviders(config, {})["deepseek"]
    call = provider.prepare(CallConfig("deepseek", "deepseek-flash"))
    assert (call.config.max_tokens, call.config.reasoning_effort) == (500, "high")
    assert call.context_window == 1_048_576
    assert provider.prepare(CallConfig("deepseek", "own")).context_window == 9


def test_a_default_output_of_the_configuration_is_sent_by_any_provider(tmp_path: Path) -> None:
    text = (
        '[providers.lab]\nbase_url = "http://127.0.0.1:1"\n'
        '[[providers.lab.models]]\nid = "m"\n'
        "context_window = 8192\nmax_output = 4096\ndefault_output = 1024\n"
    )
    call = LazyProviders(configured(tmp_path, text), {})["lab"].prepare(CallConfig("lab", "m"))
    assert (call.config.max_tokens, call.adapter_defaults) == (1024, {"maxTokens"})


def test_the_efforts_of_the_configuration_are_those_that_a_model_takes(tmp_path: Path) -> None:
    text = (
        '[providers.lab]\nbase_url = "http://127.0.0.1:1"\n'
        '[[providers.lab.models]]\nid = "m"\nefforts = ["low", "high"]\ndefault_effort = "low"\n'
        '[[providers.lab.models]]\nid = "plain"\n'
    )
    lab = LazyProviders(configured(tmp_path, text), {})["lab"]
    call = lab.prepare(CallConfig("lab", "m"))
    assert (call.config.reasoning_effort, call.adapter_defaults) == ("low", {"reasoningEffort"})
    for asked in ("high", "off"):
        assert lab.prepare(CallConfig("lab", "m", asked)).config.reasoning_effort == asked
    with pytest.raises(UsageError, match="m has no reasoning effort 'extreme'") as caught:
        lab.prepare(CallConfig("lab", "m", "extreme"))
    assert caught.value.hint == "use one of low, high"
    # Where nothing is known, whatever was asked for is passed on.
    assert lab.prepare(CallConfig("lab", "plain", "extreme")).adapter_defaults == frozenset()


def test_what_is_left_out_is_kept_and_an_empty_list_is_a_statement() -> None:
    base = ModelSettings("m", 100, 50, Price(1, 2), ("tools",))
    assert merged([base], [ModelSettings("m", max_output=60)]) == (
        ModelSettings("m", 100, 60, Price(1, 2), ("tools",)),
    )
    assert merged([base], [ModelSettings("m", capabilities=())])[0].capabilities == ()
    assert merged([], [base, ModelSettings("n")]) == (base, ModelSettings("n"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("context_windw = 5", "unknown key 'context_windw'; did you mean context_window"),
        ("max_output = 0", "max_output must be a whole number of tokens"),
        ("max_output = 5\ndefault_output = 6", "default_output 6 is larger than max_output 5"),
        ("context_window = 5\nmax_output = 6", "max_output 6 is larger than context_window 5"),
        ('efforts = ["low"]\ndefault_effort = "high"', "default_effort 'high' is not one of efforts"),
        ("efforts = [1]", "efforts must be a list of texts"),
        ("capabilities = 'image'", "capabilities must be a list of texts"),
    ],
)
def test_a_models_table_that_is_wrong_is_refused_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of_toml(text)
    assert caught.value.message.startswith("here: ") and complaint in caught.value.message


# --- prices -----------------------------------------------------------------------------------


def test_a_price_may_have_peak_hours_and_a_time() -> None:
    rates = of_toml(
        "price = [\n"
        '{ input = 1, output = 2, currency = "EUR", since = 2026-12-01, peak = { input = 3, output = 4 },'
        ' peak_hours = ["07:00-24:00"], peak_days = ["tue"], except_days = ["2026-12-08"] },\n'
        '{ input = 5, output = 6, currency = "EUR", until = "2026-12-01" },\n]'
    ).price
    assert rates is not None and rates.currency == "EUR"

    def at(day: int, hour: int) -> float:
        price = rates.at(int(datetime(2026, 12, day, hour, tzinfo=UTC).timestamp() * 1000))
        assert price is not None
        return price.input

    assert [at(1, 6), at(1, 7), at(1, 23), at(2, 0), at(2, 7), at(8, 7)] == [1, 3, 3, 1, 1, 1]
    assert rates.at(CHEAP) == Price(5, 6, currency="EUR")


@pytest.mark.parametrize(
    ("price", "complaint"),
    [
        ("3", "must be a table"),
        ("[]", "the list of prices is empty"),
        ("{ input = 1 }", "output is missing"),
        ("{ input = -1, output = 1 }", "input must be an amount"),
        ("{ input = 1, output = nan }", "output must be an amount"),
        ("{ input = 1, output = 2, cash = 3 }", "unknown key 'cash'"),
        ("{ input = 1, output = 2, peak = { input = 1, output = 2 } }", "a peak price needs peak_hours"),
        ('{ input = 1, output = 2, peak_hours = ["01:00-02:00"] }', "peak_hours means nothing"),
        ("{ input = 1, output = 2, except_days = [2026-12-08] }", "except_days means nothing"),
        ("{ input = 1, output = 2, peak = 5 }", "peak must be a table"),
        ('{ input = 1, output = 2, peak = { input = 1, output = 2, currency = "EUR" } }', "unknown key"),
        ("{ input = 1, output = 2, since = 5 }", "a date is written as"),
        ("{ input = 1, output = 2, since = 2026-01-01T00:00:00Z }", "a date is written as"),
        ("{ input = 1, output = 2, since = 2026-01-02, until = 2026-01-02 }", "until must be later"),
        ('[{ input = 1, output = 2 }, { input = 1, output = 2, currency = "EUR" }]', "share a currency"),
    ],
)
def test_a_price_that_cannot_be_meant_is_refused(price: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        of_toml(f"price = {price}")
    assert caught.value.message.startswith("here.price") and complaint in caught.value.message


AMOUNTS = "{ input = 1, output = 2 }"


@pytest.mark.parametrize(
    "window", ["1:00-2:00", "04:00-01:00", "23:00-25:00", "24:00-24:30", "x", "03:00-03:00"]
)
def test_hours_that_are_none_are_refused(window: str) -> None:
    with pytest.raises(ConfigError, match="peak_hours are written as"):
        of_toml(f'price = {{ input = 1, output = 2, peak = {AMOUNTS}, peak_hours = ["{window}"] }}')
