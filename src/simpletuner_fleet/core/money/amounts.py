"""Reads and writes amounts of money, which are whole millionths of a currency's unit.

So the cost of a few seconds of a cheap GPU is not rounded away.
"""

import re
from decimal import Decimal

from simpletuner_fleet.core.errors import Invalid

MICROS = 1_000_000
MAX_MICROS = 10**15
"""A thousand million of a currency's unit."""
MS_OF_HOUR = 3_600_000
DEFAULT_CURRENCY = "USD"
UNKNOWN_CURRENCY = "XXX"
"""The code of ISO 4217 for no currency: it stands beside amounts where nobody can read which one they are in."""
DIGITS = {"JPY": 0, "KRW": 0, "VND": 0, "CLP": 0, "ISK": 0, "KWD": 3, "BHD": 3, "OMR": 3, "JOD": 3, "TND": 3}
"""How many digits a currency has behind the point, where it is not two."""
_CURRENCY = re.compile(r"[A-Z]{3}")
_AMOUNT = re.compile(r"[0-9]{1,9}(\.[0-9]{1,6})?")


def checked_currency(text: str) -> str:
    if not _CURRENCY.fullmatch(text):
        raise Invalid("A currency is named by its three letters, for example EUR.", path="$.currency")
    return text


def read_amount(text: str) -> int:
    """Reads an amount as a person writes it, like 2.50, without using floats, or raises ValueError."""
    if not _AMOUNT.fullmatch(text.strip()):
        raise ValueError("an amount is written like 2.50: digits, and at most six behind the point")
    return int(Decimal(text.strip()) * MICROS)


def amount_text(micros: int, currency: str, *, exact: bool = False) -> str:
    """Returns an amount with its currency, rounded to the currency's digits, or with all digits if `exact`."""
    digits = DIGITS.get(currency, 2)
    value = Decimal(micros) / MICROS
    if exact:
        shown = value.normalize()
        places = -int(shown.as_tuple().exponent)
        digits = max(digits, places)
    return f"{value:.{digits}f} {currency}"


def typed_amount(micros: int) -> str:
    """Returns the amount as a person would type it: 2.5."""
    return f"{(Decimal(micros) / MICROS).normalize():f}"


def plain_amount(micros: int) -> str:
    """Returns the amount with every digit and nothing else, for tables that programs read."""
    return f"{Decimal(micros) / MICROS:.6f}"


def milliseconds(at: float) -> int:
    return round(at * 1000)


def cost_micros(hourly_micros: int, begun_at: float, ended_at: float) -> int:
    """Returns what something of this price an hour costs from then to then, rounded to the next millionth."""
    lasted = max(0, milliseconds(ended_at) - milliseconds(begun_at))
    return (hourly_micros * lasted + MS_OF_HOUR // 2) // MS_OF_HOUR
