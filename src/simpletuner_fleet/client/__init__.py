"""Holds what every client of an orchestrator shares, and the client for Python programs.

    from simpletuner_fleet.client import Fleet

    with Fleet() as fleet:
        job = fleet.wait(fleet.submit("my-config"))

The worker and the command line use its lower half: whom to trust, and what to say when nobody can be reached. So the
upper half is imported only when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simpletuner_fleet.client.async_fleet import AsyncFleetClient as AsyncFleet
    from simpletuner_fleet.client.curves import Metrics
    from simpletuner_fleet.client.errors import (
        ClientError,
        InvalidRequest,
        JobFailed,
        NoSuchThing,
        NotLetIn,
        NotNow,
        ProblemError,
        TooBusy,
        UnreachableError,
        WaitTimeout,
    )
    from simpletuner_fleet.client.fleet import FleetClient as Fleet

__all__ = [
    "AsyncFleet",
    "ClientError",
    "Fleet",
    "InvalidRequest",
    "JobFailed",
    "Metrics",
    "NoSuchThing",
    "NotLetIn",
    "NotNow",
    "ProblemError",
    "TooBusy",
    "UnreachableError",
    "WaitTimeout",
]

ELSEWHERE = {
    "AsyncFleet": ("async_fleet", "AsyncFleetClient"),
    "Fleet": ("fleet", "FleetClient"),
    "Metrics": ("curves", "Metrics"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, known_as = ELSEWHERE.get(name, ("errors", name))
    return getattr(import_module(f"{__name__}.{module}"), known_as)
