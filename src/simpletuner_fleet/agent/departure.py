"""Describes why an agent leaves, and maps that to the program's exit status."""

from msgspec import Struct

from simpletuner_fleet.client import troubles


class Departure(Struct, frozen=True):
    """Says why the agent leaves; `code` names the trouble if it is one."""

    reason: str
    code: str | None = None
    may_return: bool = False
    """Its machine is said to be taken away: if it is there afterwards all the same, the worker goes on."""


def exit_status(departure: Departure) -> int:
    if departure.code is None:
        return 0
    known = troubles.TROUBLES.get(departure.code)
    return known.exit if known else troubles.FAILED
