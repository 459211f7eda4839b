"""Writes a machine with all that follows from it: the audit entry, its worker's drain, and its worker's end."""

from typing import Any

from simpletuner_fleet.core.events import ORCHESTRATOR, Actor, Event, EventType
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.provisioning.money import cost
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.workers.administer import drain_within
from simpletuner_fleet.orchestrator.workers.losing import give_up

DRAIN_NOTE = "its machine is not needed any more"
ENDS_WORK = frozenset({MachineState.DRAINING, MachineState.DESTROYING})


def save_machine(
    transaction: Transaction, before: Machine, after: Machine, actor: Actor = ORCHESTRATOR
) -> None:
    transaction.tx.put_machine(after)
    if before.state is after.state:
        return
    transaction.record(machine_event(after, actor, transaction.now))
    _publish(transaction, after)
    if not after.worker_id or transaction.tx.worker(after.worker_id) is None:
        return
    if after.state in ENDS_WORK:
        stops = after.stop_by is not None
        drain_within(transaction, after.worker_id, DRAIN_NOTE, ORCHESTRATOR, 0.0 if stops else None)
    elif after.state is MachineState.GONE:
        _end_worker(transaction, after)


def _publish(transaction: Transaction, machine: Machine) -> None:
    """Publishes news of a machine with whom its pool is kept for, so that a watcher gets only what they may see."""
    pool = transaction.tx.pool(machine.pool)
    kept_for = {"audience": pool.audience} if pool else {}
    transaction.publish("machine", id=machine.id, status=str(machine.state), **kept_for)


def _end_worker(transaction: Transaction, machine: Machine) -> None:
    """Deletes the worker of a machine that is gone: what it ran is lost at once, and nobody waits for it."""
    for attempt in transaction.live_attempts(machine.worker_id):
        give_up(transaction, attempt, "its machine is gone")
    worker = transaction.worker(machine.worker_id)
    transaction.record(
        Event(
            type=EventType.WORKER_CLEANED_UP,
            actor=ORCHESTRATOR,
            target_type="worker",
            target_id=worker.id,
            details={"name": worker.name},
        )
    )
    transaction.delete_worker(worker)
    transaction.cut(worker.id, "cleaned_up")


def machine_event(machine: Machine, actor: Actor = ORCHESTRATOR, now: float | None = None) -> Event:
    details: dict[str, Any] = {
        "pool": machine.pool,
        "name": machine.name,
        "hourly_micros": machine.hourly_micros,
    }
    for field in ("provider_id", "why", "detail", "worker_id", "for_job"):
        if value := getattr(machine, field):
            details[field] = value
    if now is not None and machine.state is MachineState.GONE:
        details["cost_micros"] = cost(machine, now)
    return Event(
        type=EventType(f"machine.{machine.state}"),
        actor=actor,
        target_type="machine",
        target_id=machine.id,
        details=details,
    )
