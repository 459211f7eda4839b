"""Takes pieces from a trainer's output: a chunk to send on, and the last lines for an error message."""

import re
from pathlib import Path

from msgspec import Struct

from simpletuner_fleet.agent.ship.masking import NO_MASK, Mask
from simpletuner_fleet.core.cutting import from_line_start
from simpletuner_fleet.trainers.job_files import open_job_file

LAST_LINES = 80
"""A launcher of several processes says thirty lines after the one that names the cause."""
LAST_LINES_BYTES = 16 * 1024

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Chunk(Struct, frozen=True):
    """Holds a piece of a trainer's output to be sent.

    `offset` counts what is sent, not what was printed; `gap` bytes were left out just before this chunk.
    """

    offset: int
    data: bytes
    gap: int = 0
    times: tuple[tuple[int, float], ...] = ()
    """Offsets, each with the time at which the bytes from there on were seen."""

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data)


def last_lines(
    path: Path, count: int = LAST_LINES, max_bytes: int = LAST_LINES_BYTES, mask: Mask = NO_MASK
) -> str:
    """Returns the end of the output as harmless text, in whole lines: progress bars are folded, escape sequences and
    controls left out.

    Of what cannot be read it returns nothing: an attempt ends all the same.
    """
    try:
        with open_job_file(path) as file:
            size = file.seek(0, 2)
            start = max(0, size - max_bytes - 1)
            text = mask.read(file, start, size - start, ended=True).decode("utf-8", "replace")
    except OSError:
        return ""
    if size > max_bytes:
        text = from_line_start(text)
    lines = [_harmless(line) for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    shown = "\n".join(lines[-count:])
    return mask.text(shown)  # again: a secret in which a colour changes is whole only now


def _harmless(line: str) -> str:
    """Returns what a terminal would show of the line: after a carriage return the line is written anew."""
    rewrites = [part for part in line.split("\r") if part]
    return _UNSAFE.sub("", _ESCAPES.sub("", rewrites[-1])) if rewrites else ""
