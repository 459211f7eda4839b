"""Answers a submission that is repeated under the same key with the job that it made the first time."""

import hashlib

import msgspec
from msgspec import UNSET

from simpletuner_fleet.core.errors import IdempotencyMismatch, Invalid, JobDeleted
from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.jobs.submitting.submit_request import SubmitRequest, Submitter
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import IdempotentAnswer

MAX_IDEMPOTENCY_KEY_CHARS = 255


def key_of(request: SubmitRequest) -> str | None:
    key = request.idempotency_key
    return None if key is UNSET or key is None else checked_key(key)


def checked_key(key: str | None) -> str | None:
    if key and len(key) > MAX_IDEMPOTENCY_KEY_CHARS:
        raise Invalid("An idempotency key can have at most 255 characters.", path="$.idempotency_key")
    return key or None


def fingerprint_of(asked: object) -> str:
    """Returns a hash that differs for different requests under the same key."""
    return hashlib.sha256(msgspec.json.encode(asked, order="deterministic")).hexdigest()


def remember(transaction: Transaction, key: str, by: Submitter, fingerprint: str, job: Job) -> None:
    transaction.tx.remember_answer(
        IdempotentAnswer(
            key=key, owner=by.actor.id, request_hash=fingerprint, job_id=job.id, at=transaction.now
        )
    )


def same_job(transaction: Transaction, known: IdempotentAnswer, fingerprint: str) -> Job:
    if known.request_hash != fingerprint:
        raise IdempotencyMismatch
    if transaction.tx.deleted_job(known.job_id) is not None:
        raise JobDeleted(f"Job {known.job_id}, which this idempotency key submitted, was deleted.")
    return transaction.job(known.job_id)
