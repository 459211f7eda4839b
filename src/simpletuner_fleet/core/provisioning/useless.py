"""Finds machines that cost and do nothing now.

What is not known counts as doing nothing: it costs, and somebody has to look.
"""

from enum import StrEnum

from msgspec import Struct

from simpletuner_fleet.core.provisioning.machine import IN_USE, Machine, MachineState
from simpletuner_fleet.core.provisioning.upkeep import WorkerFacts

SHORTEST_S = 60.0
"""Between two jobs, and while a provider takes a breath, nothing needs to be said."""


class WhyUseless(StrEnum):
    IDLE = "idle"
    NOT_JOINED = "not_joined"
    SILENT = "silent"
    """Its worker is not heard: whether it does anything is not known."""
    NOT_GONE = "not_gone"
    """It is to be destroyed, and its provider shows it all the same."""


class Useless(Struct, frozen=True, kw_only=True):
    use: WhyUseless
    since: float


def useless(machine: Machine, worker: WorkerFacts | None, now: float) -> Useless | None:
    """Returns why the machine is useless; None if it works, costs nothing, or was without work only briefly."""
    if not machine.hourly_micros or machine.state in (MachineState.WANTED, MachineState.GONE):
        return None
    idleness = _idleness(machine, worker)
    return idleness if idleness is not None and now - idleness.since >= SHORTEST_S else None


def _idleness(machine: Machine, worker: WorkerFacts | None) -> Useless | None:
    if machine.state is MachineState.DESTROYING:
        return Useless(use=WhyUseless.NOT_GONE, since=machine.destroying_at or machine.created_at)
    if machine.state not in IN_USE:
        return Useless(use=WhyUseless.NOT_JOINED, since=machine.asked_at or machine.created_at)
    if worker is None or not worker.connected:
        known = worker.offline_since if worker else None
        return Useless(use=WhyUseless.SILENT, since=known or machine.joined_at or machine.created_at)
    return None if worker.busy else Useless(use=WhyUseless.IDLE, since=worker.idle_since)
