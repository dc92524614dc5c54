"""`dsh models`: which models there are, what they take and cost; asks nobody unless told to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click

from dsh_actors.cli.failures import one_line
from dsh_actors.cli.lines import json_line
from dsh_actors.cli.places import working_directory
from dsh_actors.config import Config, ProviderSettings, load_config, nearest
from dsh_actors.config.models import ModelSettings, catalogue, catalogue_date, merged
from dsh_actors.config.prices import WEEKDAYS
from dsh_actors.core.pricing import PeakHours, Price, Rates, Tariff
from dsh_actors.core.text import JsonObject
from dsh_actors.errors import ProviderError, UsageError

__all__ = ["COMMAND"]

_TOTAL_S = 60.0
"""How long ``--remote`` may take in all."""


@dataclass(frozen=True, slots=True)
class Row:
    """A model of a provider; ``model`` None where nothing is known of the provider's models."""

    provider: str
    model: ModelSettings | None
    key: str
    is_default: bool
    as_of: str | None

    @property
    def name(self) -> str:
        return f"{self.provider}/{'*' if self.model is None else self.model.id}"


@click.command("models", short_help="List the models that can be used.")
@click.argument("provider", required=False)
@click.option("--remote", is_flag=True, help="Ask the provider, else the default model's, what it offers.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def COMMAND(provider: str | None, remote: bool, as_json: bool) -> int:
    """List models with their sizes, prices for a million tokens, and whether a key is there.

    The list is the package's catalogue and your configuration; nothing is sent. `PROVIDER/*` stands for
    models that neither names: any id is passed on. With --remote the provider is asked. The default
    model is marked with a star.
    """
    config = load_config(cwd=working_directory(None))
    if provider is not None and provider not in config.providers:
        raise UsageError(f"there is no provider {provider!r}; {nearest(provider, config.providers)}")
    if remote:
        rows = list(_remote(config, provider or config.agent.model.partition("/")[0]))
    else:
        names = sorted(config.providers) if provider is None else [provider]
        rows = [row for name in names for row in _rows(config, name, config.models(name))]
    now_ms = int(time.time() * 1000)
    if as_json:
        for row in rows:
            click.echo(json_line(_json(row, now_ms)), nl=False)
    else:
        for line in _table([_cells(row, now_ms) for row in rows]):
            click.echo(line)
    return 0


def _rows(config: Config, name: str, models: Sequence[ModelSettings]) -> Iterator[Row]:
    key = _key(config, config.providers[name])
    default_provider, _, default = config.agent.model.partition("/")
    default = default if default_provider == name else ""
    kind = config.providers[name].type
    catalogued = {(known.id, known.price) for known in catalogue(kind) if known.price is not None}
    known: list[ModelSettings | None] = list(models)
    if default and all(model.id != default for model in models):
        known.append(ModelSettings(default))
    for model in known or [None]:
        is_default = model is not None and model.id == default
        is_from_catalogue = model is not None and (model.id, model.price) in catalogued
        yield Row(name, model, key, is_default, catalogue_date(kind) if is_from_catalogue else None)


def _key(config: Config, settings: ProviderSettings) -> str:
    if config.key_origin(settings.name) is not None:
        return "set"
    return "not needed" if settings.api_key_env is None else "not set"


def _remote(config: Config, name: str) -> Iterator[Row]:
    """The models that the provider lists, with what is known of them beside. Raises `ProviderError`."""
    settings = config.providers.get(name)
    if settings is None or settings.type == "scripted":
        raise UsageError(f"{name} has no list of models to ask for; name a provider of a real server")
    from dsh_actors.adapters.llm.model_list import fetch_models
    from dsh_actors.core.redaction import Redactor
    from dsh_actors.providers import provider_config
    from dsh_actors.runtime.tasks import DeadlinePassed, deadline

    try:
        with deadline(_TOTAL_S):
            offered = fetch_models(provider_config(config, settings))
    except DeadlinePassed as error:
        raise ProviderError(f"{name}: GET /models: no whole answer in time", code="TIMEOUT") from error
    except ProviderError as error:
        # A server may say anything, also what it was sent.
        error.message = Redactor(config.secrets()).text(error.message)
        raise
    known = {model.id: model for model in config.models(name)}
    # What a person configured goes before what the server says, and that before the catalogue.
    names = {model.id for model in offered}
    own = [model for model in settings.models if model.id in names]
    listed = merged((known.get(model.id, model) for model in offered), offered)
    return _rows(config, name, merged(listed, own))


# --- as JSON and as text --------------------------------------------------------------------------


_FACTS = ("context_window", "max_output", "default_output", "capabilities", "efforts", "default_effort")


def _json(row: Row, now_ms: int) -> JsonObject:
    model = row.model
    data: JsonObject = {"provider": row.provider, "id": None if model is None else model.id}
    data |= {"model": None if model is None else row.name, "default": row.is_default, "key": row.key}
    for name in _FACTS:
        data[name] = None if model is None else getattr(model, name)
    data["price"] = None if model is None or model.price is None else _price_json(model.price, now_ms)
    data["price_as_of"] = row.as_of
    return data


def _price_json(rates: Rates, now_ms: int) -> JsonObject | None:
    base, peak, hours = _parts(rates, now_ms)
    if base is None:
        return None
    data = _amounts(base) | {"currency": base.currency}
    if peak is not None and hours is not None:
        data |= {"peak": _amounts(peak), "peak_hours": [_window(w) for w in hours.windows]}
        data["peak_days"] = [WEEKDAYS[day] for day in sorted(hours.weekdays)]
        data["except_days"] = [_date(day) for day in sorted(hours.except_days)]
    return data


def _amounts(price: Price) -> JsonObject:
    names = ("input", "output", "cache_read", "cache_write")
    return {name: getattr(price, name) for name in names}


def _parts(rates: Rates, now_ms: int) -> tuple[Price | None, Price | None, PeakHours | None]:
    """The price in force, the one of peak hours, and these."""
    if isinstance(rates, Tariff):
        period = rates.period_at(now_ms)
        return (None, None, None) if period is None else (period.price, period.peak, period.hours)
    return rates.at(now_ms), None, None


def _window(window: tuple[int, int]) -> str:
    return "-".join(f"{minute // 60:02d}:{minute % 60:02d}" for minute in window)


def _date(day: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(day * 86_400))


_HEAD = ("MODEL", "CONTEXT", "OUTPUT", "IN / CACHED / OUT", "PEAK", "TAKES", "KEY")


def _cells(row: Row, now_ms: int) -> tuple[str, ...]:
    model = row.model or ModelSettings("*")
    base, peak, _ = (None, None, None) if model.price is None else _parts(model.price, now_ms)
    takes = "?" if model.capabilities is None else ", ".join(model.input_modalities)
    return (
        f"{'*' if row.is_default else ' '} {row.name}",
        _size(model.context_window),
        _size(model.max_output),
        "?" if base is None else _price_text(base),
        "" if peak is None else _price_text(peak),
        takes,
        row.key,
    )


def _size(tokens: int | None) -> str:
    return "?" if tokens is None else f"{tokens:,}"


def _price_text(price: Price) -> str:
    read = price.input if price.cache_read is None else price.cache_read
    return f"{' / '.join(f'{amount:g}' for amount in (price.input, read, price.output))} {price.currency}"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    lines = [(f"  {_HEAD[0]}", *_HEAD[1:]), *(tuple(map(one_line, row)) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    for line in lines:
        cells: list[Any] = [
            cell.rjust(width) if column in (1, 2) else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
