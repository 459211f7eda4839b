"""A job is edited while it waits."""

import msgspec

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.jobs import editing
from simpletuner_fleet.core.jobs.editing import JobEdit
from simpletuner_fleet.core.jobs.job import Job, Target
from simpletuner_fleet.core.jobs.submit_request import SUBMIT_LOCAL, Submitter
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.owners import holds_now
from simpletuner_fleet.engine.transaction import Transaction


async def edit(fleet: Fleet, job_id: str, wished: JobEdit, by: Submitter, *, local_enabled: bool) -> Job:
    def step(transaction: Transaction) -> Job:
        job = transaction.job(job_id)
        bundle = msgspec.json.decode(transaction.tx.job_bundle(job_id) or b"{}", type=Bundle)
        asked = _away_from_home(transaction, job, wished)
        decision = editing.edited(job, asked, by, bundle, transaction.policy, local_enabled=local_enabled)
        transaction.apply(decision)
        return transaction.job(job_id)

    return await fleet.act(step)


def _away_from_home(transaction: Transaction, job: Job, wished: JobEdit) -> JobEdit:
    """As at a submission: `auto` leaves the orchestrator's machine out for what somebody wrote who may not use it."""
    if wished.target is not Target.AUTO or not job.config_version:
        return wished
    stored = transaction.tx.config(job.config_name, job.config_version)
    if stored is None or holds_now(transaction.tx, stored.created_by, SUBMIT_LOCAL):
        return wished
    return msgspec.structs.replace(wished, target=Target.WORKER)
