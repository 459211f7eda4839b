"""Limits how often somebody may call, with token buckets in bounded memory and a clock that is passed in."""

import ipaddress
from collections.abc import Callable

from msgspec import Struct

from simpletuner_fleet.core.errors import TooManyRequests
from simpletuner_fleet.http.access.networks import parse_address

MAX_KEYS = 20_000


class Rate(Struct, frozen=True):
    per_s: float
    burst: float


class RateLimits(Struct, frozen=True, kw_only=True):
    """Sets the rate limits of requests and of failed credentials.

    They are generous: they stop a runaway loop or a flood, never an honest fleet.
    """

    worker: Rate = Rate(200, 1_000)
    """The limit for each worker."""
    user: Rate = Rate(5_000, 10_000)
    """The limit for each API token."""
    public: Rate = Rate(500, 2_000)
    """The limit for each address, on routes without a credential."""
    failed_proof: Rate = Rate(20 / 60, 20)
    """How many wrong credentials an address may show."""
    noted_failure: Rate = Rate(10 / 60, 10)
    """How many failures of an address are worth an audit entry."""
    noted_failures_overall: Rate = Rate(1, 60)


class Buckets:
    """Holds token buckets, one per key. When there are too many keys, the one longest untouched is dropped."""

    def __init__(self, rate: Rate, monotonic: Callable[[], float], max_keys: int = MAX_KEYS) -> None:
        self._rate = rate
        self._monotonic = monotonic
        self._max = max_keys
        self._buckets: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: str) -> float:
        """Returns 0.0 if one more is allowed, else the seconds until it would be."""
        now, rate = self._monotonic(), self._rate
        known = self._buckets.pop(key, None)
        left, at = known or (rate.burst, now)
        left += (now - at) * rate.per_s
        if left > rate.burst:
            left = rate.burst
        wait_s = 0.0 if left >= 1 else (1 - left) / rate.per_s
        self._buckets[key] = (left if wait_s else left - 1, now)
        if known is None and len(self._buckets) > self._max:
            del self._buckets[next(iter(self._buckets))]
        return wait_s

    def give_back(self, key: str) -> None:
        """Returns what was taken, since it turned out not to be something that is limited."""
        left, at = self._buckets.get(key, (self._rate.burst, self._monotonic()))
        if key in self._buckets:
            self._buckets[key] = (min(self._rate.burst, left + 1), at)

    def spend(self, key: str) -> None:
        wait_s = self.take(key)
        if wait_s:
            raise TooManyRequests(wait_s)


def address_key(ip: str) -> str:
    """Returns one key for one customer: an IPv6 customer holds at least a /64."""
    address = parse_address(ip)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return ip
