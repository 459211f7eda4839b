"""Caches, in bounded size, what never changes once it is stored."""

from collections import OrderedDict


class RememberedBytes:
    """Caches bytes by key. When it holds too much, it drops what was used longest ago."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._items: OrderedDict[str, bytes] = OrderedDict()
        self._total = 0

    def get(self, key: str) -> bytes | None:
        value = self._items.get(key)
        if value is not None:
            self._items.move_to_end(key)
        return value

    def put(self, key: str, value: bytes) -> None:
        self._total += len(value) - len(self._items.pop(key, b""))
        self._items[key] = value
        while self._total > self._most_bytes:
            self._total -= len(self._items.popitem(last=False)[1])

    def drop(self, key: str) -> None:
        self._total -= len(self._items.pop(key, b""))

    def clear(self) -> None:
        self._items.clear()
        self._total = 0
