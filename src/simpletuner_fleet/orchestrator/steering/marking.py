"""Lets people set tags and a note on jobs."""

from collections.abc import Sequence

from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.jobs.requests import marking
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction


async def tag(fleet: Fleet, job_id: str, add: Sequence[str], remove: Sequence[str], actor: Actor) -> Job:
    return await fleet.act(lambda transaction: tag_in(transaction, job_id, add, remove, actor))


def tag_in(
    transaction: Transaction, job_id: str, add: Sequence[str], remove: Sequence[str], actor: Actor
) -> Job:
    return _applied(transaction, job_id, marking.tagged(transaction.job(job_id), add, remove, actor))


async def set_note(fleet: Fleet, job_id: str, note: str, actor: Actor) -> Job:
    def step(transaction: Transaction) -> Job:
        return _applied(transaction, job_id, marking.noted(transaction.job(job_id), note, actor))

    return await fleet.act(step)


def _applied(transaction: Transaction, job_id: str, decision: Decision) -> Job:
    """Applies the decision; open pages hear of it, though the job's state stays."""
    transaction.apply(decision)
    job = transaction.job(job_id)
    if decision.job:
        transaction.publish_job(job)
    return job
