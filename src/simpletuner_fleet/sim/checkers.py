"""The promises, as functions over what is stored and what really ran.

Each takes rows, a view or the ground truth and returns the problems it finds, so that a test with real processes can
ask the same questions. `Watch` asks them after every commit of the simulator, of the rows that changed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

from msgspec.structs import replace

from simpletuner_fleet.core.audit import AuditEntry, ChainCheck, Witness, entry_hash
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.job import (
    HOLDS_ATTEMPT,
    JOB_TRANSITIONS,
    Attempt,
    AttemptState,
    EndReason,
    Hold,
    Job,
    JobState,
    Outcome,
)
from simpletuner_fleet.core.matching import FREE, Occupancy, why_never, why_not_now
from simpletuner_fleet.core.placement import Placement, place
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.worker import AdminState, Connection, Worker, WorkerStatus, published_status
from simpletuner_fleet.orchestrator.index import FleetIndex, read_limits
from simpletuner_fleet.ports import View
from simpletuner_fleet.sim.store import Changes
from simpletuner_fleet.sim.truth import Truth
from simpletuner_fleet.sim.world import Violation

Problem = tuple[str, str]
"""Which promise, and how it was broken."""

EDGES = frozenset((before, after) for (before, _), after in JOB_TRANSITIONS.items())
HIGHEST_EPOCH = 2**41
EVERY_JOB = 1_000_000
E = EventType
J = JobState
TOLD_BY: dict[tuple[JobState, JobState], frozenset[EventType]] = {
    (J.BLOCKED, J.QUEUED): frozenset({E.JOB_UNBLOCKED, E.JOB_APPROVED}),
    (J.BLOCKED, J.CANCELLED): frozenset({E.JOB_CANCELLED, E.JOB_REJECTED}),
    (J.BLOCKED, J.FAILED): frozenset({E.JOB_FAILED}),
    (J.QUEUED, J.DISPATCHED): frozenset({E.JOB_DISPATCHED}),
    (J.QUEUED, J.RUNNING): frozenset({E.JOB_READOPTED}),
    (J.QUEUED, J.CANCELLED): frozenset({E.JOB_CANCELLED}),
    (J.DISPATCHED, J.RUNNING): frozenset({E.JOB_ACCEPTED}),
    (J.DISPATCHED, J.QUEUED): frozenset({E.JOB_REQUEUED}),
    (J.DISPATCHED, J.CANCELLED): frozenset({E.JOB_CANCELLED}),
    (J.DISPATCHED, J.CANCELLING): frozenset({E.JOB_CANCEL_REQUESTED}),
    (J.RUNNING, J.COMPLETED): frozenset({E.JOB_COMPLETED}),
    (J.RUNNING, J.QUEUED): frozenset({E.JOB_REQUEUED}),
    (J.RUNNING, J.FAILED): frozenset({E.JOB_FAILED}),
    (J.RUNNING, J.CANCELLED): frozenset({E.JOB_CANCELLED}),
    (J.RUNNING, J.CANCELLING): frozenset({E.JOB_CANCEL_REQUESTED}),
    (J.CANCELLING, J.COMPLETED): frozenset({E.JOB_COMPLETED}),
    (J.CANCELLING, J.CANCELLED): frozenset({E.JOB_CANCELLED}),
}


# Single rows


def job_problems(job: Job, attempts: list[Attempt]) -> list[Problem]:
    """What must hold of a job and all its attempts at any moment."""
    found: list[Problem] = []
    live = [attempt for attempt in attempts if attempt.live]
    if len(live) > 1:
        found.append(("S3", f"{job.id} has {len(live)} live attempts"))
    if (job.state in HOLDS_ATTEMPT) != bool(live):
        found.append(("S13", f"{job.id} is {job.state} with {len(live)} live attempts"))
    if live and (live[0].id != job.attempt_id or live[0].epoch != job.epoch):
        found.append(
            ("S2", f"{job.id} names attempt {job.attempt_id} of epoch {job.epoch}, live is {live[0].id}")
        )
    if live and live[0].worker_id != job.worker_id:
        found.append(("S2", f"{job.id} names {job.worker_id}, its attempt is on {live[0].worker_id}"))
    if job.state in (J.QUEUED, J.BLOCKED) and (job.worker_id or job.attempt_id or job.gpus):
        found.append(("S13", f"{job.id} is {job.state} and still names a worker, an attempt or GPUs"))
    if job.terminal and (job.finished_at is None or job.hold is not Hold.NONE):
        found.append(("S1", f"{job.id} ended without a time or with a hold"))
    if job.attempts != len(attempts):
        found.append(("S9", f"{job.id} counts {job.attempts} attempts and has {len(attempts)}"))
    in_vain = Counter(a.resumed_manifest for a in attempts if a.reason == EndReason.RESUME_FAILED)
    if in_vain and max(in_vain.values()) > Policy().resume_tries:
        found.append(("S9", f"{job.id} was to go on from one checkpoint in vain again and again: {in_vain}"))
    outcomes = Counter(attempt.outcome for attempt in attempts)
    if job.charged > 1 + job.max_retries:
        found.append(("S9", f"{job.id} was charged {job.charged} times, {job.max_retries} retries allowed"))
    if job.state is not J.CANCELLED and (
        job.losses != outcomes[Outcome.LOST] or job.failures != outcomes[Outcome.FAILED]
    ):
        found.append(
            (
                "S9",
                f"{job.id} is charged {job.losses} losses, {job.failures} failures; attempts say {outcomes}",
            )
        )
    for before, after in pairwise(sorted(attempts, key=lambda attempt: attempt.epoch)):
        below, step = before.resume_below, after.resumed_from_step
        if below is not None and step is not None and step >= below:
            found.append(("S9", f"{job.id} goes on from step {step}, which is spoiled"))
    if outcomes[Outcome.COMPLETED] != (job.state is J.COMPLETED):
        found.append(("S1", f"{job.id} is {job.state} with {outcomes[Outcome.COMPLETED]} completed attempts"))
    return found


def attempt_problems(attempt: Attempt) -> list[Problem]:
    ended = attempt.state is AttemptState.ENDED
    if ended != (attempt.outcome is not None) or ended != (attempt.ended_at is not None):
        return [("S13", f"attempt {attempt.id} is {attempt.state} with outcome {attempt.outcome}")]
    if (
        attempt.reason == EndReason.TIME_LIMIT
        and attempt.outcome is Outcome.RELEASED
        and not attempt.saved_something
    ):
        return [("S9", f"attempt {attempt.id} used up its time without a step forward and charges nothing")]
    if attempt.state is AttemptState.RUNNING and attempt.accepted_at is None:
        return [("S13", f"attempt {attempt.id} runs and was never accepted")]
    return []


def worker_problems(worker: Worker, live: list[Attempt]) -> list[Problem]:
    found: list[Problem] = []
    held = [gpu for attempt in live for gpu in attempt.gpus]
    if len(held) != len(set(held)):
        found.append(("S10", f"{worker.id} has given a GPU to two attempts"))
    status = worker.status(bool(live))
    if status is not published_status(worker.admin, worker.connection, bool(live)):
        found.append(("S15", f"{worker.id} is published as {status}"))
    if (worker.connection is Connection.OFFLINE) != (worker.offline_since is not None):
        found.append(("S15", f"{worker.id} is {worker.connection}, offline since {worker.offline_since}"))
    return found


def offer_problems(attempt: Attempt, job: Job, worker: Worker | None, live: list[Attempt]) -> list[Problem]:
    """A fresh offer: the worker must be there, willing, fitting and free."""
    if worker is None:
        return [("S10", f"{attempt.id} was offered to {attempt.worker_id}, which does not exist")]
    found: list[Problem] = []
    if worker.connection is not Connection.CONNECTED or worker.admin is not AdminState.ACTIVE:
        found.append(("S10", f"{job.id} was offered to {worker.id}: {worker.connection}, {worker.admin}"))
    refusal = why_never(worker, job.requires)
    if refusal is not None:
        found.append(("S10", f"{job.id} was offered to {worker.id}, which {refusal}"))
    if len(live) > worker.max_jobs:
        found.append(("S10", f"{worker.id} holds {len(live)} attempts and takes {worker.max_jobs}"))
    if not set(attempt.gpus) <= {gpu.uuid for gpu in worker.gpus} or len(attempt.gpus) != job.requires.gpus:
        found.append(("S10", f"{job.id} was given {attempt.gpus} of {worker.id}"))
    return found


# Whole stores


def store_problems(view: View, job_ids: Iterable[str]) -> list[Problem]:
    """Every row of these jobs, every worker, and the chain of the audit log."""
    found: list[Problem] = []
    for job_id in job_ids:
        job = view.job(job_id)
        if job is None:
            found.append(("S1", f"{job_id} was acknowledged and is not there"))
            continue
        attempts = view.attempts_of_job(job_id)
        found += job_problems(job, attempts)
        for attempt in attempts:
            found += attempt_problems(attempt)
    for worker in view.workers():
        found += worker_problems(worker, view.live_attempts_of_worker(worker.id))
    return found


def audit_problems(entries: Iterable[AuditEntry], witnesses: Iterable[Witness] = ()) -> list[Problem]:
    check = ChainCheck(list(witnesses))
    check.feed(entries)
    return [("A2", f"entry {problem.seq}: {problem.what}") for problem in check.finish()]


def index_problems(index: FleetIndex, view: View) -> list[Problem]:
    """The index beside the store must be what a fresh look at the store would make of it."""
    if index.unplaced:
        return []
    fresh = FleetIndex()
    fresh.hearing = set(index.hearing)
    follow_everything(fresh, view)
    kept, true = index.roster, fresh.roster
    found: list[Problem] = []
    if set(kept.workers) != set(true.workers):
        found.append(("index", f"knows {sorted(kept.workers)}, stored are {sorted(true.workers)}"))
        return found
    if (kept.running, kept.running_by_owner) != (true.running, true.running_by_owner):
        found.append(("index", f"counts {kept.running} running, stored are {true.running}"))
    for worker_id, worker in true.workers.items():
        mine = kept.workers[worker_id]
        if (mine.admin, mine.connection, mine.gpus, mine.labels, mine.trainers) != (
            worker.admin,
            worker.connection,
            worker.gpus,
            worker.labels,
            worker.trainers,
        ):
            found.append(("index", f"has an old picture of {worker_id}"))
        if kept.occupancy(worker_id) != true.occupancy(worker_id):
            found.append(
                ("index", f"{worker_id} holds {true.occupancy(worker_id)}, not {kept.occupancy(worker_id)}")
            )
        if kept.is_open(worker_id) != true.is_open(worker_id):
            found.append(("index", f"{worker_id} is open: {true.is_open(worker_id)}"))
    waiting = set(kept.classes_with_jobs())
    if waiting != set(true.classes_with_jobs()):
        found.append(
            ("index", f"classes {sorted(waiting)} wait, stored are {sorted(true.classes_with_jobs())}")
        )
        return found
    for class_id in waiting:
        if kept.count(class_id) != true.count(class_id):
            found.append(
                ("index", f"class {class_id}: {kept.count(class_id)} wait, stored {true.count(class_id)}")
            )
        if kept.fitting(class_id) != true.fitting(class_id):
            found.append(("index", f"class {class_id} fits {sorted(kept.fitting(class_id))}"))
        if kept.head(class_id) != true.head(class_id):
            found.append(("index", f"class {class_id} has {kept.head(class_id)} at its head"))
    if index.limits not in (None, read_limits(view)):
        found.append(("index", "has old limits"))
    return found


def follow_everything(index: FleetIndex, view: View) -> None:
    """Tells an index of every live row, as a store does after a start."""
    for worker in view.workers():
        index.worker_changed(None, worker)
    for job in view.queue_page(None, EVERY_JOB):
        index.job_changed(None, job)
    for attempt in view.live_attempts():
        owner = view.job(attempt.job_id)
        index.attempt_changed(None, attempt, owner.owner if owner else "")


def unplaced_problems(index: FleetIndex, view: View) -> list[Problem]:
    """Nothing that could be placed waits: every cause is followed in the transaction that made it."""
    found: list[Problem] = []
    if index.unplaced:
        return found
    roster, limits = index.roster, read_limits(view)
    for class_id in roster.classes_with_jobs():
        head = roster.head(class_id)
        job = view.job(head) if head else None
        if job is None:
            found.append(("index", f"class {class_id} counts jobs and has none"))
            continue
        if isinstance(place(roster, job, limits), Placement):
            found.append(("L1", f"{job.id} waits and a worker could take it"))
    return found


def unrest(view: View, job_ids: Iterable[str]) -> str | None:
    """Why the fleet is not at rest: a job that holds an attempt, or that waits though it could be placed."""
    counts = view.job_counts()
    for state in ("dispatched", "running", "cancelling"):
        if counts.get(state):
            return f"{counts[state]} jobs are {state}"
    workers = view.workers()
    for job_id in job_ids:
        job = view.job(job_id)
        if job is None or job.terminal:
            continue
        if job.state is J.BLOCKED:
            pending = [id for id in job.depends_on if not _ended(view, id)]
            if job.hold is not Hold.APPROVAL and not pending:
                return f"{job.id} is blocked by nothing"
        elif job.hold is not Hold.NONE:
            return f"{job.id} waits for its retry"
        elif any(why_not_now(worker, FREE, job.requires) is None for worker in workers):
            return f"{job.id} waits though a worker could take it"
    return None


def _ended(view: View, job_id: str) -> bool:
    job = view.job(job_id)
    return job is not None and job.terminal


def outcome_problems(view: View, job_ids: Iterable[str], truth: Truth, unfenced: set[str]) -> list[Problem]:
    """What is recorded as done was really done, once. Workers in `unfenced` are taken at their word."""
    found: list[Problem] = []
    for job_id in job_ids:
        job = view.job(job_id)
        if job is None:
            continue
        for attempt in view.attempts_of_job(job_id):
            if attempt.worker_id in unfenced:
                continue
            if attempt.outcome is Outcome.COMPLETED and not truth.ended(job_id, attempt.epoch, "completed"):
                found.append(("S2", f"{job_id} epoch {attempt.epoch} is recorded as completed and was not"))
            if attempt.outcome is Outcome.EXPIRED_OFFER and (job_id, attempt.epoch) in truth.runs:
                found.append(("S4", f"{job_id} epoch {attempt.epoch} ran and was never accepted"))
    return found


def occupancy_of(live: list[Attempt]) -> Occupancy:
    return Occupancy(len(live), frozenset(gpu for attempt in live for gpu in attempt.gpus))


# After every commit


class Watch:
    """Sees each commit of the simulator and raises at the first broken promise."""

    def __init__(self, view: View, policy: Policy) -> None:
        self.view = view
        self.policy = policy
        self.edges: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.event_types: Counter[str] = Counter()
        self.newest_epoch = 0
        self._head_hash = "0" * 64
        self._head_seq = 0
        self._status: dict[str, WorkerStatus] = {}

    def saw(self, changes: Changes, *, sender: str | None) -> None:
        told: dict[str, set[str]] = {}
        for entry in changes.audit:
            told.setdefault(entry.target_id, set()).add(entry.event_type)
            self._chain(entry)
        busy_workers = set(changes.workers)
        for attempt_id, attempts in changes.attempts.items():
            self._attempt(attempt_id, attempts, changes)
            last = attempts[-1]
            if last is not None:
                busy_workers.add(last.worker_id)
        for job_id, jobs in changes.jobs.items():
            self._job(job_id, jobs, told.get(job_id, set()))
        for worker_id, workers in changes.workers.items():
            self._worker(worker_id, workers, told.get(worker_id, set()))
        for worker_id in sorted(busy_workers):
            self._status_told(worker_id)
        if sender is not None:
            self._only_its_own(changes, sender)

    def _chain(self, entry: AuditEntry) -> None:
        self.event_types[entry.event_type] += 1
        if entry.seq != self._head_seq + 1 or entry_hash(entry, self._head_hash) != entry.hash:
            raise Violation("A2", f"audit entry {entry.seq} does not follow {self._head_seq}")
        self._head_seq, self._head_hash = entry.seq, entry.hash
        if entry.event_type == E.WORKER_STATUS_CHANGED:
            before = self._status.get(entry.target_id)
            if before is not None and entry.details["from"] != before:
                raise Violation("A1", f"{entry.target_id} was {before}, not {entry.details['from']}")
            self._status[entry.target_id] = WorkerStatus(entry.details["to"])

    def _attempt(self, attempt_id: str, chain: list[Attempt | None], changes: Changes) -> None:
        first, last = chain[0], chain[-1]
        if last is None:
            raise Violation("S1", f"attempt {attempt_id} was deleted")
        self._raise(attempt_problems(last))
        job = self.view.job(last.job_id)
        if job is None:
            raise Violation("S1", f"attempt {attempt_id} has no job")
        if last.outcome is not None and (first is None or first.outcome is not last.outcome):
            self.outcomes[last.outcome] += 1
        if first is None:
            if last.epoch <= self.newest_epoch:
                raise Violation("S12", f"epoch {last.epoch} was given after {self.newest_epoch}")
            if last.epoch > HIGHEST_EPOCH:
                raise Violation("S16", f"somebody's lie has used up the epochs: {last.epoch}")
            self.newest_epoch = last.epoch
            if last.live:
                live = self.view.live_attempts_of_worker(last.worker_id)
                self._raise(offer_problems(last, job, self.view.worker(last.worker_id), live))
            return
        job_before = changes.jobs.get(last.job_id, [job])[0]
        if job_before is None or job_before.epoch != last.epoch:
            raise Violation("S2", f"{attempt_id} of epoch {last.epoch} was changed, the job was elsewhere")
        if not first.live and replace(first, checkpoint_step=last.checkpoint_step) == last:
            return  # its last upload arrived after its report
        if not first.live and first.outcome is not Outcome.LOST:
            raise Violation("S6", f"{attempt_id} had ended {first.outcome} and was changed")
        if not first.live and job_before.state is not J.QUEUED:
            raise Violation("S2", f"{attempt_id} was taken up again while the job was {job_before.state}")

    def _job(self, job_id: str, chain: list[Job | None], told: set[str]) -> None:
        last = chain[-1]
        if last is None:
            raise Violation("S1", f"{job_id} was deleted")
        if chain[0] is None and E.JOB_SUBMITTED not in told:
            raise Violation("A1", f"{job_id} appeared without an entry")
        for before, after in pairwise(chain):
            if before is None or after is None:
                continue
            if before.terminal:
                raise Violation("S6", f"{job_id} was {before.state} and was changed to {after.state}")
            if before.state is after.state:
                continue
            edge = (before.state, after.state)
            self.edges[f"{before.state} -> {after.state}"] += 1
            if edge not in EDGES:
                raise Violation("S13", f"{job_id} went from {before.state} to {after.state}")
            if not told & TOLD_BY[edge]:
                raise Violation("A1", f"{job_id} went from {before.state} to {after.state}; told was {told}")
            if before.state is J.CANCELLING and after.state not in (J.CANCELLED, J.COMPLETED):
                raise Violation("S7", f"{job_id} was being cancelled and became {after.state}")
        self._raise(job_problems(last, self.view.attempts_of_job(job_id)))

    def _worker(self, worker_id: str, chain: list[Worker | None], told: set[str]) -> None:
        first, last = chain[0], chain[-1]
        expected: list[tuple[bool, set[EventType]]] = [(first is None, {E.WORKER_CREATED})]
        if last is None:
            expected.append((True, {E.WORKER_DELETED, E.WORKER_CLEANED_UP}))
            self._status.pop(worker_id, None)
            if self.view.live_attempts_of_worker(worker_id):
                raise Violation("S10", f"{worker_id} was removed while it held attempts")
        elif first is not None:
            expected += [
                (first.admin is not last.admin, {E.WORKER_DRAINED, E.WORKER_RESUMED}),
                (first.token_hash != last.token_hash, {E.WORKER_TOKEN_ROTATED}),
                (first.labels != last.labels, {E.WORKER_LABELS_SET}),
                (first.incarnation != last.incarnation, {E.WORKER_REGISTERED}),
            ]
        for happened, by in expected:
            if happened and not told & by:
                raise Violation("A1", f"{worker_id} changed; expected one of {by}, told was {told}")

    def _status_told(self, worker_id: str) -> None:
        worker = self.view.worker(worker_id)
        if worker is None:
            return
        live = self.view.live_attempts_of_worker(worker_id)
        self._raise(worker_problems(worker, live))
        status = worker.status(bool(live))
        if self._status.setdefault(worker_id, status) is not status:
            raise Violation("A1", f"{worker_id} is {status}; the log says {self._status[worker_id]}")

    def _only_its_own(self, changes: Changes, sender: str) -> None:
        """One worker's message changes nothing that is another's; what it frees may be offered to anybody."""
        for worker_id in changes.workers:
            if worker_id != sender:
                raise Violation("S16", f"a message of {sender} changed {worker_id}")
        for attempts in changes.attempts.values():
            if attempts[0] is not None and attempts[0].worker_id != sender:
                raise Violation("S16", f"a message of {sender} changed an attempt of {attempts[0].worker_id}")
        for jobs in changes.jobs.values():
            if jobs[0] is not None and jobs[0].worker_id not in (None, sender) and not _only_survived(jobs):
                raise Violation("S16", f"a message of {sender} changed {jobs[0].id} of {jobs[0].worker_id}")

    @staticmethod
    def _raise(problems: list[Problem]) -> None:
        if problems:
            raise Violation(*problems[0])


def _only_survived(jobs: list[Job | None]) -> bool:
    """A worker thought dead is alive: that alone may be noted on a job that is another's by now."""
    first, last = jobs[0], jobs[-1]
    if first is None or last is None:
        return False
    return replace(first, version=last.version, lost_workers=last.lost_workers) == last


def early_losses(
    entries: Iterable[AuditEntry],
    now: float,
    last_read: Mapping[str, float],
    last_named: Mapping[tuple[str, str, int], float],
    started_at: float,
    policy: Policy,
) -> list[Problem]:
    """Nobody is given up before a whole timeout of silence, less the two rounds by which the clock is coarse."""
    least_s = policy.heartbeat_timeout_s - 2 * policy.sweep_interval_s - 1e-6
    found: list[Problem] = []
    for entry in entries:
        if entry.event_type != E.JOB_LOST:
            continue
        why = str(entry.details.get("why", ""))
        turn = (entry.target_id, int(entry.details["epoch"]))
        worker_id = str(entry.details["worker_id"])
        if why.startswith("no heartbeat"):
            heard_at = last_read.get(worker_id, 0.0)
        elif why.startswith("its worker has not named"):
            heard_at = last_named.get((worker_id, *turn), 0.0)
        else:
            continue
        silent_s = now - max(heard_at, started_at)
        if silent_s < least_s:
            found.append(("L4", f"{turn} was given up after {silent_s:.1f} s: {why}"))
    return found
