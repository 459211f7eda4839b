"""Keeps secrets out of what the worker sends: every occurrence is replaced by as many asterisks."""

from collections.abc import Iterable
from typing import BinaryIO

from msgspec import Struct

SHORTEST = 6
"""Shorter values would blacken half of what a trainer prints."""


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
        if not secrets:
            return data
        hidden = bytearray(data)
        for value in secrets:
            at = data.find(value)
            while at >= 0:
                hidden[at : at + len(value)] = b"*" * len(value)
                at = data.find(value, at + 1)
        return bytes(hidden)

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
        longest = max(map(len, self.values), default=1) - 1
        return next(
            (
                size
                for size in range(min(longest, len(data)), 0, -1)
                if any(value.startswith(data[-size:]) for value in self.values)
            ),
            0,
        )


NO_MASK = Mask()
