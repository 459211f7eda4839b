import pytest

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.money.amounts import (
    amount_text,
    checked_currency,
    cost_micros,
    plain_amount,
    read_amount,
)


@pytest.mark.parametrize(
    ("text", "micros"), [("2.50", 2_500_000), ("0.000001", 1), ("7", 7_000_000), (" 0.1 ", 100_000)]
)
def test_what_people_write_becomes_whole_millionths(text: str, micros: int) -> None:
    assert read_amount(text) == micros


@pytest.mark.parametrize("text", ["", "-1", "1,5", "1e3", "0.0000001", "nan", "12345678901"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"like 2\.50"):
        read_amount(text)


def test_amounts_are_written_as_their_currency_counts() -> None:
    assert amount_text(2_345_678, "EUR") == "2.35 EUR"
    assert amount_text(85_000, "EUR", exact=True) == "0.085 EUR"
    assert amount_text(2_500_000, "EUR", exact=True) == "2.50 EUR"
    assert amount_text(1_500_000, "JPY") == "2 JPY"
    assert amount_text(1_234_567, "KWD") == "1.235 KWD"
    assert plain_amount(1) == "0.000001"


def test_a_currency_is_three_capital_letters() -> None:
    assert checked_currency("CHF") == "CHF"
    for wrong in ("eur", "EURO", "€", ""):
        with pytest.raises(Invalid):
            checked_currency(wrong)


def test_a_cost_is_rounded_to_the_next_millionth_and_never_below_zero() -> None:
    assert cost_micros(2_500_000, 0.0, 3600.0) == 2_500_000
    assert cost_micros(3_600_000, 10.0, 10.001) == 1
    assert cost_micros(1, 0.0, 1800.0) == 1
    assert cost_micros(1, 0.0, 1799.0) == 0
    assert cost_micros(2_500_000, 10.0, 5.0) == 0
