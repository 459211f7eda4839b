"""Keeps a sorted collection of numbers that stays fast when it is large, to count how many are up to one."""

from bisect import bisect_left, bisect_right, insort

LARGEST_CHUNK = 1024


class Ranks:
    """Keeps numbers sorted, and quickly counts how many are up to a given one.

    It is kept in sorted chunks of bounded size, so that no change moves more than one chunk.
    """

    def __init__(self) -> None:
        self._chunks: list[list[float]] = []
        self._firsts: list[float] = []
        self._count = 0

    def add(self, rank: float) -> None:
        self._count += 1
        if not self._chunks:
            self._chunks, self._firsts = [[rank]], [rank]
            return
        at = max(0, bisect_right(self._firsts, rank) - 1)
        chunk = self._chunks[at]
        insort(chunk, rank)
        self._firsts[at] = chunk[0]
        if len(chunk) > LARGEST_CHUNK:
            half = len(chunk) // 2
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]
            self._firsts[at : at + 1] = [chunk[0], chunk[half]]

    def remove(self, rank: float) -> None:
        """Removes one such number, if there is one."""
        at = max(0, bisect_left(self._firsts, rank) - 1)
        while at < len(self._chunks) and self._firsts[at] <= rank:
            chunk = self._chunks[at]
            place = bisect_left(chunk, rank)
            if place < len(chunk) and chunk[place] == rank:
                self._remove_at(at, place)
                return
            at += 1

    def _remove_at(self, at: int, place: int) -> None:
        chunk = self._chunks[at]
        del chunk[place]
        self._count -= 1
        if chunk:
            self._firsts[at] = chunk[0]
        else:
            del self._chunks[at], self._firsts[at]

    def up_to(self, rank: float) -> int:
        """Counts from the nearer end: whoever has just joined asks most often, and stands last."""
        at = bisect_right(self._firsts, rank)
        if at == 0:
            return 0
        here = bisect_right(self._chunks[at - 1], rank)
        if at <= len(self._chunks) // 2:
            return sum(map(len, self._chunks[: at - 1])) + here
        return self._count - sum(map(len, self._chunks[at - 1 :])) + here

    def __len__(self) -> int:
        return self._count
