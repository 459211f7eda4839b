"""Chooses which bytes of a trainer's output are sent: all, except most updates of a progress line.

Text up to and including the first carriage return of a line is sent as it comes. What follows in the same line are
updates, each ended by carriage returns: one per second is kept, and always the one that a newline ends. An update
that is held back because its end has not come is released after a second of silence. The result depends on the bytes
and on when each was seen, never on how they were cut into pieces.
"""

import re
from typing import NamedTuple

EVERY_S = 1.0
"""One update of a line in this time is kept."""
QUIET_S = 1.0
LONGEST_UPDATE = 16 * 1024
"""What is longer is no progress bar and goes as it comes."""

# A run of carriage returns counts as one end; it is cut at 64 so that no run has to be held back whole.
_UPDATE = re.compile(rb"([^\r\n]*+)(?:\r{0,63}+(\n)|\r{64}|\r++(?=[^\r\n]))")
_TEXT = re.compile(rb"[^\r\n]*+")


class ByteRange(NamedTuple):
    """Names bytes `start` to `end` of the output, seen at `at`; `folding`: an update of the same line follows them."""

    start: int
    end: int
    at: float
    folding: bool


class Fold:
    def __init__(self, position: int = 0, folding: bool = False, kept_at: float = 0.0) -> None:
        """Begins as it was after the last kept bytes, which is all that a process before this one has to hand on."""
        self._position = position
        """Of the first byte that is held, or will come next."""
        self._folding = folding
        self._kept_at = kept_at
        self._held = b""
        self._seen_at = kept_at
        self._kept: list[ByteRange] = []

    @property
    def reached(self) -> int:
        """Returns how much of the output was fed."""
        return self._position + len(self._held)

    def feed(self, data: bytes, at: float) -> list[ByteRange]:
        self._let_go_if_quiet(at)
        if not data:
            return self._taken()
        self._seen_at = at
        self._decide(self._held + data if self._held else data)
        return self._taken()

    def tick(self, at: float) -> list[ByteRange]:
        """Finds out earlier what the next `feed` would find out by itself."""
        self._let_go_if_quiet(at)
        return self._taken()

    def finish(self) -> list[ByteRange]:
        """Returns what was held back, because nothing more will come."""
        while self._held:
            self._let_go()
        return self._taken()

    def _taken(self) -> list[ByteRange]:
        kept, self._kept = self._kept, []
        return kept

    def _let_go_if_quiet(self, at: float) -> None:
        while self._held and at - self._seen_at >= QUIET_S:
            self._let_go()

    def _let_go(self) -> None:
        held, self._folding = self._held, False
        self._decide(held)

    def _decide(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._folding:
                at, held = self._update(data, at)
                if held:
                    break
            else:
                cut = data.find(b"\r", at)
                end = cut + 1 or len(data)
                self._folding = cut >= 0
                self._keep(end - at)
                at = end
        self._held = data[at:]

    def _update(self, data: bytes, at: int) -> tuple[int, bool]:
        """Returns where the next one begins, and whether it has to be held back from there."""
        match = _UPDATE.match(data, at)
        length = match.end(1) - at if match else _length(data, at)
        if length >= LONGEST_UPDATE:
            self._folding = False
            return at, False
        if match is None:
            return at, True
        if match[2]:
            self._folding = False
            self._keep(match.end() - at)
        elif self._seen_at - self._kept_at >= EVERY_S:
            self._keep(match.end() - at)
        else:
            self._position += match.end() - at
        return match.end(), False

    def _keep(self, size: int) -> None:
        start, self._position = self._position, self._position + size
        self._kept_at = self._seen_at
        last = self._kept[-1] if self._kept else None
        if last and last.end == start and last.at == self._seen_at:
            start = self._kept.pop().start
        self._kept.append(ByteRange(start, self._position, self._seen_at, self._folding))


def _length(data: bytes, at: int) -> int:
    text = _TEXT.match(data, at)
    return text.end() - at if text else 0
