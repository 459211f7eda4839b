"""Versions of the trainer, compared."""

import pytest

from simpletuner_fleet.core.training.trainer_release import version_fits, version_numbers


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("4.10.1", ">=4.3", True),
        ("4.3", ">=4.3.0", True),
        ("4.2.9", ">=4.3", False),
        ("4.10.1", "<4.9", False),
        ("4.10.1", "> 4.10.1", False),
        ("4.10.1", "<=4.10.1", True),
        ("4.10", "==4.10.0", True),
        ("", ">=1", False),
        ("unknown", "<99", False),
        ("4.10.1", "4.*", None),
        ("4.10.1", ">=four", None),
        ("4.10.1", ">=4." + "1" * 30, None),
    ],
)
def test_a_version_is_compared_number_by_number(version: str, wanted: str, fits: bool | None) -> None:
    assert version_fits(version, wanted) is fits


def test_what_follows_the_numbers_does_not_count() -> None:
    assert version_numbers("4.10.1.dev4+gabc") == (4, 10, 1)
    assert version_numbers("v4") == ()
