"""Tracks which workers are there: streams, heartbeats, goodbyes."""

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.audit import Witness
from simpletuner_fleet.core.bounds import MAX_REMARK_CHARS
from simpletuner_fleet.core.errors import (
    InvalidToken,
    StoreUnavailable,
    Superseded,
    UnreadableRow,
)
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import Attempt, EndReason, Outcome
from simpletuner_fleet.core.jobs.reconcile import (
    Held,
    is_given_back,
    is_in_doubt,
    may_readopt,
)
from simpletuner_fleet.core.jobs.requests import stopping
from simpletuner_fleet.core.workers.gpu_health import Health
from simpletuner_fleet.core.workers.heartbeat import HeartbeatDecision, HeartbeatFacts, decide_heartbeat
from simpletuner_fleet.core.workers.worker import Connection, Worker
from simpletuner_fleet.engine.dispatch import place_waiting_jobs
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.orders import orders_for, stale_order, with_stops
from simpletuner_fleet.engine.quiet_heartbeats import idle_row
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.workers.administer import take_offers_back
from simpletuner_fleet.orchestrator.workers.inventory import held_data
from simpletuner_fleet.orchestrator.workers.losing import give_up
from simpletuner_fleet.orchestrator.workers.report import gpus_free
from simpletuner_fleet.protocol.messages import (
    LEAVING,
    AuditHead,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    HeldAttempt,
    HeldState,
    Orders,
    StopAttempt,
)

IDLE = "idle"
MAX_SOURCE_CHARS = 32
WITHOUT_LEASE = "its lease had ended, and what happened since is not in the restored database"


async def stream_opened(
    fleet: Fleet, worker_id: str, ip: str, incarnation: str = "", *, token_hash: str
) -> None:
    await fleet.act(lambda transaction: _stream_opened(transaction, worker_id, ip, incarnation, token_hash))
    fleet.presence.heard(worker_id, fleet.clock.now())


async def stream_closed(fleet: Fleet, worker_id: str, streaming: Callable[[str], bool]) -> bool:
    """Notes that a worker's stream has closed.

    Returns False if it has opened another one meanwhile, which counts instead.
    """

    def step(transaction: Transaction) -> bool:
        if streaming(worker_id):
            return False
        transaction.set_reachable(worker_id, False)
        return True

    return await fleet.act(step)


async def stream_still_gone(fleet: Fleet, worker_ids: Collection[str], since: float) -> None:
    """Notes, after the grace period, that workers without a new stream or heartbeat are reconnecting."""

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
    """Notes, after a start, which workers were connected before and have not come back yet."""
    workers = await fleet.read(lambda view: view.workers())
    connected = [worker.id for worker in workers if worker.connection is Connection.CONNECTED]
    await stream_still_gone(fleet, connected, since)


async def stream_alive(fleet: Fleet, worker_id: str) -> None:
    """Counts the open stream of an older agent as its heartbeat: it sends nothing while its trainer is silent."""

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


async def heartbeat(
    fleet: Fleet, worker_id: str, message: Heartbeat, *, base_url: str, token_hash: str
) -> HeartbeatAnswer:
    facts, expected = _facts(message), fleet.presence.expected(worker_id)
    quiet = fleet.quiet_heartbeats.repeated(worker_id, message.incarnation, facts) if expected else None
    if quiet is None:
        answer, worker, idle = await _decided(
            fleet, worker_id, message, facts, base_url, expected, token_hash
        )
        fleet.quiet_heartbeats.note(worker_id, message.incarnation, facts, answer, idle)
    else:
        answer, worker = replace(quiet.answer), quiet.worker
        _heard_with(fleet, worker_id, ())
    gpus = {gpu.uuid for gpu in worker.gpus}
    samples = [one for one in message.gpus if one.uuid in gpus]
    if samples:
        fleet.gpu_history.note(worker_id, fleet.clock.now(), samples)
    witness(fleet, worker_id, message.audit_head)
    answer.audit_head = audit_head_for_workers(fleet)
    return answer


async def _decided(
    fleet: Fleet,
    worker_id: str,
    message: Heartbeat,
    facts: HeartbeatFacts,
    base_url: str,
    expected: bool,
    token_hash: str,
) -> tuple[HeartbeatAnswer, Worker, Worker | None]:
    """Decides on a heartbeat; the last of what it returns is the worker's `idle_row` by which it was decided."""
    try:
        answer, worker, live, idle = await fleet.act(
            lambda transaction: _heartbeat(
                transaction, worker_id, message.incarnation, facts, base_url, expected, token_hash
            )
        )
    except StoreUnavailable:
        # It was heard all the same: a database that is away must not make every worker count as lost.
        if expected:
            _heard_with(fleet, worker_id, message.attempts or ())
        raise
    _heard_with(fleet, worker_id, live if worker.legacy else message.attempts or ())
    return answer, worker, idle


def _heartbeat(
    transaction: Transaction,
    worker_id: str,
    incarnation: str,
    facts: HeartbeatFacts,
    base_url: str,
    expected: bool,
    token_hash: str,
) -> tuple[HeartbeatAnswer, Worker, list[Attempt], Worker | None]:
    worker = holder_of_token(transaction, worker_id, token_hash)
    must_be_here(worker, incarnation)
    decision = decide_heartbeat(
        worker,
        transaction.live_attempts(worker_id),
        facts,
        transaction.policy,
        expected=expected,
        reachable=worker_id in transaction.index.reachable,
        listening=transaction.index.holds_placements(transaction.now),
        now=transaction.now,
    )
    stale = _follow_heartbeat(transaction, worker, decision)
    place_waiting_jobs(transaction)
    worker, orders, live = _present(transaction, worker_id, base_url)
    answer = HeartbeatAnswer(
        status=worker.status(bool(live)),
        heartbeat_interval_s=transaction.policy.heartbeat_interval_s,
        heartbeat_timeout_s=transaction.policy.heartbeat_timeout_s,
        **with_stops(orders, stale),
    )
    return answer, worker, live, idle_row(transaction.index, worker_id)


def _facts(message: Heartbeat) -> HeartbeatFacts:
    return HeartbeatFacts(
        held=tuple(held_as(item) for item in message.attempts or ()),
        leaving=message.status == LEAVING,
        runs_nothing=message.status == IDLE and not message.current_job_id,
        health={one.uuid: Health(one.healthy, one.foreign_memory_gb) for one in message.gpus},
        cache=held_data(message.data) if message.data is not None else {},
        ends=message.notice.source[:MAX_SOURCE_CHARS] if message.notice else "",
        ends_in_s=message.notice.in_s if message.notice else 0.0,
    )


def held_as(item: HeldAttempt) -> Held:
    return Held(item.job_id, item.epoch, item.state is not HeldState.ACCEPTING, item.paused)


def _follow_heartbeat(
    transaction: Transaction, worker: Worker, decision: HeartbeatDecision
) -> list[StopAttempt]:
    reconciled = ReconciledAttempts()
    for attempt in decision.lost:
        why = "its worker says that it runs nothing"
        give_up(transaction, attempt, why)
    for attempt in decision.in_doubt:
        give_up(transaction, attempt, WITHOUT_LEASE)
    if decision.strays:
        take_back(transaction, worker.id, worker.incarnation, decision.strays, reconciled)
    if decision.worker is not None:
        transaction.save_worker(decision.worker)
    actor = Actor(worker.id, worker.name)
    if decision.interrupted and decision.worker and decision.worker.interruption:
        known = decision.worker.interruption
        take_offers_back(transaction, worker, "its machine is about to be taken away")
        transaction.record(
            _worker_event(
                EventType.WORKER_INTERRUPTED,
                worker,
                actor,
                source=known.source,
                in_s=f"{known.deadline - known.noticed_at:.0f}",
            )
        )
    if decision.came_back:
        transaction.record(_worker_event(EventType.WORKER_CONNECTED, worker, actor))
    if decision.reachable is not None:
        transaction.set_reachable(worker.id, decision.reachable)
    return reconciled.stop


async def goodbye(fleet: Fleet, worker_id: str, message: Goodbye, *, ip: str, token_hash: str) -> None:
    await fleet.act(lambda transaction: _goodbye(transaction, worker_id, message, ip, token_hash))


async def orders(fleet: Fleet, worker_id: str, base_url: str) -> tuple[Worker, Orders]:
    worker, given, _ = await fleet.act(lambda transaction: _present(transaction, worker_id, base_url))
    return worker, given


async def has_jobs(fleet: Fleet, worker_id: str) -> bool:
    """Tells older agents, before they leave, whether they have jobs."""
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


def holder_of_token(transaction: Transaction, worker_id: str, token_hash: str) -> Worker:
    """Returns the worker that a message is from.

    Its token was valid a moment ago, and may have been deleted or rotated since.
    """
    worker = transaction.tx.worker(worker_id)
    if worker is None or worker.token_hash != token_hash:
        raise InvalidToken
    return worker


def must_be_newest(worker: Worker, incarnation: str) -> None:
    if incarnation and worker.incarnation and incarnation != worker.incarnation:
        raise Superseded


def must_be_here(worker: Worker, incarnation: str) -> None:
    """Raises Superseded for a message that was sent before the worker's goodbye and is read after it."""
    must_be_newest(worker, incarnation)
    if incarnation in worker.retired:
        raise Superseded


def audit_head_for_workers(fleet: Fleet) -> AuditHead | None:
    signed = fleet.signed_heads.newest if fleet.signed_heads else None
    return signed or fleet.audit_head


def witness(fleet: Fleet, worker_id: str, head: AuditHead | None) -> None:
    """Remembers the first head that a worker brings, and the newest: a later one cannot replace the first.

    A signed head counts only if the signature is ours. Older agents bring heads without one.
    """
    if head is None:
        return
    if head.signature and fleet.signed_heads:
        known = fleet.witnesses.get(worker_id)
        if known and known.seq == head.seq and known.hash == head.hash:
            return  # nearly every heartbeat: a signature costs more than all the rest of it
        if not fleet.signed_heads.is_ours(head):
            return
    fleet.note_witness(Witness(worker_id, head.seq, head.hash))


class ReconciledAttempts(Struct):
    """Gathers the attempts that a worker keeps or stops, for the answer to its registration or heartbeat."""

    keep: list[Attempt] = []
    stop: list[StopAttempt] = []


def take_back(
    transaction: Transaction,
    worker_id: str,
    incarnation: str,
    strays: Sequence[Held],
    reconciled: ReconciledAttempts,
) -> None:
    """Lets attempts that were given up, but that the worker still holds, go on if no other worker was asked.

    Otherwise they are stopped.
    """
    for held in strays:
        try:
            attempt = transaction.attempt_by_epoch(held.job_id, held.epoch)
            job = transaction.tx.job(held.job_id) if attempt and attempt.worker_id == worker_id else None
        except UnreadableRow:
            continue  # nobody can say what becomes of it; whatever else this worker holds goes on
        if attempt is None or job is None:
            reconciled.stop.append(
                StopAttempt(job_id=held.job_id, epoch=held.epoch, reason=EndReason.STALE, grace_s=0.0)
            )
            continue
        in_doubt = is_in_doubt(held, listening=transaction.index.holds_placements(transaction.now))
        free = gpus_free(transaction, attempt)
        if may_readopt(job, attempt, worker_id, incarnation, gpus_free=free, in_doubt=in_doubt):
            transaction.apply(lifecycle.readopted(job, attempt, now=transaction.now))
            reconciled.keep.append(transaction.attempt(attempt.id))
            continue
        if attempt.outcome is Outcome.LOST and attempt.incarnation == incarnation:
            transaction.apply(lifecycle.survived(job, worker_id))
        reconciled.stop.append(stale_order(attempt))


def _stream_opened(
    transaction: Transaction, worker_id: str, ip: str, incarnation: str, token_hash: str
) -> None:
    worker = holder_of_token(transaction, worker_id, token_hash)
    must_be_here(worker, incarnation)
    if worker.connection is not Connection.CONNECTED:
        transaction.save_worker(replace(worker, connection=Connection.CONNECTED, offline_since=None))
        transaction.record(
            _worker_event(EventType.WORKER_CONNECTED, worker, Actor(worker.id, worker.name, ip))
        )
    transaction.set_reachable(worker_id, True)


def _goodbye(transaction: Transaction, worker_id: str, message: Goodbye, ip: str, token_hash: str) -> None:
    must_be_newest(holder_of_token(transaction, worker_id, token_hash), message.incarnation)
    reason = message.reason[:MAX_REMARK_CHARS]
    for attempt in transaction.live_attempts(worker_id):
        why = reason or "the worker disconnected cleanly"
        job = transaction.job(attempt.job_id)
        if not is_given_back(job, attempt):
            continue
        transaction.apply(
            stopping.released(
                job, attempt, why, transaction.policy, now=transaction.now, reason=EndReason.PREEMPTED
            )
        )
    worker = transaction.worker(worker_id)
    if worker.connection is not Connection.OFFLINE:
        left = worker.without(message.incarnation)
        transaction.save_worker(replace(left, connection=Connection.OFFLINE, offline_since=transaction.now))
        actor = Actor(worker.id, worker.name, ip)
        transaction.record(_worker_event(EventType.WORKER_DISCONNECTED, worker, actor, reason=reason))
    transaction.set_reachable(worker_id, False)
    transaction.effects.left.append(worker_id)


def _worker_event(type_: EventType, worker: Worker, actor: Actor, **details: str) -> Event:
    return Event(type=type_, actor=actor, target_type="worker", target_id=worker.id, details=details)
