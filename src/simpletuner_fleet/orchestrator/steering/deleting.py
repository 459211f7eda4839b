"""Deletes ended jobs: their record at once, their files with the sweep of the storage, what they have used never."""

from simpletuner_fleet.core.errors import no_such_job
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.requests import deleting
from simpletuner_fleet.core.jobs.requests.deleting import DeletedJob
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction


async def delete(fleet: Fleet, job_id: str, actor: Actor) -> DeletedJob:
    """Deletes a job. A repeated call gets the same answer."""
    return await fleet.act(lambda transaction: delete_in(transaction, job_id, actor))


def delete_in(transaction: Transaction, job_id: str, actor: Actor) -> DeletedJob:
    tx = transaction.tx
    job = tx.job(job_id)
    if job is None:
        known = tx.deleted_job(job_id)
        if known is None:
            raise no_such_job(job_id)
        return known
    ties = deleting.JobTies(
        manifests=tx.manifests_of_job(job_id),
        publication=tx.publication(job_id),
        dependents=tx.dependents_of(job_id, 0, 1),
        goes_on_in=tx.going_on_from(job_id),
    )
    deleting.check_deletable(job, ties)
    attempts = tx.attempts_of_job(job_id)
    freed_bytes = sum(tx.objects_of_job(job_id).values())
    event = deleting.deletion_event(job, actor, attempts=len(attempts), freed_bytes=freed_bytes)
    gone = deleting.deleted(job, attempts, transaction.now)
    transaction.record(event)
    transaction.delete_job(job, gone)
    return gone
