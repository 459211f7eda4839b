"""Asks a running training for a checkpoint or a validation."""

from collections.abc import Callable
from functools import partial

from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.jobs.requests import saving, validating
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction


async def checkpoint_now(fleet: Fleet, job_id: str, actor: Actor) -> Job:
    """Asks a running job's trainer for a checkpoint; it trains on."""
    return await _ask_trainer(fleet, job_id, partial(saving.checkpoint_now, actor=actor))


async def validate_now(fleet: Fleet, job_id: str, actor: Actor) -> Job:
    """Asks a running job's trainer to validate; it trains on."""
    return await _ask_trainer(fleet, job_id, partial(validating.validate_now, actor=actor))


async def _ask_trainer(fleet: Fleet, job_id: str, ask: Callable[..., Decision]) -> Job:
    def step(transaction: Transaction) -> Job:
        job = transaction.job(job_id)
        attempt = transaction.current_attempt(job)
        worker = transaction.tx.worker(attempt.worker_id) if attempt else None
        decision = ask(job, attempt, worker, now=transaction.now)
        transaction.apply(decision)
        if decision.attempt:
            transaction.wake(decision.attempt.worker_id)
            transaction.publish_job(job)
        return job

    return await fleet.act(step)
