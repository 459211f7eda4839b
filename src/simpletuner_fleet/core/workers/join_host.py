"""Chooses the orchestrator's address that another machine is told, and says how certain it is."""

from collections.abc import Sequence
from enum import StrEnum
from ipaddress import ip_address

from msgspec import Struct

ANY_HOST = frozenset({"", "0.0.0.0", "::"})
"""What a server is bound to that listens on every address of its machine."""


class HowSure(StrEnum):
    NAMED = "named"
    """Whoever runs the server has said so."""
    CALLED = "called"
    """Somebody who asked came by it from elsewhere, or it is the only one there is."""
    GUESSED = "guessed"
    """One of several addresses of the machine."""
    LOOPBACK = "loopback"
    """Nobody but the machine itself comes in by it."""


class JoinHost(Struct, frozen=True, kw_only=True):
    """Holds the address by which other machines find the orchestrator, and how certain it is."""

    host: str
    sure: HowSure
    others: tuple[str, ...] = ()
    """Further addresses by which it may be found, the likeliest first."""


def join_host(bound: str, called: str, addresses: Sequence[str]) -> JoinHost:
    """Returns the address for other machines.

    `bound` is what the server listens on, `called` the host that the caller named, and `addresses` are those of the
    machine, the one of the default route first.
    """
    if is_own(bound):
        return JoinHost(host=called, sure=HowSure.LOOPBACK)
    if not is_own(called):
        return JoinHost(host=called, sure=HowSure.CALLED)
    if bound not in ANY_HOST:
        return JoinHost(host=bound, sure=HowSure.CALLED)
    only_old = bound == "0.0.0.0"
    leading_out = [one for one in addresses if not is_own(one) and not (only_old and ":" in one)]
    if not leading_out:
        return JoinHost(host=called, sure=HowSure.LOOPBACK)
    first, *others = leading_out
    return JoinHost(host=first, sure=HowSure.GUESSED if others else HowSure.CALLED, others=tuple(others))


def is_own(host: str) -> bool:
    """Tells whether a host's name or address means the very machine that uses it."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
