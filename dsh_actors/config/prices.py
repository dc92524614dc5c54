"""Prices as tables of the configuration and of the catalogue write them. All raise `ConfigError`.

    price = { input = 0.5, output = 2, cache_read = 0.05, cache_write = 0.6, currency = "EUR" }

A price may have a ``peak`` table with amounts of its own, ``peak_hours`` (``["01:00-04:00"]``, UTC),
``peak_days`` (``["mon", …]``, else all) and ``except_days`` (dates without a peak); and hold only from
``since`` on or before ``until`` (dates). Several prices are a list, newest first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dsh_actors.config.tables import refuse_unknown, text_in, texts_in
from dsh_actors.core.pricing import PeakHours, Period, Price, Rates, Tariff
from dsh_actors.errors import ConfigError

__all__ = ["WEEKDAYS", "rates_in"]

_DAY_MS = 86_400_000
_EPOCH_ORDINAL = 719_163
"""`date.toordinal` of 1 January 1970."""

_REQUIRED = ("input", "output")
_AMOUNTS = (*_REQUIRED, "cache_read", "cache_write")
_KEYS = (*_AMOUNTS, "currency", "peak", "peak_hours", "peak_days", "except_days", "since", "until")
_PEAK_KEYS = ("peak_hours", "peak_days", "except_days")
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)")


def rates_in(value: Any, where: str) -> Rates:
    """The rates that a ``price`` stands for: a table, or a list of them."""
    tables = value if isinstance(value, list) else [value]
    if not tables:
        raise ConfigError(f"{where}: the list of prices is empty")
    periods = tuple(_period(table, where) for table in tables)
    if len({period.price.currency for period in periods}) > 1:
        raise ConfigError(f"{where}: the prices of a model must share a currency")
    first = periods[0]
    if first == Period(first.price):
        return first.price
    return Tariff(periods)


def _period(table: Any, where: str) -> Period:
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table such as {{ input = 0.5, output = 2 }}")
    refuse_unknown(table, _KEYS, where)
    currency = text_in(table, "currency", where) or "USD"
    peak = hours = None
    if "peak" in table:
        if not isinstance(table["peak"], dict):
            raise ConfigError(f"{where}: peak must be a table such as {{ input = 1, output = 4 }}")
        refuse_unknown(table["peak"], _AMOUNTS, f"{where}.peak")
        peak = Price(**_amounts(table["peak"], f"{where}.peak"), currency=currency)
        hours = _hours(table, where)
    elif idle := [key for key in _PEAK_KEYS if key in table]:
        raise ConfigError(f"{where}: {idle[0]} means nothing without a peak price")
    since, until = _day(table.get("since"), where), _day(table.get("until"), where)
    if since is not None and until is not None and since >= until:
        raise ConfigError(f"{where}: until must be later than since")
    price = Price(**_amounts(table, where), currency=currency)
    return Period(price, peak, hours, since and since * _DAY_MS, until and until * _DAY_MS)


def _amounts(table: Mapping[str, Any], where: str) -> dict[str, float]:
    amounts: dict[str, float] = {}
    for key in _AMOUNTS:
        value = table.get(key)
        if value is None and key in _REQUIRED:
            raise ConfigError(f"{where}: {key} is missing")
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise ConfigError(f"{where}: {key} must be an amount for a million tokens, not {value!r}")
        amounts[key] = float(value)
    return amounts


def _hours(table: Mapping[str, Any], where: str) -> PeakHours:
    texts = texts_in(table, "peak_hours", where)
    if not texts:
        raise ConfigError(f'{where}: a peak price needs peak_hours, such as ["01:00-04:00"]')
    windows = []
    for text in texts:
        found = _WINDOW.fullmatch(text)
        start, end = (0, 0) if found is None else (_minute(found[1], found[2]), _minute(found[3], found[4]))
        if not start < end <= 24 * 60:
            raise ConfigError(f"{where}: peak_hours are written as 01:00-04:00, within a day, not {text!r}")
        windows.append((start, end))
    days = texts_in(table, "peak_days", where) or WEEKDAYS
    refuse_unknown(dict.fromkeys(days), WEEKDAYS, f"{where}.peak_days")
    excepted = table.get("except_days", [])
    if not isinstance(excepted, list):
        raise ConfigError(f"{where}: except_days must be a list of dates")
    free = (_day(day, where) for day in excepted)
    return PeakHours(
        tuple(windows),
        frozenset(map(WEEKDAYS.index, days)),
        frozenset(day for day in free if day is not None),
    )


def _minute(hour: str, minute: str) -> int:
    return int(hour) * 60 + int(minute)


def _day(value: Any, where: str) -> int | None:
    """A date as days since the epoch: a date of TOML, or its text."""
    if value is None:
        return None
    from datetime import date, datetime  # prices with dates are rare

    try:
        found = value if isinstance(value, date) else date.fromisoformat(value)
    except (TypeError, ValueError):
        found = None
    if found is None or isinstance(found, datetime):
        raise ConfigError(f"{where}: a date is written as 2026-11-30, not {value!r}")
    return found.toordinal() - _EPOCH_ORDINAL
