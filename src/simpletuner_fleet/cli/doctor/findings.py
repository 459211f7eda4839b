"""Defines what a check finds: good, doubtful or bad, with one thing to do about it."""

from enum import StrEnum
from typing import NamedTuple

from simpletuner_fleet.languages import current
from simpletuner_fleet.languages.details import detail_text


class FindingMark(StrEnum):
    GOOD = "✓"
    DOUBT = "!"
    BAD = "✗"


class CheckFinding(NamedTuple):
    mark: FindingMark
    about: str
    what: str
    fix: str = ""


def good(about: str, what: str) -> CheckFinding:
    return CheckFinding(FindingMark.GOOD, about, what)


def doubt(about: str, what: str, fix: str) -> CheckFinding:
    return CheckFinding(FindingMark.DOUBT, about, what, fix)


def bad(about: str, what: str, fix: str) -> CheckFinding:
    """Returns what is wrong; what an error of the core says is translated."""
    words = current()
    return CheckFinding(FindingMark.BAD, about, detail_text(words, what), detail_text(words, fix))
