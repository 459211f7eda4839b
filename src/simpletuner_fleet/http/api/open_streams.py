"""Limits how many streams, followed logs or searches a caller, an address and all together may have open at once."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from simpletuner_fleet.core.errors import TooManyRequests
from simpletuner_fleet.http.access.limits import address_key

TRY_AGAIN_S = 10.0


class Most(Struct, frozen=True):
    per_caller: int
    per_address: int
    """Several people may sit behind one address, and one person may have several accounts."""
    in_all: int
    try_again_s: float = TRY_AGAIN_S


STREAMS = Most(per_caller=64, per_address=256, in_all=2_000)
FOLLOWERS = Most(per_caller=32, per_address=128, in_all=512)
SEARCHES = Most(per_caller=2, per_address=4, in_all=4, try_again_s=1.0)
"""Each takes the processor for about a second."""


class Open(Struct):
    """Counts what is open of one kind, by caller and by address, and refuses more than is allowed."""

    most: Most
    by_caller: Counter[str] = field(default_factory=Counter)
    by_address: Counter[str] = field(default_factory=Counter)

    def enter(self, caller: str, ip: str) -> None:
        """Counts one more, or refuses it."""
        most, address = self.most, address_key(ip)
        if (
            self.by_caller[caller] >= most.per_caller
            or self.by_address[address] >= most.per_address
            or self.by_caller.total() >= most.in_all
        ):
            raise TooManyRequests(most.try_again_s)
        self.by_caller[caller] += 1
        self.by_address[address] += 1

    def leave(self, caller: str, ip: str) -> None:
        _less(self.by_caller, caller)
        _less(self.by_address, address_key(ip))

    @contextmanager
    def one_more(self, caller: str, ip: str) -> Iterator[None]:
        self.enter(caller, ip)
        try:
            yield
        finally:
            self.leave(caller, ip)


def _less(open_: Counter[str], key: str) -> None:
    open_[key] -= 1
    if open_[key] <= 0:
        del open_[key]
