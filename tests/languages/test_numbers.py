"""Numbers in sentences are written as the reader's language writes them."""

import pytest

from simpletuner_fleet.languages import translator
from simpletuner_fleet.languages.code_texts import reason_text
from simpletuner_fleet.languages.numbers import in_language, number_text


@pytest.mark.parametrize(
    ("lang", "value", "digits", "text"),
    [
        ("en", 1234567.25, 1, "1,234,567.2"),
        ("zh", 1234567, 0, "1,234,567"),
        ("ja", 999, 0, "999"),
        ("pt-BR", 1234567.25, 1, "1.234.567,2"),
        ("pt-BR", -0.5, 1, "-0,5"),
        ("hi", 1234567.25, 1, "12,34,567.2"),
        ("hi", -100000, 0, "-1,00,000"),
        ("hi", 1000, 0, "1,000"),
    ],
)
def test_each_language_has_its_own_points(lang: str, value: float, digits: int, text: str) -> None:
    assert number_text(lang, value, digits) == text


@pytest.mark.parametrize("text", ["4.10.1", "gpu-1", "team=nlp", "8, 16", "", "10.0.0.5", "v1.5"])
def test_what_is_no_number_stays(text: str) -> None:
    assert in_language("pt-BR", text) == text


def test_a_number_keeps_its_unit() -> None:
    assert in_language("pt-BR", "1,234.50 USD") == "1.234,50 USD"


def test_counts_are_written_so() -> None:
    said = translator("pt-BR").plural("%(n)s step at risk", "%(n)s steps at risk", 12345)
    assert said.startswith("12.345 ")


def test_a_reason_tells_prices_so() -> None:
    params = {
        "pool": "cloud",
        "provider": "RunPod",
        "machine": "1 x A100 80 GB",
        "price": "1.89 USD",
        "hourly_micros": 1_890_000,
        "phase": "booting",
        "since_s": 40.0,
    }
    english = (
        "waiting for a machine of the pool cloud: RunPod, 1 x A100 80 GB, 1.89 USD an hour, booting for 40 s"
    )
    explanation = {"code": "WAITING_FOR_MACHINE", "params": params, "sentence": english}
    assert reason_text(translator("en"), explanation) == english
    assert "1,89 USD" in reason_text(translator("pt-BR"), explanation)
