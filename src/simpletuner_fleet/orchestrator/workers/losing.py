"""An attempt is given up: its worker is gone, or has it no more."""

from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.publishing import open_with_end


def give_up(transaction: Transaction, attempt: Attempt, why: str) -> None:
    """Its job is tried again or fails; one that had trained is complete, with whatever follows from that."""
    job, worker = transaction.job(attempt.job_id), transaction.tx.worker(attempt.worker_id)
    transaction.apply(
        lifecycle.lost(
            job,
            attempt,
            why,
            transaction.policy,
            now=transaction.now,
            taken_away=worker is not None and worker.may_be_taken_away,
        )
    )
    open_with_end(transaction, transaction.job(job.id))
