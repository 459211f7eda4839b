"""Reads from the store what a worker should be doing, the same for its stream, registration and heartbeats."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.configs.datasets import PREFIX
from simpletuner_fleet.core.configs.stored_bundle import read_stored
from simpletuner_fleet.core.errors import UnreadableRow
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.job import (
    Attempt,
    AttemptState,
    EndReason,
    Job,
    JobState,
    Saving,
    Validating,
)
from simpletuner_fleet.core.jobs.requests.validating import can_be_asked
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import AdminState, Worker, WorkerType
from simpletuner_fleet.engine.stored_secrets import secret_value
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import Ids, Vault, View
from simpletuner_fleet.protocol.data import DatasetOrder
from simpletuner_fleet.protocol.messages import CheckpointNow, JobSubmit, Orders, StopAttempt, ValidateNow
from simpletuner_fleet.protocol.uploads import Resume


def orders_for(
    view: View,
    worker: Worker,
    live: Sequence[Attempt],
    ids: Ids,
    vault: Vault | None,
    base_url: str,
    policy: Policy,
) -> Orders:
    """Returns the worker's orders; `live` are its attempts that have not ended."""
    jobs: list[JobSubmit] = []
    stop: list[StopAttempt] = []
    save: list[CheckpointNow] = []
    validate: list[ValidateNow] = []
    for attempt in live:
        job = view.job(attempt.job_id)
        if job is None:
            continue
        if job.state is JobState.CANCELLING or attempt.stopping:
            stop.append(stop_order(attempt, policy))
        elif attempt.state is AttemptState.OFFERED:
            with suppress(UnreadableRow):  # nobody accepts it then, and it is put off once it is placed again
                jobs.append(addressed(_offer(view, worker, job, attempt, ids, vault, policy), base_url))
        else:
            if attempt.saving is not None and attempt.waits_for_checkpoint:
                save.append(_save_order(attempt, attempt.saving))
            if attempt.validating is not None and attempt.waits_for_validation and can_be_asked(job, worker):
                validate.append(_validate_order(attempt, attempt.validating))
    draining = worker.admin is AdminState.DRAINING
    return Orders(
        jobs=jobs,
        stop=stop,
        save=save,
        validate=validate,
        drain=draining,
        shutdown=draining and not live and worker.worker_type is WorkerType.EPHEMERAL,
    )


def with_stops(orders: Orders, more: Sequence[StopAttempt]) -> dict[str, Any]:
    """Returns the fields of an answer that carries these orders and, beside their own, more attempts to stop."""
    return {**asdict(orders), "stop": [*orders.stop, *more]}


def offer_message(transaction: Transaction, worker: Worker, offered: Decision) -> JobSubmit:
    """Returns the offer to send once it is stored; the sender adds how the worker reaches us.

    Raises UnreadableRow.
    """
    job, attempt = offered.job, offered.attempt
    assert job is not None
    assert attempt is not None
    return _offer(
        transaction.tx, worker, job, attempt, transaction.ids, transaction.vault, transaction.policy
    )


def addressed(offer: JobSubmit, base_url: str) -> JobSubmit:
    """Sets the address to which the worker sends its reports; `base_url` is how it reaches us."""
    offer.upload_endpoint = f"{base_url}/api/workers/job/{offer.job_id}"
    return offer


def _offer(
    view: View, worker: Worker, job: Job, attempt: Attempt, ids: Ids, vault: Vault | None, policy: Policy
) -> JobSubmit:
    order, wanted = _submit_message(view, job, attempt, ids, policy)
    return order if worker.legacy or not wanted else _with_secrets(order, wanted, view, vault)


def stop_order(attempt: Attempt, policy: Policy) -> StopAttempt:
    stopping = attempt.stopping
    return StopAttempt(
        job_id=attempt.job_id,
        epoch=attempt.epoch,
        attempt=attempt.number,
        reason=_reason_for_worker(stopping.reason) if stopping else EndReason.CANCELLED,
        grace_s=stopping.grace_s if stopping else policy.cancel_grace_s,
        save_s=stopping.save_s if stopping else None,
    )


def _reason_for_worker(reason: EndReason) -> EndReason:
    """Returns the reason for the worker: it gives back what costs too much as it does in a drain.

    The true reason is for the orchestrator to say.
    """
    return EndReason.DRAINED if reason is EndReason.COST_LIMIT else reason


def _save_order(attempt: Attempt, saving: Saving) -> CheckpointNow:
    return CheckpointNow(
        job_id=attempt.job_id, epoch=attempt.epoch, attempt=attempt.number, asked_at=saving.asked_at
    )


def _validate_order(attempt: Attempt, validating: Validating) -> ValidateNow:
    return ValidateNow(
        job_id=attempt.job_id, epoch=attempt.epoch, attempt=attempt.number, asked_at=validating.asked_at
    )


def stale_order(attempt: Attempt) -> StopAttempt:
    return StopAttempt(
        job_id=attempt.job_id,
        epoch=attempt.epoch,
        attempt=attempt.number,
        reason=EndReason.STALE,
        grace_s=0.0,
    )


def _submit_message(
    view: View, job: Job, attempt: Attempt, ids: Ids, policy: Policy
) -> tuple[JobSubmit, dict[str, str]]:
    """Returns the offer, and the names of the secrets it needs, by variable."""
    bundle = read_stored(view.job_bundle(job.id) or b"{}")
    order = JobSubmit(
        job_id=job.id,
        attempt=attempt.number,
        attempt_id=attempt.id,
        epoch=attempt.epoch,
        config_name=job.config_name,
        config=bundle.settings,
        trainer=bundle.trainer,
        owner=job.owner,
        upload_endpoint="",
        upload_token=ids.derived_token(tokens.UPLOAD, tokens.upload_token_name(attempt.id, attempt.epoch)),
        dataloader=bundle.dataloader,
        files=bundle.files,
        env=bundle.env,
        gpus=list(attempt.gpus),
        gpu_indices=list(attempt.gpu_indices),
        time_limit_s=job.time_limit_s,
        on_time_limit=job.on_time_limit,
        checkpoint_wait_s=policy.checkpoint_wait_s,
        results_wait_s=policy.results_wait_s,
        on_partition=job.on_partition,
        num_processes=len(attempt.gpus) or 1,
        nodes=job.requires.nodes,
        resume=_resume(view, attempt.resumed_manifest) if attempt.resumed_manifest else None,
        watchdog=msgspec.to_builtins(bundle.watchdog),
        datasets=_datasets(view, bundle) if bundle.datasets else UNSET,
    )
    return order, bundle.secrets


def _datasets(view: View, bundle: Bundle) -> dict[str, DatasetOrder]:
    """Returns the datasets of the job, none of which can be deleted while the job has not ended."""
    orders = {}
    for mount, text in bundle.datasets.items():
        dataset_id = text.removeprefix(PREFIX)
        known = view.dataset(dataset_id)
        orders[mount] = DatasetOrder(
            id=dataset_id,
            name=known.name if known else "",
            bytes=known.total_bytes if known else 0,
            manifest_bytes=known.manifest_bytes if known else 0,
        )
    return orders


def _with_secrets(order: JobSubmit, wanted: dict[str, str], view: View, vault: Vault | None) -> JobSubmit:
    """Adds the secrets as they are now: a secret that was replaced reaches the next attempt."""
    values = {variable: secret_value(view, vault, name) for variable, name in wanted.items()}
    order.secrets = {variable: value for variable, value in values.items() if value is not None}
    missing = sorted({wanted[variable] for variable, value in values.items() if value is None})
    order.missing_secrets = missing or UNSET
    return order


def _resume(view: View, manifest_id: str) -> dict[str, Any] | None:
    """Returns the checkpoint that was chosen with the offer; retention keeps it as long as the attempt lives."""
    stored = view.manifest(manifest_id)
    if stored is None:
        return None
    resume = Resume(
        manifest_id=stored.id,
        step=stored.step or 0,
        name=stored.name,
        attempt=stored.attempt_number,
        worker_name=stored.worker_name,
        files=stored.files,
    )
    resume_fields: dict[str, Any] = msgspec.to_builtins(resume)
    return resume_fields
