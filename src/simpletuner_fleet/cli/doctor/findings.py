"""What a check found: good, doubtful or bad, with one thing to do about it."""

from enum import StrEnum
from typing import NamedTuple


class Mark(StrEnum):
    GOOD = "✓"
    DOUBT = "!"
    BAD = "✗"


class Finding(NamedTuple):
    mark: Mark
    about: str
    what: str
    fix: str = ""


def good(about: str, what: str) -> Finding:
    return Finding(Mark.GOOD, about, what)


def doubt(about: str, what: str, fix: str) -> Finding:
    return Finding(Mark.DOUBT, about, what, fix)


def bad(about: str, what: str, fix: str) -> Finding:
    return Finding(Mark.BAD, about, what, fix)
