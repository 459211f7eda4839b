"""Provides an immutable map of which a changed copy costs little, however much is in it."""

from collections.abc import Iterator, Mapping

MOST_ABOVE = 256
"""So much lies above before both become one: a copy costs that much, and each entry a little of a whole copy."""


class Layered(Mapping[str, str]):
    __slots__ = ("_above", "_below")

    def __init__(self, below: dict[str, str], above: dict[str, str] | None = None) -> None:
        self._below = below
        self._above = above or {}

    def with_one(self, key: str, value: str) -> "Layered":
        above = {**self._above, key: value}
        return Layered({**self._below, **above}) if len(above) > MOST_ABOVE else Layered(self._below, above)

    def __getitem__(self, key: str) -> str:
        return self._above[key] if key in self._above else self._below[key]

    def __iter__(self) -> Iterator[str]:
        yield from self._below
        yield from (key for key in self._above if key not in self._below)

    def __len__(self) -> int:
        return len(self._below) + sum(key not in self._below for key in self._above)


NOTHING = Layered({})
