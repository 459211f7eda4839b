"""Workers come, stay and go: registration, streams, heartbeats, goodbyes."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core import lifecycle, stopping
from simpletuner_fleet.core.audit import Witness
from simpletuner_fleet.core.decision import Decision
from simpletuner_fleet.core.errors import NotFound, StaleMessage, Superseded
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.gpu_health import Health, with_health
from simpletuner_fleet.core.job import Attempt, AttemptState, EndReason, Outcome
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
from simpletuner_fleet.orchestrator.fleet import Fleet
from simpletuner_fleet.orchestrator.inventory import held_data, with_facts
from simpletuner_fleet.orchestrator.orders import orders_for, stale_order
from simpletuner_fleet.orchestrator.report import gpus_free
from simpletuner_fleet.ports import View
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


async def stream_alive(fleet: Fleet, worker: Worker) -> None:
    """Older agents are silent while their trainer is: their open stream is their sign of life."""
    if not worker.legacy:
        return
    await _legacy_alive(fleet, worker)
    if not fleet.hears(worker.id):
        await fleet.act(lambda desk: desk.set_hearing(worker.id, True))


async def _legacy_alive(fleet: Fleet, worker: Worker) -> None:
    fleet.presence.heard(worker.id, fleet.clock.now())
    for attempt in await fleet.read(lambda view: view.live_attempts_of_worker(worker.id)):
        fleet.presence.confirmed((attempt.job_id, attempt.epoch), worker.id)


async def stream_alive_of(fleet: Fleet, worker_id: str) -> None:
    worker = await fleet.read(lambda view: view.worker(worker_id))
    if worker:
        await stream_alive(fleet, worker)


async def _legacy_idle(fleet: Fleet, worker_id: str) -> None:
    """Older agents try a final report once. If it was lost, that they are idle is all that is ever heard of it."""
    if await fleet.read(lambda view: view.live_attempts_of_worker(worker_id)):
        await fleet.act(lambda desk: _runs_nothing(desk, worker_id))


def _runs_nothing(desk: Desk, worker_id: str) -> None:
    for attempt in desk.live_attempts(worker_id):
        # A heartbeat sent before the job reached the agent may be read after it began.
        taken_for_s = abs(desk.now - (attempt.accepted_at or desk.now))
        if attempt.state is AttemptState.RUNNING and taken_for_s >= desk.policy.heartbeat_interval_s:
            why = "its worker says that it runs nothing"
            desk.apply(lifecycle.lost(desk.job(attempt.job_id), attempt, why, desk.policy, now=desk.now))


async def heartbeat(fleet: Fleet, worker: Worker, message: Heartbeat, *, base_url: str) -> HeartbeatAnswer:
    must_be_newest(worker, message.incarnation)
    now = fleet.clock.now()
    held = message.attempts or []
    unknown = [item for item in held if not fleet.presence.confirmed((item.job_id, item.epoch), worker.id)]
    leaving = message.status == LEAVING
    if leaving and fleet.hears(worker.id):
        await fleet.act(lambda desk: desk.set_hearing(worker.id, False))
    # An offer it let pass made it deaf; the answer to this carries offers too, whatever became of its stream.
    deaf = not worker.legacy and not leaving and not fleet.hears(worker.id)
    back = worker.connection is Connection.OFFLINE or not fleet.presence.expected(worker.id) or deaf
    fleet.presence.heard(worker.id, now)
    known = {gpu.uuid for gpu in worker.gpus}
    fleet.gpu_history.note(worker.id, now, [one for one in message.gpus if one.uuid in known])
    _witness(fleet, worker.id, message.audit_head)
    stale: list[StopAttempt] = []
    if unknown or back:
        stale = await fleet.act(lambda desk: _came_back(desk, worker.id, unknown, hears=not leaving))
    seen = {one.uuid: Health(one.healthy, one.foreign_memory_gb) for one in message.gpus}
    if with_health(worker.gpus, seen) != worker.gpus:
        await fleet.act(lambda desk: _gpus_seen(desk, worker.id, seen))
    if message.data is not None:
        cache = held_data(message.data)
        if any(getattr(worker, name) != value for name, value in cache.items()):
            await fleet.act(lambda desk: desk.save_worker(replace(desk.worker(worker.id), **cache)))
    if worker.legacy:
        if message.status == IDLE and not message.current_job_id:
            await _legacy_idle(fleet, worker.id)
        await _legacy_alive(fleet, worker)
    fresh, orders, busy = await fleet.glance(lambda view: _present(fleet, view, worker.id, base_url))
    return HeartbeatAnswer(
        status=fresh.status(busy),
        jobs=orders.jobs,
        stop=[*orders.stop, *stale],
        drain=orders.drain,
        shutdown=orders.shutdown,
        audit_head=fleet.audit_head,
        heartbeat_interval_s=fleet.policy.heartbeat_interval_s,
        heartbeat_timeout_s=fleet.policy.heartbeat_timeout_s,
    )


async def goodbye(fleet: Fleet, worker: Worker, message: Goodbye, *, ip: str) -> None:
    must_be_newest(worker, message.incarnation)
    await fleet.act(lambda desk: _goodbye(desk, worker.id, message, ip))


async def orders(fleet: Fleet, worker_id: str, base_url: str) -> tuple[Worker, Orders]:
    worker, given, _ = await fleet.glance(lambda view: _present(fleet, view, worker_id, base_url))
    return worker, given


async def has_jobs(fleet: Fleet, worker_id: str) -> bool:
    """Asked by older agents before they leave."""
    return bool(await fleet.read(lambda view: view.live_attempts_of_worker(worker_id)))


def _present(fleet: Fleet, view: View, worker_id: str, base_url: str) -> tuple[Worker, Orders, bool]:
    worker = view.worker(worker_id)
    if worker is None:
        raise NotFound(f"There is no worker {worker_id}.")
    live = view.live_attempts_of_worker(worker_id)
    given = orders_for(view, worker, live, fleet.ids, fleet.vault, base_url, fleet.policy)
    return worker, given, bool(live)


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
        return [
            Held(item.job_id, item.epoch, item.state is not HeldState.ACCEPTING) for item in message.attempts
        ]
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


def _came_back(
    desk: Desk, worker_id: str, unknown: Sequence[HeldAttempt], *, hears: bool
) -> list[StopAttempt]:
    """A heartbeat from a worker given up, or one that names attempts we do not expect from it."""
    worker = desk.worker(worker_id)
    visit = _Visit()
    held = [Held(item.job_id, item.epoch, item.state is not HeldState.ACCEPTING) for item in unknown]
    live = {(attempt.job_id, attempt.epoch) for attempt in desk.live_attempts(worker_id)}
    strays = [item for item in held if (item.job_id, item.epoch) not in live and item.started]
    _take_back(desk, worker_id, worker.incarnation, strays, visit)
    if worker.connection is Connection.OFFLINE:
        worker = desk.worker(worker_id)
        desk.save_worker(replace(worker, connection=Connection.CONNECTED, offline_since=None))
        desk.record(_worker_event(EventType.WORKER_CONNECTED, worker, Actor(worker.id, worker.name)))
    desk.set_hearing(worker_id, hears)
    return visit.stop


def _gpus_seen(desk: Desk, worker_id: str, seen: dict[str, Health]) -> None:
    worker = desk.worker(worker_id)
    held = {uuid for attempt in desk.live_attempts(worker_id) for uuid in attempt.gpus}
    gpus = with_health(worker.gpus, seen, held)
    if gpus != worker.gpus:
        desk.save_worker(replace(worker, gpus=gpus))


def _goodbye(desk: Desk, worker_id: str, message: Goodbye, ip: str) -> None:
    worker = desk.worker(worker_id)
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
