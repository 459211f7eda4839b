"""Gives up an attempt whose worker is gone, or does not have it any more."""

from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.provisioning.machine import MachineEndReason
from simpletuner_fleet.core.provisioning.pool import POOL_LABEL
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.publishing import open_with_end


def give_up(transaction: Transaction, attempt: Attempt, why: str) -> None:
    """Gives the attempt up. Its job is tried again or fails; a job that had trained is complete."""
    job, worker = transaction.job(attempt.job_id), transaction.tx.worker(attempt.worker_id)
    transaction.apply(
        lifecycle.lost(
            job,
            attempt,
            why,
            transaction.policy,
            now=transaction.now,
            taken_away=worker is not None
            and (worker.may_be_taken_away or _has_vanished(transaction, worker)),
        )
    )
    open_with_end(transaction, transaction.job(job.id))


def _has_vanished(transaction: Transaction, worker: Worker) -> bool:
    """Tells whether the provider no longer lists the worker's machine: then no job has ended it."""
    if POOL_LABEL not in worker.labels:
        return False
    rows = transaction.tx.machines_since(transaction.now - 1.0)
    machine = next((one for one in rows if one.worker_id == worker.id), None)
    return machine is not None and (
        machine.missing_since is not None or machine.why == MachineEndReason.VANISHED
    )
