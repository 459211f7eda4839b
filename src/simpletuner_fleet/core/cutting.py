"""Cuts long texts so that it shows: to whole lines, or to one line with an ellipsis where it was cut."""

from collections.abc import Iterable
from itertools import islice

ELLIPSIS = "…"


def tail_of(text: str, limit: int) -> str:
    """Returns the end of a text, of so many characters at most and from the beginning of a line."""
    if len(text) <= limit:
        return text
    # One character more tells whether the rest begins a line.
    kept = from_line_start(text[-limit - 1 :])
    return kept if len(kept) <= limit else ELLIPSIS + kept[-limit + 1 :]


def from_line_start(piece: str) -> str:
    """Returns the end of a text without the line that was cut; `piece` begins one character before it.

    Where there is no other line, it returns its end with an ellipsis.
    """
    cut, _, whole = piece.partition("\n")
    return whole if whole.strip() else ELLIPSIS + cut[1:]


def first_line(text: str) -> str:
    """Returns the first line with anything on it, and nothing where there is none."""
    return next(iter(text.strip().splitlines()), "")


def excerpt(line: str, limit: int, around: int = 0) -> str:
    """Returns a line of so many characters at most, in which the one at `around` is still to be seen."""
    if len(line) <= limit:
        return line
    first = max(0, min(around - limit // 2, len(line) - limit))
    last = first + limit
    head = ELLIPSIS + line[first + 1 : last] if first else line[:last]
    return head if last == len(line) else head[:-1] + ELLIPSIS


def first_few(texts: Iterable[str], most: int) -> str:
    """Returns the first of them in a row, and how many more there are."""
    rest = iter(texts)
    few = list(islice(rest, most))
    more = sum(1 for _ in rest)
    return "; ".join([*few, f"{more} more"] if more else few)
