"""Runs the health check: for silent workers, unanswered offers, jobs that are due, and ephemeral workers long gone."""

import logging
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.errors import NotFound, UnreadableRow
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, is_finishing
from simpletuner_fleet.core.jobs.requests import stopping
from simpletuner_fleet.core.workers import liveness
from simpletuner_fleet.core.workers.start_trouble import tried_again
from simpletuner_fleet.core.workers.worker import Connection
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.gpu_history import KEPT_S
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.organising.approvals import EXPIRIES_PER_ROUND, end_undecided
from simpletuner_fleet.orchestrator.workers.administer import end_drain
from simpletuner_fleet.orchestrator.workers.losing import give_up

log = logging.getLogger(__name__)

BACKOFFS_PER_ROUND = 500


async def sweep_once(fleet: Fleet) -> None:
    presence = fleet.presence
    presence.begin_round(fleet.clock.now())
    if presence.notice_mass_loss():
        log.error(
            "much of the fleet has fallen silent at once: its jobs stay where they are for %g s",
            fleet.policy.mass_loss_wait_s,
        )
    await _each(_whatever_is_due(fleet))


def _whatever_is_due(fleet: Fleet) -> Iterator[Coroutine[Any, Any, None]]:
    """Yields what is due, each looked for when those before it are done.

    Mostly there is nothing, and that costs nothing.
    """
    presence = fleet.presence
    for worker_id, silent_s in presence.silent_workers().items():
        yield _worker_silent(fleet, worker_id, silent_s)
    for turn in presence.unconfirmed_attempts():
        yield _attempt_unconfirmed(fleet, turn)
    for turn in presence.old_offers():
        yield _offer_unanswered(fleet, turn)
    yield _what_the_store_shows(fleet)
    heard = presence.take_unsaved()
    if heard:
        yield fleet.save_heartbeats(heard)
    if fleet.has_finishing_jobs():
        yield _results_overdue(fleet)
    for worker_id in fleet.drains_due():
        yield _drain_over(fleet, worker_id)
    for turn in fleet.ceilings_near():
        yield _ceiling_near(fleet, turn)
    for worker_id in fleet.pauses_over():
        yield _try_again(fleet, worker_id)
    if fleet.needs_a_step():
        yield fleet.act(
            lambda transaction: None
        )  # every act looks at the rows and the clock, and follows from them


async def _each(rounds: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Runs each part. A failure with one worker or job does not affect the others."""
    for one in rounds:
        try:
            await one
        except Exception:
            log.exception("a part of the health check failed; the rest goes on")


async def _worker_silent(fleet: Fleet, worker_id: str, silent_s: float) -> None:
    """Gives up what a silent worker runs, a part in each step; once all is, the worker is lost.

    One that is heard in between keeps what was not given up yet.
    """

    def step(transaction: Transaction) -> bool:
        if not fleet.presence.is_silent(worker_id):
            return False
        if transaction.tx.worker(worker_id) is None:
            transaction.effects.left.append(worker_id)
            return False
        # What is given up frees places, of which it must not be offered any.
        transaction.set_reachable(worker_id, False)
        why = f"no heartbeat for {silent_s:.0f} s"
        due = _to_be_given_up(fleet, transaction, worker_id)
        at_once = transaction.policy.given_up_at_once
        for attempt in due[:at_once]:
            give_up(transaction, attempt, why)
        if len(due) > at_once:
            return True
        _note_lost(transaction, worker_id, why)
        return False

    while await fleet.act(step):
        pass


def _to_be_given_up(fleet: Fleet, transaction: Transaction, worker_id: str) -> list[Attempt]:
    """Returns the attempts of a silent worker of which something may run that nobody hears of."""
    live = transaction.live_attempts(worker_id)
    if fleet.presence.holds_back:
        live = [one for one in live if one.state is not AttemptState.RUNNING]
    # Of one whose trainer has ended nothing runs: its worker may be back with its results.
    return [one for one in live if not is_finishing(transaction.job(one.job_id))]


def _note_lost(transaction: Transaction, worker_id: str, why: str) -> None:
    transaction.effects.left.append(worker_id)
    worker = transaction.worker(worker_id)
    if worker.connection is Connection.OFFLINE:
        return
    transaction.save_worker(replace(worker, connection=Connection.OFFLINE, offline_since=transaction.now))
    transaction.record(
        Event(
            type=EventType.WORKER_LOST,
            actor=ORCHESTRATOR,
            target_type="worker",
            target_id=worker_id,
            details={"worker_name": worker.name, "why": why},
        )
    )


def _live(transaction: Transaction, turn: Turn) -> tuple[Attempt, Job] | None:
    """Returns a live attempt and its job, or None where there is nothing to watch.

    So it is as well where one of their rows is not there any more, or cannot be read: nobody can say what becomes of it.
    """
    try:
        attempt = transaction.attempt_by_epoch(*turn)
    except UnreadableRow:
        attempt = None
    job = transaction.known_job(attempt.job_id) if attempt is not None and attempt.live else None
    if attempt is None or job is None:
        transaction.effects.ended.append(turn)
        return None
    return attempt, job


async def _attempt_unconfirmed(fleet: Fleet, turn: Turn) -> None:
    def step(transaction: Transaction) -> None:
        known = _live(transaction, turn)
        if known is None or not fleet.presence.is_unconfirmed(turn):
            return
        attempt, job = known
        why = f"its worker has not reported it for {transaction.policy.heartbeat_timeout_s:g} s"
        worker = transaction.tx.worker(attempt.worker_id)
        away = worker is not None and worker.connection is not Connection.CONNECTED
        if is_finishing(job) and away:
            return  # its worker may be back with its results; one that is here and does not name it has none
        give_up(transaction, attempt, why)

    await fleet.act(step)


async def _results_overdue(fleet: Fleet) -> None:
    """Gives up waiting for results from workers that have been away longer than results are waited for."""
    before = fleet.clock.now() - fleet.policy.results_wait_s

    def step(transaction: Transaction) -> None:
        for job_id in transaction.index.roster.finishing_jobs():
            job = transaction.job(job_id)
            worker = transaction.tx.worker(job.worker_id) if job.worker_id else None
            if not is_finishing(job) or job.attempt_id is None:
                continue
            if worker is None or (worker.offline_since is not None and worker.offline_since <= before):
                why = "its worker has been away for too long"
                try:
                    attempt = transaction.attempt(job.attempt_id)
                except (NotFound, UnreadableRow):
                    continue  # nobody can say what becomes of it; the others are not waited for longer for that
                give_up(transaction, attempt, why)

    await fleet.act(step)


async def _offer_unanswered(fleet: Fleet, turn: Turn) -> None:
    def step(transaction: Transaction) -> bool:
        known = _live(transaction, turn)
        if known is None or known[0].state is not AttemptState.OFFERED:
            return False
        attempt, job = known
        transaction.set_reachable(attempt.worker_id, False)
        transaction.apply(lifecycle.offer_expired(job, attempt, now=transaction.now))
        return True

    if not await fleet.act(step):
        fleet.presence.answered(turn)


async def _what_the_store_shows(fleet: Fleet) -> None:
    """Reads all that is due from the store at once: mostly there is nothing."""
    now = fleet.clock.now()
    fleet.gpu_history.forget_before(now - KEPT_S)
    before = now - fleet.policy.ephemeral_ttl_s
    backoffs, gone, undecided = await fleet.read_now(
        lambda view: (
            view.due_backoffs(now, BACKOFFS_PER_ROUND),
            view.offline_workers_before(before),
            view.due_approvals(now, EXPIRIES_PER_ROUND),
        )
    )
    rounds: list[Coroutine[Any, Any, None]] = []
    if backoffs:
        rounds.append(_release_backoffs(fleet, backoffs))
    rounds += [fleet.act(partial(_clean_up, worker_id=worker.id)) for worker in gone if not worker.local]
    if undecided:
        rounds.append(end_undecided(fleet, undecided))
    await _each(rounds)


async def _release_backoffs(fleet: Fleet, due: Sequence[Job]) -> None:
    def step(transaction: Transaction) -> None:
        for job in (transaction.known_job(stale.id) for stale in due):
            if job is not None:
                transaction.apply(lifecycle.hold_over(job, transaction.now))

    await fleet.act(step)


def _clean_up(transaction: Transaction, worker_id: str) -> None:
    worker = transaction.tx.worker(worker_id)
    if worker is None or worker.connection is not Connection.OFFLINE or transaction.live_attempts(worker_id):
        return
    if liveness.outlived(worker, transaction.policy, transaction.now):
        transaction.record(
            Event(
                type=EventType.WORKER_CLEANED_UP,
                actor=ORCHESTRATOR,
                target_type="worker",
                target_id=worker.id,
                details={"name": worker.name},
            )
        )
        transaction.delete_worker(worker)
        transaction.cut(worker_id, "cleaned_up")


async def _drain_over(fleet: Fleet, worker_id: str) -> None:
    def step(transaction: Transaction) -> None:
        if transaction.tx.worker(worker_id) is not None:
            end_drain(transaction, worker_id)

    await fleet.act(step)


async def _ceiling_near(fleet: Fleet, turn: Turn) -> None:
    def step(transaction: Transaction) -> None:
        known = _live(transaction, turn)
        if known is None:
            return
        attempt, job = known
        transaction.apply(stopping.ceiling_near(job, attempt, transaction.policy, transaction.now))
        transaction.wake(attempt.worker_id)

    await fleet.act(step)


async def _try_again(fleet: Fleet, worker_id: str) -> None:
    def step(transaction: Transaction) -> None:
        worker = transaction.tx.worker(worker_id)
        if worker is not None and worker.start_trouble is not None and worker.pause_is_over(transaction.now):
            transaction.save_worker(replace(worker, start_trouble=tried_again(worker.start_trouble)))

    await fleet.act(step)
