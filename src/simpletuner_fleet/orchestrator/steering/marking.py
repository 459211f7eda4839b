"""Lets people set tags and a note on jobs."""

from collections.abc import Sequence

from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.jobs.requests import marking
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction


async def tag(fleet: Fleet, job_id: str, add: Sequence[str], remove: Sequence[str], actor: Actor) -> Job:
    def step(transaction: Transaction) -> Job:
        transaction.apply(marking.tagged(transaction.job(job_id), add, remove, actor))
        return transaction.job(job_id)

    return await fleet.act(step)


async def set_note(fleet: Fleet, job_id: str, note: str, actor: Actor) -> Job:
    def step(transaction: Transaction) -> Job:
        transaction.apply(marking.noted(transaction.job(job_id), note, actor))
        return transaction.job(job_id)

    return await fleet.act(step)
