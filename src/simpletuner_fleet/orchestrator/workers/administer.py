"""Lets an administrator create, drain, label and delete workers, and rotate their tokens."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import FreeText
from simpletuner_fleet.core.configs.bundle import check_name
from simpletuner_fleet.core.errors import Invalid, NameTaken, WorkerNotOffline
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.job import AttemptState, EndReason, JobState, Stopping
from simpletuner_fleet.core.jobs.requests import stopping
from simpletuner_fleet.core.jobs.submitting.submission import check_labels
from simpletuner_fleet.core.money.prices import checked_price
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.policy import MAX_DRAIN_TIMEOUT_S
from simpletuner_fleet.core.workers.worker import (
    FORMER_TOKENS_KEPT,
    AdminState,
    Connection,
    DrainPlan,
    Worker,
    WorkerStatus,
    WorkerType,
)
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.workers.losing import give_up

MAX_NOTE_CHARS = 1000
LOCAL_NAME = "local"


class CreateWorker(Struct, frozen=True, kw_only=True):
    name: FreeText
    worker_type: WorkerType | None = None
    labels: dict[FreeText, FreeText] = {}


async def create_worker(
    fleet: Fleet, request: CreateWorker, actor: Actor, *, local: bool = False
) -> tuple[Worker, str]:
    """Returns the worker and its token, which is not shown again."""
    check_name(request.name, "$.name", "worker's name")
    check_labels(request.labels, "$.labels")
    token = fleet.ids.token(tokens.WORKER)

    def step(transaction: Transaction) -> Worker:
        if transaction.tx.worker_by_name(request.name):
            raise NameTaken(f"A worker named '{request.name}' already exists.")
        worker = Worker(
            id=transaction.ids.new("w"),
            name=request.name,
            token_hash=tokens.hashed(token),
            token_created_at=transaction.now,
            created_at=transaction.now,
            chosen_type=request.worker_type,
            labels=request.labels,
            local=local,
        )
        transaction.add_worker(worker)
        transaction.record(
            _event(
                EventType.WORKER_CREATED,
                worker,
                actor,
                name=worker.name,
                labels=request.labels,
                worker_type=worker.worker_type,
            )
        )
        _publish(transaction, worker)
        return worker

    return await fleet.act(step), token


async def local_worker(fleet: Fleet, kept_token: str | None, actor: Actor) -> tuple[Worker, str]:
    """Returns the worker beside the server and a token for it: the stored one if it is still valid."""
    local = await fleet.read(lambda view: [worker for worker in view.workers() if worker.local])
    if not local:
        names = await fleet.read(lambda view: {worker.name.casefold() for worker in view.workers()})
        name = next(name for name in _local_names() if name not in names)
        request = CreateWorker(name=name, worker_type=WorkerType.PERSISTENT)
        return await create_worker(fleet, request, actor, local=True)
    worker = local[0]
    if kept_token and tokens.hashed(kept_token) == worker.token_hash:
        return worker, kept_token
    return await rotate_token(fleet, worker.id, actor)


def _local_names() -> Iterator[str]:
    yield LOCAL_NAME
    yield from (f"{LOCAL_NAME}-{number}" for number in count(2))


async def drain(
    fleet: Fleet,
    worker_id: str,
    note: str,
    actor: Actor,
    *,
    timeout_s: float | None = None,
    checkpoint_first: bool = True,
) -> Worker:
    """Drains a worker: after this commits no offer is made, and an offer that nobody accepted yet is withdrawn.

    Without a timeout what runs may take as long as it takes. The last request counts; a repeated one does not move the
    deadline.
    """
    if timeout_s is not None and not 0 <= timeout_s <= MAX_DRAIN_TIMEOUT_S:
        raise Invalid(f"timeout_s must be between 0 and {MAX_DRAIN_TIMEOUT_S:g}.", path="$.timeout_s")
    return await fleet.act(
        lambda transaction: drain_within(transaction, worker_id, note, actor, timeout_s, checkpoint_first)
    )


def drain_within(
    transaction: Transaction,
    worker_id: str,
    note: str,
    actor: Actor,
    timeout_s: float | None = None,
    checkpoint_first: bool = True,
) -> Worker:
    shown_note = note[:MAX_NOTE_CHARS]
    worker = transaction.worker(worker_id)
    plan = _plan(worker, timeout_s, checkpoint_first, transaction.now)
    if (worker.admin, worker.drain_note, worker.drain_plan) != (AdminState.DRAINING, shown_note, plan):
        drained = replace(worker, admin=AdminState.DRAINING, drain_note=shown_note, drain_plan=plan)
        transaction.save_worker(drained)
        limits = {"timeout_s": timeout_s, "checkpoint_first": checkpoint_first} if plan else {}
        transaction.record(_event(EventType.WORKER_DRAINED, worker, actor, note=shown_note, **limits))
        take_offers_back(transaction, worker, "the worker is draining")
        _publish(transaction, drained)
    end_drain(transaction, worker_id)
    transaction.wake(worker_id)
    return transaction.worker(worker_id)


def _plan(worker: Worker, timeout_s: float | None, checkpoint_first: bool, now: float) -> DrainPlan | None:
    if timeout_s is None:
        return None
    known = worker.drain_plan if worker.admin is AdminState.DRAINING else None
    same = known is not None and (known.timeout_s, known.checkpoint_first) == (timeout_s, checkpoint_first)
    if same:
        return known
    return DrainPlan(timeout_s=timeout_s, deadline=now + timeout_s, checkpoint_first=checkpoint_first)


def end_drain(transaction: Transaction, worker_id: str) -> None:
    """Asks the worker to give back everything that still runs there, once its drain has reached its deadline."""
    worker = transaction.worker(worker_id)
    if worker.drain_plan is None or not worker.drain_is_due(transaction.now):
        return
    stop_request = Stopping(
        reason=EndReason.DRAINED,
        asked_at=transaction.now,
        grace_s=transaction.policy.cancel_grace_s,
        save_s=transaction.policy.checkpoint_wait_s if worker.drain_plan.checkpoint_first else None,
    )
    for attempt in transaction.live_attempts(worker_id):
        job = transaction.job(attempt.job_id)
        if job.state is not JobState.CANCELLING:
            transaction.apply(stopping.drain_over(job, attempt, stop_request))
    transaction.wake(worker_id)


def take_offers_back(transaction: Transaction, worker: Worker, why: str) -> None:
    """Withdraws offers, but not from an agent that does not accept explicitly: it may have begun already."""
    if worker.legacy:
        return
    for attempt in transaction.live_attempts(worker.id):
        if attempt.state is AttemptState.OFFERED:
            job = transaction.job(attempt.job_id)
            transaction.apply(lifecycle.offer_expired(job, attempt, now=transaction.now, why=why))


async def resume(fleet: Fleet, worker_id: str, actor: Actor) -> Worker:
    def step(transaction: Transaction) -> Worker:
        worker = transaction.worker(worker_id)
        if worker.admin is AdminState.DRAINING or worker.start_trouble is not None:
            fresh = replace(
                worker, admin=AdminState.ACTIVE, drain_note="", drain_plan=None, start_trouble=None
            )
            transaction.save_worker(fresh)
            transaction.record(_event(EventType.WORKER_RESUMED, worker, actor))
        transaction.wake(worker_id)
        return transaction.worker(worker_id)

    return await fleet.act(step)


async def set_labels(fleet: Fleet, worker_id: str, labels: dict[str, str], actor: Actor) -> Worker:
    check_labels(labels, "$.labels")

    def step(transaction: Transaction) -> Worker:
        worker = transaction.worker(worker_id)
        transaction.save_worker(replace(worker, labels=labels))
        transaction.record(
            _event(EventType.WORKER_LABELS_SET, worker, actor, labels=labels, was=worker.labels)
        )
        _publish(transaction, worker)
        return transaction.worker(worker_id)

    return await fleet.act(step)


async def set_price(fleet: Fleet, worker_id: str, price_micros: int | None, actor: Actor) -> Worker:
    """Sets a worker's price. With None, the price that it reports counts again, or a rule.

    What runs already keeps the price that it began with.
    """
    if price_micros is not None:
        checked_price(price_micros)

    def step(transaction: Transaction) -> Worker:
        worker = transaction.worker(worker_id)
        if worker.price_micros != price_micros:
            transaction.save_worker(replace(worker, price_micros=price_micros))
            transaction.record(
                _event(
                    EventType.WORKER_PRICE_SET,
                    worker,
                    actor,
                    price_micros=price_micros,
                    was=worker.price_micros,
                )
            )
            _publish(transaction, worker)
        return transaction.worker(worker_id)

    return await fleet.act(step)


async def rotate_token(fleet: Fleet, worker_id: str, actor: Actor) -> tuple[Worker, str]:
    """Makes a new token. From this commit on the old one is refused and its stream is cut; the trainer runs on.

    Nobody is connected with the new token yet, so the worker is reconnecting from this commit on, too.
    """
    token = fleet.ids.token(tokens.WORKER)

    def step(transaction: Transaction) -> Worker:
        worker = transaction.worker(worker_id)
        former = (*worker.former_tokens, worker.token_hash)[-FORMER_TOKENS_KEPT:]
        transaction.save_worker(
            replace(
                worker.stream_gone(transaction.now),
                token_hash=tokens.hashed(token),
                token_created_at=transaction.now,
                former_tokens=former,
            )
        )
        transaction.record(_event(EventType.WORKER_TOKEN_ROTATED, worker, actor))
        _publish(transaction, transaction.worker(worker_id))
        transaction.set_reachable(worker_id, False)
        transaction.cut(worker_id, "token_rotated")
        return transaction.worker(worker_id)

    return await fleet.act(step), token


async def delete_worker(fleet: Fleet, worker_id: str, actor: Actor) -> None:
    """Deletes a worker. Its attempts are given up: results that it has not sent are missing."""

    def step(transaction: Transaction) -> None:
        worker = transaction.worker(worker_id)
        attempts = transaction.live_attempts(worker_id)
        status = worker.status(bool(attempts))
        never_came = worker.connection is Connection.CONNECTING and worker.registered_at is None
        if not never_came and status is not WorkerStatus.OFFLINE:
            raise WorkerNotOffline(
                f"The worker is {status}; only an offline worker can be deleted.", status=status
            )
        for attempt in attempts:
            give_up(transaction, attempt, "its worker was deleted")
        transaction.record(_event(EventType.WORKER_DELETED, worker, actor, name=worker.name))
        _publish(transaction, worker)
        transaction.delete_worker(transaction.worker(worker_id))
        transaction.cut(worker_id, "deleted")

    await fleet.act(step)


def _publish(transaction: Transaction, worker: Worker) -> None:
    """Tells watchers about a change. They are told of every change of status anyway, and of other changes from here."""
    transaction.publish(
        "worker", id=worker.id, status=worker.status(bool(transaction.live_attempts(worker.id)))
    )


def _event(type_: EventType, worker: Worker, actor: Actor, **details: Any) -> Event:
    return Event(type=type_, actor=actor, target_type="worker", target_id=worker.id, details=details)
