"""Workers come, stay and go: registration, streams, heartbeats, goodbyes."""

from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.audit import Witness
from simpletuner_fleet.core.bounds import MAX_REMARK_CHARS
from simpletuner_fleet.core.errors import (
    InvalidToken,
    StaleMessage,
    StoreUnavailable,
    Superseded,
    UnreadableRow,
)
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.jobs import lifecycle, stopping
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import Attempt, EndReason, Outcome, is_finishing
from simpletuner_fleet.core.jobs.reconcile import (
    ELSEWHERE,
    Held,
    Reconciliation,
    is_older,
    may_readopt,
    reconcile,
)
from simpletuner_fleet.core.workers.gpu_health import Health
from simpletuner_fleet.core.workers.heartbeat import HeartbeatDecision, HeartbeatFacts, decide_heartbeat
from simpletuner_fleet.core.workers.worker import Connection, Worker
from simpletuner_fleet.engine.dispatch import place_waiting_jobs
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.orders import orders_for, stale_order
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.inventory import held_data, with_facts
from simpletuner_fleet.orchestrator.losing import give_up
from simpletuner_fleet.orchestrator.report import gpus_free
from simpletuner_fleet.protocol.messages import (
    LEAVING,
    AuditHead,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    HeldAttempt,
    HeldState,
    Orders,
    Register,
    Registered,
    StopAttempt,
)

RETIRED_KEPT = 16
HEADS_TAKEN = 2
IDLE = "idle"
MAX_EPOCH = 2**40
"""No honest worker has seen a higher one; a lie must not use up the numbers there are."""


async def register(fleet: Fleet, worker_id: str, message: Register, *, ip: str, base_url: str) -> Registered:
    contested = fleet.presence.is_contested(worker_id)
    answer, kept, taken_over = await fleet.act(
        lambda transaction: _register(transaction, worker_id, message, ip, base_url, contested)
    )
    if taken_over:
        fleet.presence.changed_hands(worker_id)
    fleet.presence.heard(worker_id, fleet.clock.now())
    for attempt in kept:
        fleet.presence.confirmed(Turn(attempt.job_id, attempt.epoch), worker_id)
    for head in (*message.audit_heads[:HEADS_TAKEN], message.audit_head):
        _witness(fleet, worker_id, head)
    answer.audit_head = _told_head(fleet)
    signed = fleet.signed_heads
    if signed and signed.newest and message.audit_heads:
        answer.audit_proofs = await signed.proofs(message.audit_heads[:HEADS_TAKEN], signed.newest)
    return answer


class FailedRegistration(Struct, frozen=True, kw_only=True):
    """Of somebody who wanted to join. `code` names the sentence that people are told."""

    ip: str
    why: str
    code: str = "refused"
    worker_id: str = ""
    """As which worker they came, where that is known."""
    token_hash: str = ""
    """Of a token that nobody has now."""


async def registration_failed(fleet: Fleet, refusal: FailedRegistration) -> None:
    """A refused attempt leaves its trace, too; one with a token that was rotated is laid at its worker's door."""
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


async def stream_opened(fleet: Fleet, worker_id: str, ip: str, incarnation: str = "") -> None:
    await fleet.act(lambda transaction: _stream_opened(transaction, worker_id, ip, incarnation))
    fleet.presence.heard(worker_id, fleet.clock.now())


async def stream_closed(fleet: Fleet, worker_id: str) -> None:
    await fleet.act(lambda transaction: transaction.set_reachable(worker_id, False))


async def stream_still_gone(fleet: Fleet, worker_ids: Collection[str], since: float) -> None:
    """Said once the grace is over: who has neither opened a stream nor sent a heartbeat since is reconnecting."""

    def step(transaction: Transaction) -> None:
        for worker_id in worker_ids:
            worker = transaction.tx.worker(worker_id)
            if worker is None or worker_id in transaction.index.reachable:
                continue
            gone = worker.stream_gone(since)
            if gone is not worker:
                transaction.save_worker(gone)

    await fleet.act(step)


async def streams_still_missing(fleet: Fleet, since: float) -> None:
    """After a start: whoever was connected before and has not come back yet."""
    workers = await fleet.read(lambda view: view.workers())
    connected = [worker.id for worker in workers if worker.connection is Connection.CONNECTED]
    await stream_still_gone(fleet, connected, since)


async def stream_alive(fleet: Fleet, worker_id: str) -> None:
    """Older agents are silent while their trainer is: their open stream is their sign of life."""

    def step(transaction: Transaction) -> list[Attempt] | None:
        if not transaction.worker(worker_id).legacy:
            return None
        if worker_id not in transaction.index.reachable:
            transaction.set_reachable(worker_id, True)
        return transaction.live_attempts(worker_id)

    live = await fleet.act(step)
    if live is not None:
        _heard_with(fleet, worker_id, live)


def _heard_with(fleet: Fleet, worker_id: str, attempts: Sequence[Attempt | HeldAttempt]) -> None:
    fleet.presence.heard(worker_id, fleet.clock.now())
    for attempt in attempts:
        fleet.presence.confirmed(Turn(attempt.job_id, attempt.epoch), worker_id)


async def heartbeat(fleet: Fleet, worker_id: str, message: Heartbeat, *, base_url: str) -> HeartbeatAnswer:
    facts, expected = _facts(message), fleet.presence.expected(worker_id)
    quiet = fleet.quiet_heartbeats.repeated(worker_id, message.incarnation, facts) if expected else None
    if quiet is None:
        answer, worker = await _decided(fleet, worker_id, message, facts, base_url, expected)
        fleet.quiet_heartbeats.note(worker_id, message.incarnation, facts, answer)
    else:
        answer, worker = replace(quiet.answer), quiet.worker
        _heard_with(fleet, worker_id, ())
    gpus = {gpu.uuid for gpu in worker.gpus}
    samples = [one for one in message.gpus if one.uuid in gpus]
    if samples:
        fleet.gpu_history.note(worker_id, fleet.clock.now(), samples)
    _witness(fleet, worker_id, message.audit_head)
    answer.audit_head = _told_head(fleet)
    return answer


async def _decided(
    fleet: Fleet, worker_id: str, message: Heartbeat, facts: HeartbeatFacts, base_url: str, expected: bool
) -> tuple[HeartbeatAnswer, Worker]:
    try:
        answer, worker, live = await fleet.act(
            lambda transaction: _heartbeat(
                transaction, worker_id, message.incarnation, facts, base_url, expected
            )
        )
    except StoreUnavailable:
        # It was heard all the same: a database that is away must not make every worker count as lost.
        if expected:
            _heard_with(fleet, worker_id, message.attempts or ())
        raise
    _heard_with(fleet, worker_id, live if worker.legacy else message.attempts or ())
    return answer, worker


def _heartbeat(
    transaction: Transaction,
    worker_id: str,
    incarnation: str,
    facts: HeartbeatFacts,
    base_url: str,
    expected: bool,
) -> tuple[HeartbeatAnswer, Worker, list[Attempt]]:
    worker = _own(transaction, worker_id)
    must_be_newest(worker, incarnation)
    decision = decide_heartbeat(
        worker,
        transaction.live_attempts(worker_id),
        facts,
        transaction.policy,
        expected=expected,
        reachable=worker_id in transaction.index.reachable,
        now=transaction.now,
    )
    stale = _follow_heartbeat(transaction, worker, decision)
    place_waiting_jobs(transaction)
    worker, orders, live = _present(transaction, worker_id, base_url)
    answer = HeartbeatAnswer(
        status=worker.status(bool(live)),
        jobs=orders.jobs,
        stop=[*orders.stop, *stale],
        drain=orders.drain,
        shutdown=orders.shutdown,
        heartbeat_interval_s=transaction.policy.heartbeat_interval_s,
        heartbeat_timeout_s=transaction.policy.heartbeat_timeout_s,
    )
    return answer, worker, live


def _facts(message: Heartbeat) -> HeartbeatFacts:
    return HeartbeatFacts(
        held=tuple(_held_as(item) for item in message.attempts or ()),
        leaving=message.status == LEAVING,
        runs_nothing=message.status == IDLE and not message.current_job_id,
        health={one.uuid: Health(one.healthy, one.foreign_memory_gb) for one in message.gpus},
        cache=held_data(message.data) if message.data is not None else {},
    )


def _held_as(item: HeldAttempt) -> Held:
    return Held(item.job_id, item.epoch, item.state is not HeldState.ACCEPTING)


def _follow_heartbeat(
    transaction: Transaction, worker: Worker, decision: HeartbeatDecision
) -> list[StopAttempt]:
    visit = _Visit()
    for attempt in decision.lost:
        why = "its worker says that it runs nothing"
        give_up(transaction, attempt, why)
    if decision.strays:
        _take_back(transaction, worker.id, worker.incarnation, decision.strays, visit)
    if decision.worker is not None:
        transaction.save_worker(decision.worker)
    if decision.came_back:
        actor = Actor(worker.id, worker.name)
        transaction.record(_worker_event(EventType.WORKER_CONNECTED, worker, actor))
    if decision.reachable is not None:
        transaction.set_reachable(worker.id, decision.reachable)
    return visit.stop


async def goodbye(fleet: Fleet, worker_id: str, message: Goodbye, *, ip: str) -> None:
    await fleet.act(lambda transaction: _goodbye(transaction, worker_id, message, ip))


async def orders(fleet: Fleet, worker_id: str, base_url: str) -> tuple[Worker, Orders]:
    worker, given, _ = await fleet.act(lambda transaction: _present(transaction, worker_id, base_url))
    return worker, given


async def has_jobs(fleet: Fleet, worker_id: str) -> bool:
    """Asked by older agents before they leave."""
    return bool(await fleet.act(lambda transaction: transaction.live_attempts(worker_id)))


def _present(transaction: Transaction, worker_id: str, base_url: str) -> tuple[Worker, Orders, list[Attempt]]:
    worker, live = transaction.worker(worker_id), transaction.live_attempts(worker_id)
    return (
        worker,
        orders_for(
            transaction.tx, worker, live, transaction.ids, transaction.vault, base_url, transaction.policy
        ),
        live,
    )


def _own(transaction: Transaction, worker_id: str) -> Worker:
    """Whose token was good a moment ago may be deleted by now."""
    worker = transaction.tx.worker(worker_id)
    if worker is None:
        raise InvalidToken
    return worker


def must_be_newest(worker: Worker, incarnation: str) -> None:
    if incarnation and worker.incarnation and incarnation != worker.incarnation:
        raise Superseded


def _told_head(fleet: Fleet) -> AuditHead | None:
    signed = fleet.signed_heads.newest if fleet.signed_heads else None
    return signed or fleet.audit_head


def _witness(fleet: Fleet, worker_id: str, head: AuditHead | None) -> None:
    """Remembers the first head that a worker brings, and the newest: what comes later cannot make the first forgotten.

    A signed one counts only if the signature is ours. Older agents bring heads without one.
    """
    if head is None:
        return
    if head.signature and fleet.signed_heads:
        known = fleet.witnesses.get(worker_id)
        if known and known.seq == head.seq and known.hash == head.hash:
            return  # nearly every heartbeat: a signature costs more than all the rest of it
        if not fleet.signed_heads.is_ours(head):
            return
    brought = Witness(worker_id, head.seq, head.hash)
    fleet.witnesses.setdefault(f"{worker_id}, at first", brought)
    fleet.witnesses[worker_id] = brought


class _Visit(Struct):
    """What a registration changes, gathered for the answer."""

    keep: list[Attempt] = []
    stop: list[StopAttempt] = []


def _register(
    transaction: Transaction, worker_id: str, message: Register, ip: str, base_url: str, contested: bool
) -> tuple[Registered, list[Attempt], bool]:
    """Returns also whether it was taken from an agent on another machine that is still there."""
    worker = transaction.worker(worker_id)
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
    reconciliation = reconcile(transaction.live_attempts(worker_id), held, same_home)
    transaction.tx.raise_epoch_to(max((item.epoch for item in held if item.epoch <= MAX_EPOCH), default=0))
    visit = _apply_reconciliation(transaction, worker_id, message.incarnation, reconciliation)
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
    return _answer(transaction, worker_id, message, visit, base_url), visit.keep, taken_over


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
        return [_held_as(item) for item in message.attempts]
    return [
        Held(attempt.job_id, attempt.epoch, started=True)
        for attempt in transaction.live_attempts(worker.id)
        if attempt.job_id == message.current_job_id
    ]


def _apply_reconciliation(
    transaction: Transaction, worker_id: str, incarnation: str, reconciliation: Reconciliation
) -> _Visit:
    visit = _Visit()
    for attempt in reconciliation.lost:
        why = "the worker came back without its trainer"
        give_up(transaction, attempt, why)
    for attempt in reconciliation.accept:
        job = transaction.job(attempt.job_id)
        transaction.apply(lifecycle.accept(job, attempt, incarnation=incarnation, now=transaction.now))
        visit.keep.append(transaction.attempt(attempt.id))
    for attempt in reconciliation.keep:
        if incarnation and attempt.incarnation != incarnation:
            transaction.apply(Decision(attempt=replace(attempt, incarnation=incarnation)))
        visit.keep.append(transaction.attempt(attempt.id))
    for attempt in reconciliation.doubtful:
        # The next registration comes from the same folder as this one, and knows as little of it.
        transaction.apply(Decision(attempt=replace(attempt, incarnation=ELSEWHERE)))
    _take_back(transaction, worker_id, incarnation, reconciliation.stop, visit)
    return visit


def _take_back(
    transaction: Transaction, worker_id: str, incarnation: str, strays: Sequence[Held], visit: _Visit
) -> None:
    """Attempts the worker holds that we gave up: they go on if nobody else was asked, else they are stopped."""
    for held in strays:
        attempt = transaction.attempt_by_epoch(held.job_id, held.epoch)
        if attempt is None or attempt.worker_id != worker_id:
            visit.stop.append(
                StopAttempt(job_id=held.job_id, epoch=held.epoch, reason=EndReason.STALE, grace_s=0.0)
            )
            continue
        try:
            job = transaction.job(attempt.job_id)
        except UnreadableRow:
            continue  # nobody can say what becomes of it; whatever else this worker holds goes on
        if may_readopt(job, attempt, worker_id, incarnation, gpus_free=gpus_free(transaction, attempt)):
            transaction.apply(lifecycle.readopted(job, attempt, now=transaction.now))
            visit.keep.append(transaction.attempt(attempt.id))
            continue
        if attempt.outcome is Outcome.LOST and attempt.incarnation == incarnation:
            transaction.apply(lifecycle.survived(job, worker_id))
        visit.stop.append(stale_order(attempt))


def _newcomer(worker: Worker, message: Register, known_process: bool, ip: str, now: float) -> Worker:
    # An older agent has no name for its process: a late copy of its registration must not undo its open stream.
    reconnecting = (known_process or message.legacy) and worker.connection is Connection.CONNECTED
    retired = worker.retired
    if worker.incarnation and message.incarnation and not known_process:
        retired = (*retired, worker.incarnation)[-RETIRED_KEPT:]
    return replace(
        with_facts(worker, message),
        connection=Connection.CONNECTED if reconnecting else Connection.CONNECTING,
        incarnation=message.incarnation,
        retired=retired,
        # A new process may have been mended; the same one that merely came back was not.
        start_trouble=worker.start_trouble if known_process else None,
        home=message.home or worker.home,
        address=ip,
        message_seq=message.seq,
        registered_at=now,
        last_heartbeat=now,
        offline_since=None,
    )


def _answer(
    transaction: Transaction, worker_id: str, message: Register, visit: _Visit, base_url: str
) -> Registered:
    worker = transaction.worker(worker_id)
    live = transaction.live_attempts(worker_id)
    given = orders_for(
        transaction.tx, worker, live, transaction.ids, transaction.vault, base_url, transaction.policy
    )
    kept = [
        HeldAttempt(job_id=attempt.job_id, epoch=attempt.epoch, attempt=attempt.number)
        for attempt in visit.keep
    ]
    answer = Registered(
        worker_id=worker.id,
        name=worker.name,
        status=worker.status(bool(live)),
        heartbeat_interval_s=transaction.policy.heartbeat_interval_s,
        heartbeat_timeout_s=transaction.policy.heartbeat_timeout_s,
        stream_url=f"/api/workers/stream?worker_id={worker.id}",
        ping_interval_s=transaction.policy.ping_interval_s,
        jobs=given.jobs,
        stop=[*given.stop, *visit.stop],
        keep=kept,
        drain=given.drain,
        shutdown=given.shutdown,
        labels=worker.effective_labels,
        worker_type=worker.chosen_type or "",
    )
    if message.current_job_id:
        resumed = next((item for item in kept if item.job_id == message.current_job_id), None)
        answer.resume_job = {"job_id": resumed.job_id} if resumed else None
        answer.abandon_job = None if resumed else message.current_job_id
    return answer


def _stream_opened(transaction: Transaction, worker_id: str, ip: str, incarnation: str) -> None:
    worker = transaction.worker(worker_id)
    must_be_newest(worker, incarnation)
    if worker.connection is not Connection.CONNECTED:
        transaction.save_worker(replace(worker, connection=Connection.CONNECTED, offline_since=None))
        transaction.record(
            _worker_event(EventType.WORKER_CONNECTED, worker, Actor(worker.id, worker.name, ip))
        )
    transaction.set_reachable(worker_id, True)


def _goodbye(transaction: Transaction, worker_id: str, message: Goodbye, ip: str) -> None:
    must_be_newest(_own(transaction, worker_id), message.incarnation)
    reason = message.reason[:MAX_REMARK_CHARS]
    for attempt in transaction.live_attempts(worker_id):
        why = reason or "the worker disconnected cleanly"
        job = transaction.job(attempt.job_id)
        if is_finishing(job):
            continue  # its results are on that worker's disk, and wait there for its next start
        transaction.apply(
            stopping.released(
                job, attempt, why, transaction.policy, now=transaction.now, reason=EndReason.PREEMPTED
            )
        )
    worker = transaction.worker(worker_id)
    if worker.connection is not Connection.OFFLINE:
        transaction.save_worker(replace(worker, connection=Connection.OFFLINE, offline_since=transaction.now))
        actor = Actor(worker.id, worker.name, ip)
        transaction.record(_worker_event(EventType.WORKER_DISCONNECTED, worker, actor, reason=reason))
    transaction.set_reachable(worker_id, False)
    transaction.effects.left.append(worker_id)


def _worker_event(type_: EventType, worker: Worker, actor: Actor, **details: str) -> Event:
    return Event(type=type_, actor=actor, target_type="worker", target_id=worker.id, details=details)
