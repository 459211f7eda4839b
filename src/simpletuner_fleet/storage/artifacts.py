"""Accepts checkpoints and artifacts once their files are stored, lists them, and drops old ones.

A job reads and names only what it has uploaded itself, however many others have the same content.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.errors import NotFound, StaleAttempt, no_such_job
from simpletuner_fleet.core.events import ORCHESTRATOR, Actor, Event, EventType
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.fencing import Claim
from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.jobs.submitting import going_on
from simpletuner_fleet.core.training import checkpoint, samples
from simpletuner_fleet.core.training.checkpoint import Manifest, StoredManifest
from simpletuner_fleet.engine.dispatch import unreachable_checkpoints
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import View
from simpletuner_fleet.protocol.uploads import ManifestAnswer
from simpletuner_fleet.storage.fenced import job_run_by, newest_attempt
from simpletuner_fleet.storage.uploads.content import check_all_stored

DAY_S = 86_400.0


async def accept_manifest(fleet: Fleet, claim: Claim, manifest: Manifest) -> ManifestAnswer:
    """Ends an upload: one transaction, fenced by the epoch, adds the checkpoint and drops older ones."""
    checkpoint.check_manifest(manifest, fleet.policy)
    return await fleet.act(lambda transaction: _accept(transaction, claim, manifest))


def _accept(transaction: Transaction, claim: Claim, manifest: Manifest) -> ManifestAnswer:
    attempt = transaction.attempt(newest_attempt(transaction.tx, claim).id)
    _refuse_spoiled(attempt, manifest)
    earlier = transaction.tx.manifests_of_job(attempt.job_id)
    manifest = samples.with_earlier(manifest, earlier)
    stored = next((one for one in earlier if checkpoint.same_content(one, manifest)), None)
    if stored is None:
        stored = _add(transaction, attempt, manifest, earlier)
    if manifest.kind == "checkpoint" and (attempt.checkpoint_step or -1) < (manifest.step or 0):
        transaction.apply(Decision(attempt=replace(attempt, checkpoint_step=manifest.step)))
    job = transaction.job(attempt.job_id)
    transaction.publish_job(job, manifest=stored.id, step=stored.step)
    return ManifestAnswer(manifest_id=stored.id, checkpoints_keep=transaction.policy.checkpoints_keep)


def _refuse_spoiled(attempt: Attempt, manifest: Manifest) -> None:
    spoiled_from = attempt.resume_below
    if spoiled_from is not None and manifest.kind == "checkpoint" and (manifest.step or 0) >= spoiled_from:
        raise StaleAttempt(f"A watchdog found this attempt corrupted from step {spoiled_from} on.")


def _add(
    transaction: Transaction, attempt: Attempt, manifest: Manifest, earlier: Sequence[StoredManifest]
) -> StoredManifest:
    checkpoint.check_step_of_epoch(manifest, attempt.epoch, earlier)
    job = transaction.job(attempt.job_id)
    if job.terminal:
        checkpoint.check_left_behind(manifest, earlier, ended_at=attempt.ended_at, now=transaction.now)
    stored_sizes = transaction.tx.objects_of_job(attempt.job_id)
    check_all_stored(stored_sizes, [(file.sha256, file.size) for file in manifest.files])
    stored = _stored_manifest(transaction, attempt, manifest)
    transaction.tx.add_manifest(stored)
    transaction.tx.mark_objects(attempt.job_id, {file.sha256 for file in manifest.files}, None)
    transaction.record(_event(EventType.JOB_STORED, attempt, stored, after_the_end=job.terminal))
    if not job.terminal:
        limits = checkpoint.limits_of(manifest, transaction.policy.checkpoints_keep)
        _let_go_of_older(transaction, job, [*earlier, stored], limits)
    return stored


def _event(type_: EventType, attempt: Attempt, stored: StoredManifest, **more: Any) -> Event:
    details = {"manifest": stored.id, "kind": stored.kind, "name": stored.name, "step": stored.step}
    return Event(
        type=type_,
        actor=Actor(attempt.worker_id, attempt.worker_name),
        target_type="job",
        target_id=stored.job_id,
        details={**details, "attempt": attempt.number, "bytes": stored.total_bytes, **more},
    )


def _stored_manifest(transaction: Transaction, attempt: Attempt, manifest: Manifest) -> StoredManifest:
    return StoredManifest(
        id=transaction.ids.new("m"),
        job_id=attempt.job_id,
        attempt_id=attempt.id,
        attempt_number=attempt.number,
        epoch=attempt.epoch,
        kind=manifest.kind,
        name=manifest.name,
        step=manifest.step,
        files=tuple(sorted(manifest.files, key=lambda file: file.path)),
        total_bytes=checkpoint.total_bytes(manifest.files),
        created_at=transaction.now,
        worker_name=attempt.worker_name,
    )


def _let_go_of_older(
    transaction: Transaction, job: Job, manifests: list[StoredManifest], limits: checkpoint.CheckpointLimits
) -> None:
    current = transaction.current_attempt(job)
    in_use = {current.resumed_manifest} if current and current.resumed_manifest else set()
    useless = unreachable_checkpoints(transaction, job)
    dropped = checkpoint.to_drop(manifests, limits, in_use, useless)
    _drop(transaction, job.id, manifests, dropped)


def forget_spoiled(transaction: Transaction, job_id: str, below: int) -> None:
    """Drops the checkpoints from the step on at which the training was corrupted: a resume finds only good ones."""
    manifests = transaction.tx.manifests_of_job(job_id)
    _drop(transaction, job_id, manifests, checkpoint.spoiled(manifests, below))


def _drop(
    transaction: Transaction,
    job_id: str,
    manifests: Sequence[StoredManifest],
    dropped: Sequence[StoredManifest],
) -> None:
    for one in dropped:
        transaction.tx.delete_manifest(one.id)
        transaction.record(
            Event(
                type=EventType.JOB_DROPPED,
                actor=ORCHESTRATOR,
                target_type="job",
                target_id=job_id,
                details={"manifest": one.id, "kind": one.kind, "name": one.name, "step": one.step},
            )
        )
    dropped_ids = {one.id for one in dropped}
    still_named = {file.sha256 for one in manifests if one.id not in dropped_ids for file in one.files}
    freed = {file.sha256 for one in dropped for file in one.files} - still_named
    if freed:
        transaction.tx.mark_objects(job_id, freed, transaction.now)


async def pin(fleet: Fleet, job_id: str, manifest_id: str, actor: Actor) -> StoredManifest:
    """Pins a checkpoint or an artifact: it is not deleted because of its age, nor because newer ones came."""

    def step(transaction: Transaction) -> StoredManifest:
        manifest = _manifest_in(transaction, job_id, manifest_id)
        if not manifest.pinned_by:
            transaction.tx.pin_manifest(manifest.id, actor.id)
            transaction.record(_pin_event(EventType.JOB_PINNED, manifest, actor))
        return replace(manifest, pinned_by=manifest.pinned_by or actor.id)

    return await fleet.act(step)


async def unpin(fleet: Fleet, job_id: str, manifest_id: str, actor: Actor) -> StoredManifest:
    """Removes the pin, so that retention applies again.

    If the rest of an old job is gone already, this goes as well.
    """

    def step(transaction: Transaction) -> StoredManifest:
        manifest = _manifest_in(transaction, job_id, manifest_id)
        if manifest.pinned_by:
            transaction.tx.pin_manifest(manifest.id, "")
            transaction.record(_pin_event(EventType.JOB_UNPINNED, manifest, actor))
            if _is_past_keeping(transaction, transaction.job(job_id)):
                _drop(transaction, job_id, transaction.tx.manifests_of_job(job_id), [manifest])
        return replace(manifest, pinned_by="")

    return await fleet.act(step)


def _manifest_in(transaction: Transaction, job_id: str, manifest_id: str) -> StoredManifest:
    manifest = transaction.tx.manifest(manifest_id)
    if manifest is None or manifest.job_id != job_id:
        raise NotFound(f"Job {job_id} has no checkpoint or artifact {manifest_id}.")
    return manifest


def _pin_event(type_: EventType, manifest: StoredManifest, actor: Actor) -> Event:
    details = {"manifest": manifest.id, "name": manifest.name, "step": manifest.step}
    return Event(type=type_, actor=actor, target_type="job", target_id=manifest.job_id, details=details)


def _is_past_keeping(transaction: Transaction, job: Job) -> bool:
    days = transaction.policy.jobs_keep_days
    return days is not None and (job.finished_at or transaction.now) < transaction.now - days * DAY_S


def adopt_checkpoint(transaction: Transaction, job: Job, checkpoint: StoredManifest) -> None:
    """Makes another job's checkpoint one of this new job's, with all of its files."""
    own = going_on.adopted(checkpoint, transaction.ids.new("m"), job.id, transaction.now)
    sizes = {file.sha256: file.size for file in own.files}
    transaction.tx.own_objects(job.id, sizes, transaction.now)
    transaction.tx.add_manifest(own)
    transaction.tx.mark_objects(job.id, sizes.keys(), None)


async def size_for_worker(fleet: Fleet, worker_id: str, job_id: str, sha256: str) -> int:
    """Returns the size of a file that a manifest of the job names, for the worker that runs the job now."""

    def look(view: View) -> int:
        job_run_by(view, worker_id, job_id)
        for manifest in view.manifests_of_job(job_id):
            for file in manifest.files:
                if file.sha256 == sha256:
                    return file.size
        raise NotFound("No checkpoint or artifact of this job contains this file.")

    return await fleet.read(look)


async def manifests_of(fleet: Fleet, job_id: str) -> list[StoredManifest]:
    def look(view: View) -> list[StoredManifest]:
        if view.job(job_id) is None:
            raise no_such_job(job_id)
        return view.manifests_of_job(job_id)

    return await fleet.read(look)


async def manifest_of(fleet: Fleet, job_id: str, manifest_id: str) -> StoredManifest:
    manifest = await fleet.read(lambda view: view.manifest(manifest_id))
    if manifest is None or manifest.job_id != job_id:
        raise NotFound(f"Job {job_id} has no checkpoint or artifact {manifest_id}.")
    return manifest
