"""Edits a job while it waits."""

import msgspec

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.jobs.job import Hold, Job, Target
from simpletuner_fleet.core.jobs.submitting import editing
from simpletuner_fleet.core.jobs.submitting.editing import JobEdit
from simpletuner_fleet.core.jobs.submitting.submit_request import SUBMIT_LOCAL, Submitter
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.owners import holds_now
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.organising.approvals import BY_SETTING, with_approval
from simpletuner_fleet.orchestrator.submit import admitted


async def edit(fleet: Fleet, job_id: str, requested: JobEdit, by: Submitter, *, local_enabled: bool) -> Job:
    def step(transaction: Transaction) -> Job:
        job = transaction.job(job_id)
        bundle = msgspec.json.decode(transaction.tx.job_bundle(job_id) or b"{}", type=Bundle)
        asked = _away_from_home(transaction, job, requested)
        team = transaction.organisation.teams.get(job.team) if job.team else None
        last = transaction.tx.attempts_of_job(job_id)[-1:] if job.attempts else []
        decision = editing.edited(
            job,
            asked,
            by,
            bundle,
            transaction.policy,
            local_enabled=local_enabled,
            now=transaction.now,
            last=last[0] if last else None,
            team=team,
        )
        if decision.job:
            _check_admission(transaction, job, decision.job, by)
        transaction.apply(decision)
        after = transaction.job(job_id)
        if decision.job:
            # Its state stays, of which open pages would hear: they hear of the edit by itself.
            transaction.publish_job(after)
        return after

    return await fleet.act(step)


def _check_admission(transaction: Transaction, before: Job, after: Job, by: Submitter) -> None:
    """Checks the edited job like a new one: a small admitted job must not become a large one that would be refused."""
    by_setting = transaction.policy.require_approval and not by.may_approve
    anew = msgspec.structs.replace(after, hold=Hold.APPROVAL if by_setting else Hold.NONE)
    if after.requires.gpus > before.requires.gpus:
        with transaction.index.usage.without(before):
            _, needed = admitted(transaction, anew, by)
    else:
        others = [BY_SETTING] if by_setting else []
        _, needed = with_approval(transaction, anew, others, is_approver=by.may_approve, scope=by.scope)
    editing.check_approval(before, after, transaction.tx.approval(before.id), needed)


def _away_from_home(transaction: Transaction, job: Job, requested: JobEdit) -> JobEdit:
    """Keeps the job off the orchestrator's machine where its target is `auto`, as at a submission.

    That applies to a config whose author may not use that machine.
    """
    if requested.target is not Target.AUTO or not job.config_version:
        return requested
    stored = transaction.tx.config(job.config_name, job.config_version)
    if stored is None or holds_now(transaction.tx, stored.created_by, SUBMIT_LOCAL):
        return requested
    return msgspec.structs.replace(requested, target=Target.WORKER)
