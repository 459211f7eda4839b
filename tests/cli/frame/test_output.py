"""How single values are shown to people."""

import pytest

from simpletuner_fleet.cli.frame.output import shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.8, "0.8"),
        (2.0, "2"),
        (0.000012, "1.2e-05"),
        (86_400.0, "86400"),
        (1_234_567.0, "1234567"),
        (107_374_182_400.0, "107374182400"),
        (123_456.789, "123456.8"),
        (-2_592_000.0, "-2592000"),
        (1e300, "1e+300"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
    ],
)
def test_no_digit_of_a_whole_part_is_rounded_away(value: float, text: str) -> None:
    assert shown(value) == text
