"""Determines from the store what the machines of all pools do now."""

from collections.abc import Sequence

from simpletuner_fleet.core.provisioning.idleness import ATTEMPTS_LOOKED_AT
from simpletuner_fleet.core.provisioning.machine import IN_USE, Machine
from simpletuner_fleet.core.provisioning.upkeep import WorkerFacts, facts_of
from simpletuner_fleet.core.provisioning.useless import Useless, useless
from simpletuner_fleet.engine.visibility import unrestricted
from simpletuner_fleet.ports import View


def useless_machines(view: View, machines: Sequence[Machine], now: float) -> dict[str, Useless]:
    """Returns, by id, the machines that cost and do nothing: whoever looks, jobs that they may not see count as well."""
    everything = unrestricted(view)
    judged = ((machine.id, useless(machine, _worker_of(everything, machine), now)) for machine in machines)
    return {machine_id: one for machine_id, one in judged if one is not None}


def _worker_of(view: View, machine: Machine) -> WorkerFacts | None:
    worker = view.worker(machine.worker_id) if machine.state in IN_USE and machine.worker_id else None
    if worker is None:
        return None
    busy = bool(view.live_attempts_of_worker(worker.id))
    newest = [] if busy else view.attempts_of_worker(worker.id, ATTEMPTS_LOOKED_AT)
    return facts_of(machine, worker, newest, busy=busy)
