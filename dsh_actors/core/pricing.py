"""What model calls take: totals of tokens, and what they cost by a flat price or a tariff. Pure.

Amounts are for a million tokens. Times are ms since the epoch; hours and days are those of UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dsh_actors.core.chunks import Usage

__all__ = ["Bill", "PeakHours", "Period", "Price", "PriceOf", "Rates", "Tariff", "Tokens"]

_MINUTE_MS = 60_000
_DAY_MS = 86_400_000
_FIRST_WEEKDAY = 3
"""The first day of the epoch was a Thursday; Monday is 0."""


class Rates(Protocol):
    """What a model costs, whenever it is asked."""

    @property
    def currency(self) -> str: ...

    def at(self, time_ms: int) -> Price | None:
        """The price of a request that is sent at this time; None where it is not known."""


PriceOf = Callable[[str], Rates | None]
"""The rates of ``PROVIDER/MODEL``, None where they are not known."""


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of a model, each for a million tokens, in ``currency``; the same at all times."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    currency: str = "USD"

    def at(self, time_ms: int) -> Price | None:
        return self

    def cost(self, usage: Usage) -> float:
        """What ``usage`` costs. A cache price that is not known is the price of input."""
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        total = usage.input * self.input + usage.output * self.output
        total += (usage.cache_read or 0) * read + (usage.cache_write or 0) * write
        return total / 1_000_000


@dataclass(frozen=True, slots=True)
class PeakHours:
    """When the peak price holds.

    ``windows`` are minutes of the day, the second one excluded. ``weekdays``: Monday is 0. On
    ``except_days`` (days since the epoch) there is no peak.
    """

    windows: tuple[tuple[int, int], ...]
    weekdays: frozenset[int] = frozenset(range(7))
    except_days: frozenset[int] = frozenset()

    def include(self, time_ms: int) -> bool:
        day, rest = divmod(time_ms, _DAY_MS)
        if (day + _FIRST_WEEKDAY) % 7 not in self.weekdays or day in self.except_days:
            return False
        minute = rest // _MINUTE_MS
        return any(start <= minute < end for start, end in self.windows)


@dataclass(frozen=True, slots=True)
class Period:
    """A price from ``since`` on and before ``until``; None is without end. ``peak`` holds in ``hours``."""

    price: Price
    peak: Price | None = None
    hours: PeakHours | None = None
    since: int | None = None
    until: int | None = None

    def at(self, time_ms: int) -> Price | None:
        if self.since is not None and time_ms < self.since:
            return None
        if self.until is not None and time_ms >= self.until:
            return None
        if self.peak is not None and self.hours is not None and self.hours.include(time_ms):
            return self.peak
        return self.price


@dataclass(frozen=True, slots=True)
class Tariff:
    """Prices that change over time. Of periods that overlap the first one counts; all share a currency."""

    periods: tuple[Period, ...]

    @property
    def currency(self) -> str:
        return self.periods[0].price.currency

    def at(self, time_ms: int) -> Price | None:
        """The price of a request that is sent at this time; None outside all periods."""
        period = self.period_at(time_ms)
        return None if period is None else period.at(time_ms)

    def period_at(self, time_ms: int) -> Period | None:
        """The period in force at this time."""
        return next((period for period in self.periods if period.at(time_ms) is not None), None)


class Bill:
    """A sum of costs that is known only while every part of it is, in one currency."""

    __slots__ = ("_is_known", "_total", "currency")

    def __init__(self) -> None:
        self._total = 0.0
        self._is_known = True
        self.currency: str | None = None

    @property
    def total(self) -> float | None:
        """None once anything in it was not known, or came in another currency."""
        return round(self._total, 9) if self._is_known else None

    def charge(self, usage: Usage, rates: Rates | None, time_ms: int) -> None:
        """Add what ``usage`` of a request that began at this time costs; no rates are not known."""
        price = None if rates is None else rates.at(time_ms)
        self.add(None if price is None else price.cost(usage), None if price is None else price.currency)

    def add(self, cost: float | None, currency: str | None) -> None:
        """Add a cost; one without a currency is nothing, or not known."""
        if cost is None:
            self._is_known = False
        elif currency is not None:
            self._is_known &= self.currency in (None, currency)
            self.currency = self.currency or currency
            self._total += cost


@dataclass(slots=True)
class Tokens:
    """Token totals. ``input`` was not cached; ``reasoning`` is a part of ``output``."""

    input: int = 0
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0

    def add(self, usage: Usage) -> None:
        self.input += usage.input
        self.cache_read += usage.cache_read or 0
        self.cache_write += usage.cache_write or 0
        self.output += usage.output
        self.reasoning += usage.reasoning or 0

    def sum(self, other: Tokens) -> None:
        """Add another total."""
        for name in Tokens.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
