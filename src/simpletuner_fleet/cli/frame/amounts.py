"""Formats amounts of money for people."""

from typing import Any

from simpletuner_fleet.core.money.amounts import amount_text
from simpletuner_fleet.languages import _


def money(micros: Any, currency: str, *, exact: bool = False) -> str | None:
    return amount_text(micros, currency, exact=exact) if isinstance(micros, int) else None


def known_money(micros: Any, currency: str, *, at_least: bool) -> str | None:
    """Formats an amount, with "at least" before it where a part of it has no known price."""
    text = money(micros, currency)
    return _("at least %(amount)s", amount=text) if text and at_least else text
