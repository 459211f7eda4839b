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
    """Holds token buckets, one per key: each is the moment at which it will be full again.

    When there are too many keys, the one longest untouched is dropped.
    """

    def __init__(self, rate: Rate, monotonic: Callable[[], float], max_keys: int = MAX_KEYS) -> None:
        self._token_s = 1 / rate.per_s
        """How long a token takes to come back."""
        self._whole_s = rate.burst / rate.per_s
        """How long an empty bucket takes to be full."""
        self._monotonic = monotonic
        self._max = max_keys
        self._full_at: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: str) -> float:
        """Returns 0.0 if one more is allowed, else the seconds until it would be."""
        now = self._monotonic()
        known = self._full_at.pop(key, None)
        full_at = now if known is None or known < now else known
        wait_s = full_at + self._token_s - now - self._whole_s
        if wait_s <= 0:
            full_at += self._token_s
        self._full_at[key] = full_at
        if known is None and len(self._full_at) > self._max:
            del self._full_at[next(iter(self._full_at))]
        return wait_s if wait_s > 0 else 0.0

    def give_back(self, key: str) -> None:
        """Returns what was taken, since it turned out not to be something that is limited."""
        if key in self._full_at:
            self._full_at[key] -= self._token_s

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
