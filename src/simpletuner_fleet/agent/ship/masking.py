"""Keeps secrets out of what the worker sends: every occurrence is replaced by as many asterisks."""

from collections.abc import Iterable
from typing import BinaryIO

from msgspec import Struct

from simpletuner_fleet.agent.guard.shim_report import hidden_in

SHORTEST = 6
"""Shorter values would blacken half of what a trainer prints."""
HEAD_BYTES = 32
MOST_LOOKS = 100


class Mask(Struct, frozen=True):
    values: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, values: Iterable[str]) -> "Mask":
        return cls(tuple({value.encode() for value in values if len(value) >= SHORTEST}))

    def text(self, text: str) -> str:
        return self.hide(text.encode("utf-8", "replace")).decode("utf-8", "replace") if self.values else text

    def hide(self, data: bytes) -> bytes:
        """Returns as many bytes; occurrences that overlap are hidden wholly."""
        secrets = [value for value in self.values if value in data]
        return hidden_in(data, secrets) if secrets else data

    def read(self, file: BinaryIO, start: int, length: int, *, ended: bool) -> bytes:
        """Returns a piece of the file as it may be seen, whatever lies across its borders.

        While more may come, an end that could be the beginning of a secret is left for the next time.
        """
        around = max(map(len, self.values), default=1) - 1
        first = max(0, start - around)
        file.seek(first)
        data = file.read(start - first + length + around)
        end = len(data) if ended else len(data) - self._begun(data)
        return self.hide(data)[start - first : min(end, start - first + length)]

    def _begun(self, data: bytes) -> int:
        """Returns how many bytes at the end could be the beginning of a secret."""
        return max((_begun(data, value) for value in self.values), default=0)


def _begun(data: bytes, value: bytes) -> int:
    """Returns how many bytes at the end could be the beginning of the value.

    A value that repeats itself may begin in very many places: beyond `MOST_LOOKS` the next is taken for one.
    """
    at, looks, head = max(0, len(data) - len(value) + 1), 0, value[:HEAD_BYTES]
    while (at := data.find(head, at)) >= 0:
        if looks == MOST_LOOKS or value.startswith(data[at:]):
            return len(data) - at
        at, looks = at + 1, looks + 1
    sizes = range(min(len(head), len(data)), 0, -1)
    return next((size for size in sizes if size < len(value) and head.startswith(data[-size:])), 0)


NO_MASK = Mask()
