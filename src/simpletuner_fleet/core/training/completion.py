"""Decides whether a training is complete: some programs exit with code 0 after an error, too."""

import re
from collections.abc import Sequence

from msgspec import Struct

NOT_CHECKED = "the trainer ended with exit code 0, but whether the training is complete could not be checked"
_TRACEBACK = "Traceback (most recent call last):"
_RANK = re.compile(r"^(?:\[(?:rank ?|default)?\d+\]: ?)+")
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?::|$)")


class CleanExit(Struct, frozen=True, kw_only=True):
    """Holds what was seen of a trainer that ended by itself with exit code 0."""

    last_lines: str = ""
    step: int | None = None
    total: int | None = None


def shortfall(ended: CleanExit, *, lines_after_error: int = 0) -> str | None:
    """Returns why the training is not complete; None where nothing contradicts it."""
    error = error_at_end(ended.last_lines, lines_after_error)
    if ended.total is not None and (ended.step or 0) < ended.total:
        said = f": {error}" if error else ""
        return f"the trainer ended at step {ended.step or 0} of {ended.total} with exit code 0{said}"
    return f"the trainer ended with an error and exit code 0: {error}" if error else None


def error_at_end(last_lines: str, lines_after: int = 0) -> str | None:
    """Returns the exception of a traceback that is the last thing said; `lines_after` may follow it.

    A program that printed one and went on has dealt with it.
    """
    lines = [_RANK.sub("", line) for line in re.split(r"[\r\n]+", last_lines) if line.strip()]
    begins = [at for at, line in enumerate(lines) if line.strip() == _TRACEBACK]
    if not begins:
        return None
    at = _exception_after(lines, begins[-1] + 1)
    return None if at is None or len(lines) - at - 1 > lines_after else lines[at].strip()


def _exception_after(lines: Sequence[str], begin: int) -> int | None:
    """Returns the line that names the exception: frames are indented, so it is the first that is not."""
    for at in range(begin, len(lines)):
        if not lines[at].startswith((" ", "\t")):
            return at if _EXCEPTION.match(lines[at]) else None
    return None
