"""What calls cost: tariffs with peak hours and periods, and sums that may become unknown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsh_actors.core.chunks import Usage
from dsh_actors.core.pricing import Bill, PeakHours, Period, Price, Tariff

LOW, HIGH = Price(1.0, 2.0, 0.1, 3.0), Price(10.0, 20.0)
WORKING = PeakHours(((60, 240), (360, 600)), frozenset(range(5)), frozenset({20_727}))


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def test_every_part_of_the_input_has_its_price() -> None:
    assert LOW.cost(Usage(1_000_000, 100_000, 2_000_000, 500_000)) == pytest.approx(1 + 0.2 + 0.2 + 1.5)


def test_a_cache_price_that_is_not_known_is_that_of_input() -> None:
    assert HIGH.cost(Usage(1_000_000, 0, 1_000_000, 1_000_000)) == pytest.approx(30)


@pytest.mark.parametrize(
    ("moment", "is_peak"),
    [
        ("2026-11-30 00:59:59.999", False),  # a Monday
        ("2026-11-30 01:00:00", True),
        ("2026-11-30 03:59:59.999", True),
        ("2026-11-30 04:00:00", False),
        ("2026-11-30 06:00:00", True),
        ("2026-11-30 10:00:00", False),
        ("2026-11-29 07:00:00", False),  # a Sunday
        ("2026-12-04 07:00:00", True),  # a Friday
        ("2026-12-05 07:00:00", False),  # a Saturday
        ("2026-10-01 07:00:00", False),  # a holiday on a Thursday
        ("2026-10-08 07:00:00", True),
    ],
)
def test_peak_hours_are_windows_of_working_days(moment: str, is_peak: bool) -> None:
    assert WORKING.include(ms(moment)) is is_peak
    tariff = Tariff((Period(LOW, HIGH, WORKING),))
    assert tariff.at(ms(moment)) is (HIGH if is_peak else LOW)


@given(st.integers(0, 4_000_000_000_000))
def test_peak_hours_are_those_of_the_calendar(time: int) -> None:
    moment = datetime.fromtimestamp(time / 1000, UTC)
    minute = moment.hour * 60 + moment.minute
    expected = moment.weekday() < 5 and (60 <= minute < 240 or 360 <= minute < 600)
    assert PeakHours(WORKING.windows, WORKING.weekdays).include(time) is expected


def test_a_period_holds_from_its_first_day_to_the_last_before_its_end() -> None:
    tariff = Tariff((Period(HIGH, since=2_000, until=3_000), Period(LOW, until=1_000)))
    found = [tariff.at(time) for time in (0, 999, 1_000, 1_999, 2_000, 2_999, 3_000)]
    assert found == [LOW, LOW, None, None, HIGH, HIGH, None]
    assert tariff.currency == "USD" and LOW.at(7) is LOW


def test_of_two_periods_the_first_counts() -> None:
    assert Tariff((Period(HIGH, since=5), Period(LOW))).at(9) is HIGH


def test_a_sum_is_known_while_all_of_it_is_in_one_currency() -> None:
    bill, usage = Bill(), Usage(1_000_000, 0)
    assert (bill.total, bill.currency) == (0, None)
    bill.charge(usage, LOW, 0)
    bill.add(0.5, "USD")
    bill.add(0.0, None)  # another sum of nothing
    assert (bill.total, bill.currency) == (1.5, "USD")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda bill: bill.add(1.0, "EUR"),
        lambda bill: bill.add(None, "USD"),
        lambda bill: bill.charge(Usage(1, 1), None, 0),
        lambda bill: bill.charge(Usage(1, 1), Tariff((Period(LOW, until=5),)), 5),
    ],
)
def test_a_sum_stays_unknown_once_a_part_of_it_is(spoil: Callable[[Bill], None]) -> None:
    bill = Bill()
    bill.charge(Usage(1, 1), LOW, 0)
    spoil(bill)
    assert bill.total is None
    bill.charge(Usage(1, 1), LOW, 0)
    assert bill.total is None
