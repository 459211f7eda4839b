"""Runs one transaction: what it has read, what was decided in it, and what follows once it is durable."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from simpletuner_fleet.core.errors import NotFound, UnreadableRow, no_such_job, no_such_worker
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, JobState
from simpletuner_fleet.core.jobs.lifecycle import dependency_ended as lifecycle_dependency_ended
from simpletuner_fleet.core.jobs.progress import fields_of
from simpletuner_fleet.core.jobs.requests.deleting import DeletedJob
from simpletuner_fleet.core.money.costs import repriced
from simpletuner_fleet.core.people.accounts import User
from simpletuner_fleet.core.people.approvals import ApprovalState, decided, waits_for_approval
from simpletuner_fleet.core.people.revocations import TAKES_AWAY, Revocation, noted_in
from simpletuner_fleet.core.placement.roster.reservations import Reserved
from simpletuner_fleet.core.policy import Limits, Policy
from simpletuner_fleet.core.workers.worker import AdminState, Worker, WorkerStatus
from simpletuner_fleet.engine.memory.causes import (
    Cause,
    ClassHasJob,
    EveryClassMayGo,
    LimitsMayLetGo,
    WorkerMayTake,
)
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.memory.organisation import Organisation
from simpletuner_fleet.ports import Ids, Tx, Vault
from simpletuner_fleet.protocol.messages import JobSubmit

_ENDED = AttemptState.ENDED
"""Compared at every change of an attempt, without a call (`Attempt.live`); see `core/jobs/job.py`."""
TOLD_TO_WORKERS = frozenset({JobState.DISPATCHED, JobState.CANCELLING})
"""What becomes of a job otherwise its worker has told us, or learns when it asks."""


class Everybody(Struct, frozen=True):
    """Holds all who are to be heard: the workers, and the attempts that are live."""

    workers: list[Worker]
    live: list[Attempt]


class Effects(Struct):
    """Collects what is done after the commit; every effect is a hint that may be lost."""

    wake: set[str] = field(default_factory=set)
    offers: dict[str, list[JobSubmit]] = field(default_factory=dict)
    """By worker. Sent as they were decided: nobody has to read them again first."""
    cut: list[tuple[str, str]] = field(default_factory=list)
    began: list[tuple[Turn, str]] = field(default_factory=list)
    ended: list[Turn] = field(default_factory=list)
    reported: tuple[Turn, str] | None = None
    """Which attempt a worker has reported on here, and which worker."""
    left: list[str] = field(default_factory=list)
    published: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    audit_head: tuple[int, str] | None = None
    waited_s: list[float] = field(default_factory=list)
    """From submission to the first offer, of each job first offered here."""
    outcomes: list[tuple[str, str]] = field(default_factory=list)
    """How each attempt that ended here ended, and the class of its failure, if it was one."""
    due: list[float] = field(default_factory=list)
    """When jobs that are held from now on may go on."""
    revoked: list[Revocation] = field(default_factory=list)
    organisation: Organisation | None = None
    """As it is from now on, where it was changed or the rows were told anew."""
    unfinished: bool = False
    """Whether jobs are left that have not been told of an end yet, from this transaction or from any before it, or
    that may be placed."""
    everybody: Everybody | None = None
    """Where the rows were told anew: of what a commit has stored whose answer was lost, nobody has heard yet."""


class Transaction(Struct, eq=False):
    tx: Tx
    index: FleetIndex
    ids: Ids
    policy: Policy
    now: float
    vault: Vault | None = None
    effects: Effects = field(default_factory=Effects)
    causes: deque[Cause] = field(default_factory=deque)
    may_place: int = 0
    """How many jobs this transaction may still place."""
    _due_once: set[Cause] = field(default_factory=set)
    """Causes for which everybody who waits is gone through, of those that are not followed yet."""
    _jobs: dict[str, Job] = field(default_factory=dict)
    _attempts: dict[str, Attempt] = field(default_factory=dict)
    _workers: dict[str, Worker] = field(default_factory=dict)
    _standing_before: dict[str, tuple[Worker, bool]] = field(default_factory=dict)
    """Of each worker concerned, its row and whether it had attempts."""
    _events: list[Event] = field(default_factory=list)
    _reachable_before: dict[str, bool] = field(default_factory=dict)
    _reserved_before: Reserved | None = None
    """None: no worker was reserved."""
    _limits_changed: bool = False
    _ended_jobs: deque[str] = field(default_factory=deque)
    """Jobs that have ended here and whose dependents have not been told yet."""
    _telling_dependents: bool = False
    _may_tell: int = 0
    """How many dependents this transaction may still look at, and jobs for their sake."""
    _repriced: set[str] = field(default_factory=set)
    """Workers whose prices may have changed."""

    def __post_init__(self) -> None:
        self.may_place, self._may_tell = self.policy.placed_at_once, self.policy.told_at_once
        reservations = self.index.roster.reservations
        if reservations.by_worker:
            self._reserved_before = reservations.copied()

    # Reading: each row once, as this transaction has left it.

    def job(self, job_id: str) -> Job:
        if job_id in self._jobs:
            return self._jobs[job_id]
        job = self.tx.job(job_id)
        if job is None:
            raise no_such_job(job_id)
        self._jobs[job_id] = job
        return job

    def known_job(self, job_id: str) -> Job | None:
        """Returns the job; None where it is not there any more, or cannot be read: nobody can say what becomes of it."""
        try:
            return self.job(job_id)
        except (NotFound, UnreadableRow):
            return None

    def attempt(self, attempt_id: str) -> Attempt:
        attempt = self._attempts.get(attempt_id) or self.tx.attempt(attempt_id)
        if attempt is None:
            raise NotFound(f"There is no attempt {attempt_id}.")
        self._attempts[attempt_id] = attempt
        return attempt

    @property
    def limits(self) -> Limits:
        known = self.index.limits
        return self.index.limits_in(self.tx) if known is None else known

    @property
    def organisation(self) -> Organisation:
        known = self.index.organisation
        return self.index.organisation_in(self.tx, self.now) if known is None else known

    def current_attempt(self, job: Job) -> Attempt | None:
        return self.attempt(job.attempt_id) if job.attempt_id and not job.terminal else None

    def attempt_by_epoch(self, job_id: str, epoch: int) -> Attempt | None:
        attempt = self.tx.attempt_by_epoch(job_id, epoch)
        if attempt is not None:
            self._attempts[attempt.id] = attempt
        return attempt

    def worker(self, worker_id: str) -> Worker:
        worker = self._workers.get(worker_id) or self.tx.worker(worker_id)
        if worker is None:
            raise no_such_worker(worker_id)
        self._workers[worker_id] = worker
        return worker

    def worker_in_memory(self, worker_id: str) -> Worker:
        """Returns the worker from the index; only its last heartbeat and message may be newer in the store."""
        if worker_id in self._workers:
            return self._workers[worker_id]
        workers = self.index.roster.workers
        return workers[worker_id] if worker_id in workers else self.worker(worker_id)

    def live_attempts(self, worker_id: str) -> list[Attempt]:
        return [self._noted(attempt) for attempt in self.tx.live_attempts_of_worker(worker_id)]

    def _noted(self, attempt: Attempt) -> Attempt:
        self._attempts[attempt.id] = attempt
        return attempt

    # Writing: rows, the index beside them, and what follows from both.

    def apply(self, decision: Decision) -> None:
        self._events += decision.events
        if decision.attempt is not None:
            self._save_attempt(decision.attempt)
        if decision.job is not None:
            self._save_job(decision.job)
        if self._ended_jobs and not self._telling_dependents:
            self._tell_of_ends_here()

    def record(self, event: Event) -> None:
        self._events.append(event)

    def add_job(self, job: Job, bundle: bytes) -> None:
        self.tx.add_job(job, bundle)
        self._jobs[job.id] = job
        self._follow_job(job, None)

    def delete_job(self, job: Job, deleted: DeletedJob) -> None:
        self.tx.delete_job(deleted)
        self._jobs.pop(job.id, None)
        self._attempts = {id: one for id, one in self._attempts.items() if one.job_id != job.id}
        self.publish_job(job, deleted=True)

    def add_worker(self, worker: Worker) -> None:
        self.tx.add_worker(worker)
        self._workers[worker.id] = worker

    def save_worker(self, worker: Worker) -> None:
        self._note_standing(worker.id)
        known = self.index.roster.workers.get(worker.id)
        if known is not None and _priced_by(known) != _priced_by(worker):
            self._repriced.add(worker.id)
        self.tx.save_worker(worker)
        self._workers[worker.id] = replace(worker, version=worker.version + 1)
        self._offer_to(worker.id)

    def delete_worker(self, worker: Worker) -> None:
        self.tx.delete_worker(worker.id)
        self._workers.pop(worker.id, None)
        self._standing_before.pop(worker.id, None)
        self.set_reachable(worker.id, False)
        self.effects.left.append(worker.id)

    def set_reachable(self, worker_id: str, reachable: bool) -> None:
        self._reachable_before.setdefault(worker_id, worker_id in self.index.reachable)
        self.index.set_reachable(worker_id, reachable)
        if reachable:
            self._offer_to(worker_id)

    def undo(self) -> None:
        """Undoes what no row holds; the store rolls back the rows."""
        for worker_id, reachable in self._reachable_before.items():
            self.index.set_reachable(worker_id, reachable)
        self.index.reserved_before = self._reserved_before or {}
        if self._limits_changed:
            self.index.limits = None
        if self.effects.organisation is not None:
            self.index.organisation = None

    def wake(self, worker_id: str) -> None:
        self.effects.wake.add(worker_id)

    def send_offer(self, worker_id: str, offer: JobSubmit) -> None:
        self.effects.offers.setdefault(worker_id, []).append(offer)

    def cut(self, worker_id: str, why: str) -> None:
        self.effects.cut.append((worker_id, why))

    def publish(self, event: str, **data: Any) -> None:
        self.effects.published.append((event, data))

    def publish_job(self, job: Job, **data: Any) -> None:
        """Publishes news of a job with whose it is, so that a watcher gets only what they may see."""
        self.publish("job", id=job.id, status=job.state, belongs=job.belongs, **data)

    def limits_changed(self) -> None:
        self._limits_changed = True
        self.index.limits = None
        self.consider_every_class()

    def organisation_changed(self) -> None:
        """Reads the organisation anew but for its users, and places what may be placed now."""
        prices = self.index.roster.prices
        self.effects.organisation = self.index.organisation_changed(self.tx, self.now)
        if self.organisation.prices != prices:
            self._repriced |= {attempt.worker_id for attempt in self.tx.live_attempts()}
        self.consider_every_class()

    def user_changed(self, user: User) -> None:
        """Updates one user.

        No job of a new user waits yet; whoever changes a role also considers every class.
        """
        self.effects.organisation = self.index.user_changed(self.tx, self.now, user)

    def consider_every_class(self) -> None:
        self._consider_once(EveryClassMayGo())

    def _consider_once(self, cause: Cause) -> None:
        if (
            cause not in self._due_once
        ):  # nothing is placed before the causes are followed: once sees everything
            self._due_once.add(cause)
            self.causes.append(cause)

    def go_on_with(self, causes: Iterable[Cause]) -> None:
        """Takes over what transactions before this one have left to place."""
        for cause in causes:
            if isinstance(cause, EveryClassMayGo | LimitsMayLetGo):
                self._consider_once(cause)
            else:
                self.causes.append(cause)

    def put_back(self, cause: Cause) -> None:
        """Leaves a cause that may not have been followed to its end to the next transaction, before all others."""
        self.causes.appendleft(cause)

    def next_cause(self) -> Cause:
        cause = self.causes.popleft()
        if self._due_once:
            self._due_once.discard(cause)
        return cause

    def finish(self) -> None:
        """Records how statuses changed, then every fact of this transaction, in order."""
        if self._repriced:
            self._follow_prices()
        if self._standing_before:
            self._follow_standing()
        if self._events:
            entries = self.tx.append_audit(self.now, self._events)
            if entries:
                self.effects.audit_head = (entries[-1].seq, entries[-1].hash)
            for entry in entries:
                if entry.event_type in TAKES_AWAY:
                    self.effects.revoked.append(noted_in(entry))
        self.effects.unfinished = bool(self.causes) or self.tx.next_untold() is not None

    def _follow_standing(self) -> None:
        """Records which workers have another status now than before this transaction."""
        roster = self.index.roster
        for worker_id, (row_before, had_attempts) in self._standing_before.items():
            row, has_attempts = self.worker_in_memory(worker_id), roster.has_attempts(worker_id)
            if row is row_before and has_attempts is had_attempts:
                continue
            before, after = row_before.status(had_attempts), row.status(has_attempts)
            if after is not before:
                self.record(self._status_changed(worker_id, before, after))
                self.publish("worker", id=worker_id, status=after)

    def _follow_prices(self) -> None:
        """Applies the workers' present prices to attempts that continue; it comes last, when all is decided."""
        for worker_id in sorted(self._repriced):
            worker = self.index.roster.workers.get(worker_id)
            for attempt in self.live_attempts(worker_id) if worker else ():
                changed = repriced(attempt, worker, self.organisation.prices, self.now) if worker else None
                if changed is not None:
                    self._save_attempt(changed)

    def _save_job(self, job: Job) -> None:
        before = self._jobs[job.id] if job.id in self._jobs else self.job(job.id)
        saved = self._jobs[job.id] = self.tx.save_job(job)
        self._follow_job(saved, before)

    def _save_attempt(self, attempt: Attempt) -> None:
        known = self._attempts.get(attempt.id)
        begins_or_ends = (attempt.state is _ENDED) is not (known is None or known.state is _ENDED)
        if begins_or_ends:  # else its worker has as many as before
            self._note_standing(attempt.worker_id)
        if known is None:  # every attempt that existed before was read at this transaction
            self.tx.add_attempt(attempt)
        else:
            self.tx.save_attempt(attempt)
        self._attempts[attempt.id] = attempt
        if begins_or_ends:
            self._follow_attempt(attempt)

    def _follow_job(self, job: Job, before: Job | None) -> None:
        roster = self.index.roster
        if roster.freed:
            self._feed_freed()
        if job.id in roster.lines.entries:
            self.causes.append(ClassHasJob(job.line))
        elif job.not_before is not None and job.state is JobState.QUEUED:
            self.effects.due.append(job.not_before)
        if job.worker_id and job.state in TOLD_TO_WORKERS:
            self.wake(job.worker_id)
        if before is None or before.state is not job.state:
            self.publish_job(job)
            if before is not None and job.terminal and not before.terminal:
                self._withdraw_approval(before)
                self._ended_jobs.append(job.id)
        elif before.progress != job.progress or before.priority != job.priority:
            self.publish_job(job, progress=fields_of(job.progress))

    def _feed_freed(self) -> None:
        """Offers jobs to the workers that a job kept others off and no longer does."""
        freed, self.index.roster.freed = self.index.roster.freed, []
        for worker_id in freed:
            self._offer_to(worker_id)

    def _follow_attempt(self, attempt: Attempt) -> None:
        """Follows an attempt that begins to live, or no longer does."""
        roster = self.index.roster
        if attempt.live:
            if attempt.accepted_at is not None:  # it was thought lost, and prices may have changed meanwhile
                self._repriced.add(attempt.worker_id)
            self.effects.began.append((Turn(attempt.job_id, attempt.epoch), attempt.worker_id))
            if attempt.number == 1:
                self.effects.waited_s.append(self.now - self.job(attempt.job_id).created_at)
            return
        self.effects.ended.append(Turn(attempt.job_id, attempt.epoch))
        self.effects.outcomes.append((attempt.outcome or "", attempt.failure_class or ""))
        worker = roster.workers.get(attempt.worker_id)
        if worker and worker.admin is AdminState.DRAINING:
            self.wake(attempt.worker_id)
        for worker_id in roster.offering(attempt.worker_id, attempt.gpus):
            self._offer_to(worker_id)
        if roster.start_limits(self.limits) is not None:
            self._consider_once(LimitsMayLetGo())

    def _withdraw_approval(self, before: Job) -> None:
        """Withdraws the approval that a job was waiting for when it ended: nobody has to decide any more."""
        try:
            approval = self.tx.approval(before.id) if waits_for_approval(before) else None
        except UnreadableRow:
            return  # nobody could decide on it either, and its job is ended all the same
        if approval is not None and approval.state is ApprovalState.PENDING:
            self.tx.put_approval(decided(approval, ApprovalState.WITHDRAWN, self.now))

    def tell_of_earlier_ends(self) -> bool:
        """Tells jobs of ends that transactions before this one have left to tell; returns whether some are left."""
        self._telling_dependents = True
        while self._may_tell > 0 and (job_id := self.tx.next_untold()):
            self._tell_dependents_of(job_id)
        self._ended_jobs.clear()
        self._telling_dependents = False
        return self.tx.next_untold() is not None

    def _tell_of_ends_here(self) -> None:
        """Follows each end to the jobs that waited for it, one after another: a chain may be longer than any stack.

        As many as one transaction may tell; the rows show who is left, and they are told by later ones.
        """
        self._telling_dependents = True
        while self._ended_jobs and self._may_tell > 0:
            self._tell_dependents_of(self._ended_jobs.popleft())
        self._ended_jobs.clear()
        self._telling_dependents = False

    def _tell_dependents_of(self, job_id: str) -> None:
        told_up_to = self.tx.told_up_to(job_id)
        if told_up_to is None:
            return
        waiting = self.tx.dependents_of(job_id, told_up_to, max(1, self._may_tell))
        ended = self._looked_up(job_id) if waiting else None
        if ended is None:  # or nobody can say how it ended: then nobody can say what follows
            self.tx.note_told(job_id, None)
            return
        for dependent in waiting:
            others = self._those_that_go_on_first(id for id in dependent.depends_on if id != job_id)
            self.apply(lifecycle_dependency_ended(self.job(dependent.id), ended, others, now=self.now))
            self._may_tell -= 1
            self.tx.note_told(job_id, dependent.seq)
            if self._may_tell <= 0:
                return
        self.tx.note_told(job_id, None)

    def _those_that_go_on_first(self, job_ids: Iterable[str]) -> Iterator[Job | None]:
        """Yields what a job waits for as well: whoever asks may need no more, and those that are over cost a look-up."""
        over: list[str] = []
        for job_id in job_ids:
            if self.tx.job_goes_on(job_id):
                yield self.job(job_id)
            else:
                over.append(job_id)
        yield from map(self._looked_up, over)

    def _looked_up(self, job_id: str) -> Job | None:
        """Returns how a job ended, if anybody can say so; the end that is told here is one all the same."""
        if job_id not in self._jobs:
            self._may_tell -= 1  # a look-up takes as long as one that is told
        return self.known_job(job_id)

    def _offer_to(self, worker_id: str) -> None:
        if self.index.roster.is_open(worker_id):
            self.causes.append(WorkerMayTake(worker_id))

    def _note_standing(self, worker_id: str) -> None:
        roster = self.index.roster
        if worker_id not in self._standing_before and worker_id in roster.workers:
            row, has_attempts = self.worker_in_memory(worker_id), roster.has_attempts(worker_id)
            self._standing_before[worker_id] = row, has_attempts

    def _status_changed(self, worker_id: str, before: WorkerStatus, after: WorkerStatus) -> Event:
        return Event(
            type=EventType.WORKER_STATUS_CHANGED,
            actor=ORCHESTRATOR,
            target_type="worker",
            target_id=worker_id,
            details={"from": before, "to": after, "name": self.worker_in_memory(worker_id).name},
        )


def _priced_by(worker: Worker) -> tuple[object, ...]:
    """Returns the fields of the worker that the price of its GPUs depends on."""
    return (
        *(worker.price_micros, worker.reported_price_micros, worker.gpus, worker.labels),
        *(worker.reported_labels, worker.worker_type),
    )
