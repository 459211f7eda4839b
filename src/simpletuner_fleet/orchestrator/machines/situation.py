"""Gathers what a decision about machines has to know of the fleet, from the transaction in which it is made."""

from collections.abc import Mapping, Sequence

from simpletuner_fleet.core.placement.ordering import place_of
from simpletuner_fleet.core.placement.place import NoRoom, place
from simpletuner_fleet.core.provisioning.growth import Demand, FleetNow
from simpletuner_fleet.core.provisioning.idleness import ATTEMPTS_LOOKED_AT
from simpletuner_fleet.core.provisioning.machine import IN_USE, Machine, MachineState
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.core.provisioning.upkeep import WorkerFacts, facts_of
from simpletuner_fleet.core.workers.worker import Connection
from simpletuner_fleet.engine.memory.running import running_on
from simpletuner_fleet.engine.transaction import Transaction

JOBS_CONSIDERED = 256
"""In one round; the next one comes in a moment."""


def worker_facts(transaction: Transaction, machines: Sequence[Machine]) -> dict[str, WorkerFacts]:
    facts: dict[str, WorkerFacts] = {}
    tx = transaction.tx
    for machine in machines:
        if machine.state not in IN_USE:
            continue
        worker = tx.worker(machine.worker_id)
        if worker is not None:
            busy = bool(transaction.live_attempts(worker.id))
            newest = [] if busy else tx.attempts_of_worker(worker.id, ATTEMPTS_LOOKED_AT)
            facts[worker.id] = facts_of(machine, worker, newest, busy=busy)
    return facts


def fleet_now(
    transaction: Transaction,
    pools: Sequence[MachinePool],
    machines: Sequence[Machine],
    facts: Mapping[str, WorkerFacts],
    lead_s: float,
    listening_since: float,
) -> FleetNow:
    roster, now = transaction.index.roster, transaction.now
    holds = transaction.index.holds_placements(now) or not any(pool.brings_machines for pool in pools)
    demands = [] if holds else _demands(transaction)
    busy = [
        (worker, running_on(transaction.tx, worker, now))
        for worker in (roster.workers.values() if demands else ())
        if roster.occupancy(worker.id).live
    ]
    arriving = [
        machine.id
        for machine in machines
        if machine.state is MachineState.JOINED and _arrives(transaction, machine, facts)
    ]
    return FleetNow(
        now=now,
        demands=demands,
        busy=busy,
        limits=transaction.limits,
        running=roster.running,
        running_by_owner=dict(roster.running_by_owner),
        running_by_team=dict(roster.running_by_team),
        team_allowlists=roster.allowlists,
        prices=roster.prices,
        lead_s=lead_s,
        listening_since=listening_since,
        arriving=frozenset(arriving),
    )


def _demands(transaction: Transaction) -> list[Demand]:
    """Returns the first job of each line that has no room now, in the order of the queue."""
    roster, left = transaction.index.roster, JOBS_CONSIDERED
    heads = [
        transaction.job(head) for one in roster.lines.classes_with_jobs() if (head := roster.lines.head(one))
    ]
    demands: list[Demand] = []
    for job in sorted(heads, key=place_of):
        if left > 0 and isinstance(place(roster, job, transaction.limits), NoRoom):
            demand = Demand(job=job, count=min(left, roster.lines.count(job.line)))
            demands.append(demand)
            left -= demand.count
    return demands


def _arrives(transaction: Transaction, machine: Machine, facts: Mapping[str, WorkerFacts]) -> bool:
    known = facts.get(machine.worker_id)
    if known is None or known.connected or known.busy:
        return False
    worker = transaction.tx.worker(machine.worker_id)
    return worker is not None and worker.connection is not Connection.OFFLINE
