"""What a limit on the cost needs to be kept: prices that are known, in one currency."""

from __future__ import annotations

from dsh_actors.config.load import Config
from dsh_actors.errors import UsageError

__all__ = ["require_currency", "require_price"]


def require_price(config: Config, model: str, now_ms: int, limit: str = "--max-cost") -> None:
    """Raises `UsageError` where the price of ``PROVIDER/MODEL`` is not known at this time.

    ``limit`` is the option that needs it.
    """
    if config.price_at(model, now_ms) is None:
        raise UsageError(
            f"{limit} needs a price, and none is known for {model}",
            hint="add one under [[providers.NAME.models]], or limit tokens instead",
        )


def require_currency(config: Config, model: str, other: str) -> None:
    """Raises `UsageError` where ``other`` is known to be paid in another currency than ``model``."""
    own, rates = config.price(model), config.price(other)
    if own is not None and rates is not None and own.currency != rates.currency:
        raise UsageError(
            f"--max-cost is in {own.currency}, and the price of {other} is in {rates.currency}",
            hint="let a model write titles that is paid in the same currency",
        )
