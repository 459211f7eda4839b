"""Workers come, stay and go: registration, streams, heartbeats, goodbyes."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core import lifecycle, stopping
from simpletuner_fleet.core.audit import Witness
from simpletuner_fleet.core.decision import Decision
from simpletuner_fleet.core.errors import InvalidToken, StaleMessage, Superseded
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.gpu_health import Health
from simpletuner_fleet.core.heartbeat import HeartbeatDecision, HeartbeatFacts, decide_heartbeat
from simpletuner_fleet.core.job import Attempt, EndReason, Outcome
from simpletuner_fleet.core.reconcile import (
    ELSEWHERE,
    Held,
    Reconciliation,
    is_older,
    may_readopt,
    reconcile,
)
from simpletuner_fleet.core.worker import Connection, Worker
from simpletuner_fleet.orchestrator.desk import Desk
from simpletuner_fleet.orchestrator.dispatch import settle
from simpletuner_fleet.orchestrator.fleet import Fleet
from simpletuner_fleet.orchestrator.inventory import held_data, with_facts
from simpletuner_fleet.orchestrator.orders import orders_for, stale_order
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
IDLE = "idle"
MAX_EPOCH = 2**40
"""No honest worker has seen a higher one; a lie must not use up the numbers there are."""


async def register(fleet: Fleet, worker_id: str, message: Register, *, ip: str, base_url: str) -> Registered:
    answer, kept = await fleet.act(lambda desk: _register(desk, worker_id, message, ip, base_url))
    fleet.presence.heard(worker_id, fleet.clock.now())
    for attempt in kept:
        fleet.presence.confirmed((attempt.job_id, attempt.epoch), worker_id)
    _witness(fleet, worker_id, message.audit_head)
    answer.audit_head = fleet.audit_head
    return answer


class Refusal(Struct, frozen=True, kw_only=True):
    """Of somebody who wanted to join. `code` names the sentence that people are told."""

    ip: str
    why: str
    code: str = "refused"
    worker_id: str = ""
    """As which worker they came, where that is known."""
    token_hash: str = ""
    """Of a token that nobody has now."""


async def registration_failed(fleet: Fleet, refusal: Refusal) -> None:
    """A refused attempt leaves its trace, too; one with a token that was rotated is laid at its worker's door."""
    await fleet.act(lambda desk: _record_refusal(desk, refusal))


def _record_refusal(desk: Desk, refusal: Refusal) -> None:
    former = _former_owner(desk, refusal.token_hash)
    code = "token_rotated" if former else refusal.code
    worker_id = former or refusal.worker_id
    event = Event(
        type=EventType.WORKER_REGISTRATION_FAILED,
        actor=Actor("unknown", "unknown", refusal.ip),
        target_type="worker",
        target_id=worker_id,
        details={"why": refusal.why, "code": code},
    )
    desk.record(event)
    desk.publish("audit", id=worker_id, event_type=event.type)


def _former_owner(desk: Desk, token_hash: str) -> str:
    workers = desk.index.roster.workers.values() if token_hash else ()
    return next((worker.id for worker in workers if token_hash in worker.former_tokens), "")


async def stream_opened(fleet: Fleet, worker_id: str, ip: str, incarnation: str = "") -> None:
    await fleet.act(lambda desk: _stream_opened(desk, worker_id, ip, incarnation))
    fleet.presence.heard(worker_id, fleet.clock.now())


async def stream_closed(fleet: Fleet, worker_id: str) -> None:
    await fleet.act(lambda desk: desk.set_hearing(worker_id, False))


async def stream_alive(fleet: Fleet, worker_id: str) -> None:
    """Older agents are silent while their trainer is: their open stream is their sign of life."""

    def step(desk: Desk) -> list[Attempt] | None:
        if not desk.worker(worker_id).legacy:
            return None
        if worker_id not in desk.index.hearing:
            desk.set_hearing(worker_id, True)
        return desk.live_attempts(worker_id)

    live = await fleet.act(step)
    if live is not None:
        _heard_with(fleet, worker_id, live)


def _heard_with(fleet: Fleet, worker_id: str, attempts: Sequence[Attempt]) -> None:
    fleet.presence.heard(worker_id, fleet.clock.now())
    for attempt in attempts:
        fleet.presence.confirmed((attempt.job_id, attempt.epoch), worker_id)


async def heartbeat(fleet: Fleet, worker_id: str, message: Heartbeat, *, base_url: str) -> HeartbeatAnswer:
    expected = fleet.presence.expected(worker_id)
    answer, worker, live = await fleet.act(
        lambda desk: _heartbeat(desk, worker_id, message, base_url, expected)
    )
    fleet.presence.heard(worker_id, fleet.clock.now())
    named = live if worker.legacy else message.attempts or ()
    for one in named:
        fleet.presence.confirmed((one.job_id, one.epoch), worker_id)
    gpus = {gpu.uuid for gpu in worker.gpus}
    samples = [one for one in message.gpus if one.uuid in gpus]
    if samples:
        fleet.gpu_history.note(worker_id, fleet.clock.now(), samples)
    _witness(fleet, worker_id, message.audit_head)
    answer.audit_head = fleet.audit_head
    return answer


def _heartbeat(
    desk: Desk, worker_id: str, message: Heartbeat, base_url: str, expected: bool
) -> tuple[HeartbeatAnswer, Worker, list[Attempt]]:
    worker = _own(desk, worker_id)
    must_be_newest(worker, message.incarnation)
    decision = decide_heartbeat(
        worker,
        desk.live_attempts(worker_id),
        _facts(message),
        desk.policy,
        expected=expected,
        reachable=worker_id in desk.index.hearing,
        now=desk.now,
    )
    stale = _follow_heartbeat(desk, worker, decision)
    settle(desk)
    worker, orders, live = _present(desk, worker_id, base_url)
    answer = HeartbeatAnswer(
        status=worker.status(bool(live)),
        jobs=orders.jobs,
        stop=[*orders.stop, *stale],
        drain=orders.drain,
        shutdown=orders.shutdown,
        heartbeat_interval_s=desk.policy.heartbeat_interval_s,
        heartbeat_timeout_s=desk.policy.heartbeat_timeout_s,
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


def _follow_heartbeat(desk: Desk, worker: Worker, decision: HeartbeatDecision) -> list[StopAttempt]:
    visit = _Visit()
    for attempt in decision.lost:
        why = "its worker says that it runs nothing"
        desk.apply(lifecycle.lost(desk.job(attempt.job_id), attempt, why, desk.policy, now=desk.now))
    if decision.strays:
        _take_back(desk, worker.id, worker.incarnation, decision.strays, visit)
    if decision.worker is not None:
        desk.save_worker(decision.worker)
    if decision.came_back:
        actor = Actor(worker.id, worker.name)
        desk.record(_worker_event(EventType.WORKER_CONNECTED, worker, actor))
    if decision.reachable is not None:
        desk.set_hearing(worker.id, decision.reachable)
    return visit.stop


async def goodbye(fleet: Fleet, worker_id: str, message: Goodbye, *, ip: str) -> None:
    await fleet.act(lambda desk: _goodbye(desk, worker_id, message, ip))


async def orders(fleet: Fleet, worker_id: str, base_url: str) -> tuple[Worker, Orders]:
    worker, given, _ = await fleet.act(lambda desk: _present(desk, worker_id, base_url))
    return worker, given


async def has_jobs(fleet: Fleet, worker_id: str) -> bool:
    """Asked by older agents before they leave."""
    return bool(await fleet.act(lambda desk: desk.live_attempts(worker_id)))


def _present(desk: Desk, worker_id: str, base_url: str) -> tuple[Worker, Orders, list[Attempt]]:
    worker, live = desk.worker(worker_id), desk.live_attempts(worker_id)
    return worker, orders_for(desk.tx, worker, live, desk.ids, desk.vault, base_url, desk.policy), live


def _own(desk: Desk, worker_id: str) -> Worker:
    """Whose token was good a moment ago may be deleted by now."""
    worker = desk.tx.worker(worker_id)
    if worker is None:
        raise InvalidToken
    return worker


def must_be_newest(worker: Worker, incarnation: str) -> None:
    if incarnation and worker.incarnation and incarnation != worker.incarnation:
        raise Superseded


def _witness(fleet: Fleet, worker_id: str, head: AuditHead | None) -> None:
    if head is not None:
        fleet.witnesses[worker_id] = Witness(worker_id, head.seq, head.hash)


class _Visit(Struct):
    """What a registration changes, gathered for the answer."""

    keep: list[Attempt] = []
    stop: list[StopAttempt] = []


def _register(
    desk: Desk, worker_id: str, message: Register, ip: str, base_url: str
) -> tuple[Registered, list[Attempt]]:
    worker = desk.worker(worker_id)
    _refuse_old_news(worker, message)
    same_home = not worker.home or not message.home or worker.home == message.home
    known_process = bool(message.incarnation) and worker.incarnation == message.incarnation
    held = _held(desk, worker, message)
    found = reconcile(desk.live_attempts(worker_id), held, same_home)
    desk.tx.raise_epoch_to(max((item.epoch for item in held if item.epoch <= MAX_EPOCH), default=0))
    visit = _settle_accounts(desk, worker_id, message.incarnation, found)
    desk.save_worker(_newcomer(desk.worker(worker_id), message, known_process, ip, desk.now))
    desk.record(
        Event(
            type=EventType.WORKER_REGISTERED,
            actor=Actor(worker_id, worker.name, ip),
            target_type="worker",
            target_id=worker_id,
            details={"gpu_count": len(desk.worker(worker_id).gpus), "version": message.version},
        )
    )
    return _answer(desk, worker_id, message, visit, base_url), visit.keep


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


def _held(desk: Desk, worker: Worker, message: Register) -> list[Held]:
    if message.attempts is not None:
        return [_held_as(item) for item in message.attempts]
    return [
        Held(attempt.job_id, attempt.epoch, started=True)
        for attempt in desk.live_attempts(worker.id)
        if attempt.job_id == message.current_job_id
    ]


def _settle_accounts(desk: Desk, worker_id: str, incarnation: str, found: Reconciliation) -> _Visit:
    visit = _Visit()
    for attempt in found.lost:
        why = "the worker came back without its trainer"
        desk.apply(lifecycle.lost(desk.job(attempt.job_id), attempt, why, desk.policy, now=desk.now))
    for attempt in found.accept:
        job = desk.job(attempt.job_id)
        desk.apply(lifecycle.accept(job, attempt, incarnation=incarnation, now=desk.now))
        visit.keep.append(desk.attempt(attempt.id))
    for attempt in found.keep:
        if incarnation and attempt.incarnation != incarnation:
            desk.apply(Decision(attempt=replace(attempt, incarnation=incarnation)))
        visit.keep.append(desk.attempt(attempt.id))
    for attempt in found.doubtful:
        # The next registration comes from the same folder as this one, and knows as little of it.
        desk.apply(Decision(attempt=replace(attempt, incarnation=ELSEWHERE)))
    _take_back(desk, worker_id, incarnation, found.stop, visit)
    return visit


def _take_back(desk: Desk, worker_id: str, incarnation: str, strays: Sequence[Held], visit: _Visit) -> None:
    """Attempts the worker holds that we gave up: they go on if nobody else was asked, else they are stopped."""
    for held in strays:
        attempt = desk.attempt_by_epoch(held.job_id, held.epoch)
        if attempt is None or attempt.worker_id != worker_id:
            visit.stop.append(
                StopAttempt(job_id=held.job_id, epoch=held.epoch, reason=EndReason.STALE, grace_s=0.0)
            )
            continue
        job = desk.job(attempt.job_id)
        if may_readopt(job, attempt, worker_id, incarnation, gpus_free=gpus_free(desk, attempt)):
            desk.apply(lifecycle.readopted(job, attempt, now=desk.now))
            visit.keep.append(desk.attempt(attempt.id))
            continue
        if attempt.outcome is Outcome.LOST and attempt.incarnation == incarnation:
            desk.apply(lifecycle.survived(job, worker_id))
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
        home=message.home or worker.home,
        address=ip,
        message_seq=message.seq,
        registered_at=now,
        last_heartbeat=now,
        offline_since=None,
    )


def _answer(desk: Desk, worker_id: str, message: Register, visit: _Visit, base_url: str) -> Registered:
    worker = desk.worker(worker_id)
    live = desk.live_attempts(worker_id)
    given = orders_for(desk.tx, worker, live, desk.ids, desk.vault, base_url, desk.policy)
    kept = [
        HeldAttempt(job_id=attempt.job_id, epoch=attempt.epoch, attempt=attempt.number)
        for attempt in visit.keep
    ]
    answer = Registered(
        worker_id=worker.id,
        name=worker.name,
        status=worker.status(bool(live)),
        heartbeat_interval_s=desk.policy.heartbeat_interval_s,
        heartbeat_timeout_s=desk.policy.heartbeat_timeout_s,
        stream_url=f"/api/workers/stream?worker_id={worker.id}",
        ping_interval_s=desk.policy.ping_interval_s,
        jobs=given.jobs,
        stop=[*given.stop, *visit.stop],
        keep=kept,
        drain=given.drain,
        shutdown=given.shutdown,
        labels=worker.effective_labels,
    )
    if message.current_job_id:
        resumed = next((item for item in kept if item.job_id == message.current_job_id), None)
        answer.resume_job = {"job_id": resumed.job_id} if resumed else None
        answer.abandon_job = None if resumed else message.current_job_id
    return answer


def _stream_opened(desk: Desk, worker_id: str, ip: str, incarnation: str) -> None:
    worker = desk.worker(worker_id)
    must_be_newest(worker, incarnation)
    if worker.connection is not Connection.CONNECTED:
        desk.save_worker(replace(worker, connection=Connection.CONNECTED, offline_since=None))
        desk.record(_worker_event(EventType.WORKER_CONNECTED, worker, Actor(worker.id, worker.name, ip)))
    desk.set_hearing(worker_id, True)


def _goodbye(desk: Desk, worker_id: str, message: Goodbye, ip: str) -> None:
    must_be_newest(_own(desk, worker_id), message.incarnation)
    for attempt in desk.live_attempts(worker_id):
        why = message.reason or "the worker said goodbye"
        job = desk.job(attempt.job_id)
        desk.apply(
            stopping.released(job, attempt, why, desk.policy, now=desk.now, reason=EndReason.PREEMPTED)
        )
    worker = desk.worker(worker_id)
    if worker.connection is not Connection.OFFLINE:
        desk.save_worker(replace(worker, connection=Connection.OFFLINE, offline_since=desk.now))
        actor = Actor(worker.id, worker.name, ip)
        desk.record(_worker_event(EventType.WORKER_DISCONNECTED, worker, actor, reason=message.reason))
    desk.set_hearing(worker_id, False)
    desk.effects.left.append(worker_id)


def _worker_event(type_: EventType, worker: Worker, actor: Actor, **details: str) -> Event:
    return Event(type=type_, actor=actor, target_type="worker", target_id=worker.id, details=details)
