"""Registers workers: takes what they report of themselves, and compares the attempts they hold with those expected."""

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import (
    StaleMessage,
    Superseded,
)
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.jobs.reconcile import (
    ELSEWHERE,
    Held,
    Reconciliation,
    is_older,
    reconcile,
)
from simpletuner_fleet.core.restoring import least_epoch
from simpletuner_fleet.core.workers.worker import Connection, Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.orders import orders_for, with_stops
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.workers.attendance import (
    WITHOUT_LEASE,
    ReconciledAttempts,
    audit_head_for_workers,
    held_as,
    holder_of_token,
    take_back,
    witness,
)
from simpletuner_fleet.orchestrator.workers.inventory import with_facts
from simpletuner_fleet.orchestrator.workers.losing import give_up
from simpletuner_fleet.protocol.messages import (
    HeldAttempt,
    Register,
    Registered,
)

HEADS_TAKEN = 2


async def register(
    fleet: Fleet, worker_id: str, message: Register, *, ip: str, base_url: str, token_hash: str
) -> Registered:
    contested = fleet.presence.is_contested(worker_id)
    answer, kept, taken_over = await fleet.act(
        lambda transaction: _register(transaction, worker_id, message, ip, base_url, contested, token_hash)
    )
    if taken_over:
        fleet.presence.changed_hands(worker_id)
    fleet.presence.heard(worker_id, fleet.clock.now())
    for attempt in kept:
        fleet.presence.confirmed(Turn(attempt.job_id, attempt.epoch), worker_id)
    for head in (*message.audit_heads[:HEADS_TAKEN], message.audit_head):
        witness(fleet, worker_id, head)
    answer.audit_head = audit_head_for_workers(fleet)
    signed = fleet.signed_heads
    if signed and signed.newest and message.audit_heads:
        answer.audit_proofs = await signed.proofs(message.audit_heads[:HEADS_TAKEN], signed.newest)
    return answer


class FailedRegistration(Struct, frozen=True, kw_only=True):
    """Describes a failed registration of somebody who wanted to join as a worker.

    `code` names the sentence that people are told.
    """

    ip: str
    why: str
    code: str = "refused"
    worker_id: str = ""
    """As which worker they came, where that is known."""
    token_hash: str = ""
    """Of a token that nobody has now."""


async def registration_failed(fleet: Fleet, refusal: FailedRegistration) -> None:
    """Records a refused registration; one with a rotated token is recorded for the worker that had the token."""
    await fleet.act(lambda transaction: _record_refusal(transaction, refusal))


def _record_refusal(transaction: Transaction, refusal: FailedRegistration) -> None:
    former = _former_owner(transaction, refusal.token_hash)
    code = "token_rotated" if former else refusal.code
    worker_id = former or refusal.worker_id
    event = Event(
        type=EventType.WORKER_REGISTRATION_FAILED,
        actor=Actor("unknown", "unknown", refusal.ip),
        target_type="worker",
        target_id=worker_id,
        details={"why": refusal.why, "code": code},
    )
    transaction.record(event)
    transaction.publish("audit", id=worker_id, event_type=event.type)


def _former_owner(transaction: Transaction, token_hash: str) -> str:
    workers = transaction.index.roster.workers.values() if token_hash else ()
    return next((worker.id for worker in workers if token_hash in worker.former_tokens), "")


def _register(
    transaction: Transaction,
    worker_id: str,
    message: Register,
    ip: str,
    base_url: str,
    contested: bool,
    token_hash: str,
) -> tuple[Registered, list[Attempt], bool]:
    """Returns also whether the registration was taken over from an agent on another machine that is still connected."""
    worker = holder_of_token(transaction, worker_id, token_hash)
    _refuse_old_news(worker, message)
    taken_over = (
        bool(worker.home and message.home)
        and worker.home != message.home
        and worker_id in transaction.index.reachable
    )
    if taken_over and contested:
        raise Superseded
    same_home = not worker.home or not message.home or worker.home == message.home
    known_process = bool(message.incarnation) and worker.incarnation == message.incarnation
    held = _held(transaction, worker, message)
    listening = transaction.index.holds_placements(transaction.now)
    reconciliation = reconcile(transaction.live_attempts(worker_id), held, same_home, listening=listening)
    # A lie must not use up the numbers there are, and those of a restored database count on from the time of the restore.
    honest = least_epoch(transaction.now)
    transaction.tx.raise_epoch_to(max((item.epoch for item in held if item.epoch <= honest), default=0))
    reconciled = _apply_reconciliation(transaction, worker_id, message.incarnation, reconciliation)
    transaction.save_worker(
        _newcomer(transaction.worker(worker_id), message, known_process, ip, transaction.now)
    )
    transaction.record(
        Event(
            type=EventType.WORKER_REGISTERED,
            actor=Actor(worker_id, worker.name, ip),
            target_type="worker",
            target_id=worker_id,
            details={"gpu_count": len(transaction.worker(worker_id).gpus), "version": message.version},
        )
    )
    return _answer(transaction, worker_id, message, reconciled, base_url), reconciled.keep, taken_over


def _refuse_old_news(worker: Worker, message: Register) -> None:
    if not message.incarnation:
        return
    if message.incarnation in worker.retired:
        raise Superseded
    # A process that ended before this was read: its successor in the same folder is here already.
    same_home = bool(message.home) and message.home == worker.home
    if (
        same_home
        and worker.connection is not Connection.OFFLINE
        and is_older(message.incarnation, worker.incarnation)
    ):
        raise StaleMessage
    if message.incarnation == worker.incarnation and 0 < message.seq <= worker.message_seq:
        raise StaleMessage


def _held(transaction: Transaction, worker: Worker, message: Register) -> list[Held]:
    if message.attempts is not None:
        return [held_as(item) for item in message.attempts]
    return [
        Held(attempt.job_id, attempt.epoch, started=True)
        for attempt in transaction.live_attempts(worker.id)
        if attempt.job_id == message.current_job_id
    ]


def _apply_reconciliation(
    transaction: Transaction, worker_id: str, incarnation: str, reconciliation: Reconciliation
) -> ReconciledAttempts:
    reconciled = ReconciledAttempts()
    for attempt in reconciliation.lost:
        why = "the worker came back without its trainer"
        give_up(transaction, attempt, why)
    for attempt in reconciliation.in_doubt:
        give_up(transaction, attempt, WITHOUT_LEASE)
    for attempt in reconciliation.accept:
        job = transaction.job(attempt.job_id)
        transaction.apply(lifecycle.accept(job, attempt, incarnation=incarnation, now=transaction.now))
        reconciled.keep.append(transaction.attempt(attempt.id))
    for attempt in reconciliation.keep:
        if incarnation and attempt.incarnation != incarnation:
            transaction.apply(Decision(attempt=replace(attempt, incarnation=incarnation)))
        reconciled.keep.append(transaction.attempt(attempt.id))
    for attempt in reconciliation.doubtful:
        # The next registration comes from the same folder as this one, and knows as little of it.
        transaction.apply(Decision(attempt=replace(attempt, incarnation=ELSEWHERE)))
    take_back(transaction, worker_id, incarnation, reconciliation.stop, reconciled)
    return reconciled


def _newcomer(worker: Worker, message: Register, known_process: bool, ip: str, now: float) -> Worker:
    # An older agent has no name for its process: a late copy of its registration must not undo its open stream.
    reconnecting = (known_process or message.legacy) and worker.connection is Connection.CONNECTED
    superseded = bool(message.incarnation) and not known_process
    return replace(
        with_facts(worker.without(worker.incarnation) if superseded else worker, message),
        connection=Connection.CONNECTED if reconnecting else Connection.CONNECTING,
        incarnation=message.incarnation,
        # A new process may have been mended; the same one that merely came back was not.
        start_trouble=worker.start_trouble if known_process else None,
        interruption=worker.interruption if known_process else None,
        home=message.home or worker.home,
        address=ip,
        message_seq=message.seq,
        registered_at=now,
        last_heartbeat=now,
        offline_since=None,
    )


def _answer(
    transaction: Transaction, worker_id: str, message: Register, reconciled: ReconciledAttempts, base_url: str
) -> Registered:
    worker = transaction.worker(worker_id)
    live = transaction.live_attempts(worker_id)
    given = orders_for(
        transaction.tx, worker, live, transaction.ids, transaction.vault, base_url, transaction.policy
    )
    kept = [
        HeldAttempt(job_id=attempt.job_id, epoch=attempt.epoch, attempt=attempt.number)
        for attempt in reconciled.keep
    ]
    answer = Registered(
        worker_id=worker.id,
        name=worker.name,
        status=worker.status(bool(live)),
        heartbeat_interval_s=transaction.policy.heartbeat_interval_s,
        heartbeat_timeout_s=transaction.policy.heartbeat_timeout_s,
        stream_url=f"/api/workers/stream?worker_id={worker.id}",
        ping_interval_s=transaction.policy.ping_interval_s,
        keep=kept,
        labels=worker.effective_labels,
        worker_type=worker.chosen_type or "",
        **with_stops(given, reconciled.stop),
    )
    if message.current_job_id:
        resumed = next((item for item in kept if item.job_id == message.current_job_id), None)
        answer.resume_job = {"job_id": resumed.job_id} if resumed else None
        answer.abandon_job = None if resumed else message.current_job_id
    return answer
