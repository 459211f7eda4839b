"""Checks the invariants, as functions over what is stored and what really ran.

Each takes rows, a view or the ground truth and returns the problems it finds, so that a test with real processes can
ask the same questions. `commit_watch` asks them after every commit of the simulator, of the rows that changed.
"""

from collections import Counter
from collections.abc import Container, Iterable
from itertools import pairwise

from simpletuner_fleet.core.audit import AuditEntry, ChainCheck, Witness
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import (
    HOLDS_ATTEMPT,
    Attempt,
    AttemptState,
    EndReason,
    Hold,
    Job,
    JobState,
    Outcome,
    Results,
    ended_badly,
    has_left_its_gpus,
)
from simpletuner_fleet.core.jobs.states import AT_WORK, WAITING
from simpletuner_fleet.core.people.approvals import ApprovalState
from simpletuner_fleet.core.placement.matching import FREE, why_never, why_not_now
from simpletuner_fleet.core.placement.place import Placement, place
from simpletuner_fleet.core.placement.roster.lines import Lines
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import AdminState, Connection, Worker, WorkerType, published_status
from simpletuner_fleet.engine.memory.index import FleetIndex, read_limits
from simpletuner_fleet.ports import View
from simpletuner_fleet.sim.checks.truth import Truth

Problem = tuple[str, str]
"""Which promise, and how it was broken."""

EVERY_JOB = 1_000_000


# Single rows


def job_problems(job: Job, attempts: list[Attempt]) -> list[Problem]:
    """Checks what must hold of a job and all its attempts at any moment."""
    problems: list[Problem] = []
    live = [attempt for attempt in attempts if attempt.live]
    if len(live) > 1:
        problems.append(("S3", f"{job.id} has {len(live)} live attempts"))
    if (job.state in HOLDS_ATTEMPT) != bool(live):
        problems.append(("S13", f"{job.id} is {job.state} with {len(live)} live attempts"))
    if live and (live[0].id != job.attempt_id or live[0].epoch != job.epoch):
        problems.append(
            ("S2", f"{job.id} names attempt {job.attempt_id} of epoch {job.epoch}, live is {live[0].id}")
        )
    if live and live[0].worker_id != job.worker_id:
        problems.append(("S2", f"{job.id} names {job.worker_id}, its attempt is on {live[0].worker_id}"))
    if job.state in WAITING and (job.worker_id or job.attempt_id or job.gpus):
        problems.append(("S13", f"{job.id} is {job.state} and still names a worker, an attempt or GPUs"))
    if job.terminal and (job.finished_at is None or job.hold is not Hold.NONE):
        problems.append(("S1", f"{job.id} ended without a time or with a hold"))
    if job.start_at is not None and any(one.offered_at < job.start_at for one in attempts):
        problems.append(("S9", f"{job.id} was offered before {job.start_at}, its start time"))
    if job.attempts != len(attempts):
        problems.append(("S9", f"{job.id} counts {job.attempts} attempts and has {len(attempts)}"))
    failed = [a.resumed_manifest for a in attempts if a.reason == EndReason.RESUME_FAILED]
    if failed and max((in_vain := Counter(failed)).values()) > Policy().resume_tries:
        problems.append(
            ("S9", f"{job.id} was to go on from one checkpoint in vain again and again: {in_vain}")
        )
    spoiled = any(attempt.resume_below is not None for attempt in attempts)
    if job.resume_from and not spoiled and any(a.resumed_manifest is None for a in attempts):
        problems.append(("S9", f"{job.id} was to go on from {job.resume_from} and began at the start"))
    outcomes = [attempt.outcome for attempt in attempts]
    if job.charged > 1 + job.max_retries:
        problems.append(
            ("S9", f"{job.id} was charged {job.charged} times, {job.max_retries} retries allowed")
        )
    losses = sum(one.outcome is Outcome.LOST and one.reason != EndReason.INTERRUPTED for one in attempts)
    if job.state is not JobState.CANCELLED and (
        job.losses != losses or job.failures != outcomes.count(Outcome.FAILED)
    ):
        problems.append(
            (
                "S9",
                f"{job.id} is charged {job.losses} losses, {job.failures} failures; attempts say {outcomes}",
            )
        )
    for before, after in pairwise(sorted(attempts, key=lambda attempt: attempt.epoch)):
        below, step = before.resume_below, after.resumed_from_step
        if below is not None and step is not None and step >= below:
            problems.append(("S9", f"{job.id} goes on from step {step}, which is spoiled"))
    if outcomes.count(Outcome.COMPLETED) != (job.state is JobState.COMPLETED):
        problems.append(
            ("S1", f"{job.id} is {job.state} with {outcomes.count(Outcome.COMPLETED)} completed attempts")
        )
    return problems


def dependency_problems(view: View, job: Job) -> list[Problem]:
    """Checks that a job may start once all it depends on has completed, and is given up only where one has not."""
    if not job.depends_on:
        return []
    if job.state is not JobState.BLOCKED and (job.attempts or not job.terminal):
        early = [id for id in job.depends_on if (other := view.job(id)) and not _completed(other)]
        return [
            ("D1", f"{job.id} is {job.state} and depends on {id}, which has not completed") for id in early
        ]
    if job.reason == "dependency_failed" and not _in_vain(view, job):
        return [("D2", f"{job.id} was given up, and nothing that it depends on has ended badly")]
    return []


def _completed(job: Job) -> bool:
    return job.state is JobState.COMPLETED


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


def worker_problems(worker: Worker, live: list[Attempt], training: list[Attempt]) -> list[Problem]:
    problems: list[Problem] = []
    held = [gpu for attempt in training for gpu in attempt.gpus]
    if len(held) != len(set(held)):
        problems.append(("S10", f"{worker.id} has given a GPU to two attempts"))
    status = worker.status(bool(live))
    interrupted = worker.interruption is not None
    if status is not published_status(worker.admin, worker.connection, bool(live), interrupted):
        problems.append(("S15", f"{worker.id} is published as {status}"))
    away = worker.connection in (Connection.OFFLINE, Connection.RECONNECTING)
    if away != (worker.offline_since is not None):
        problems.append(("S15", f"{worker.id} is {worker.connection}, offline since {worker.offline_since}"))
    return problems


def gpu_problems(live: Iterable[Attempt]) -> list[Problem]:
    """Checks that no two live attempts hold the same GPU, on whichever workers they are."""
    holders: dict[str, str] = {}
    for attempt in live:
        for uuid in attempt.gpus:
            other = holders.setdefault(uuid, attempt.id)
            if other != attempt.id:
                return [("S10", f"{uuid} is held by {other} and by {attempt.id}")]
    return []


def offer_problems(attempt: Attempt, job: Job, worker: Worker | None, live: list[Attempt]) -> list[Problem]:
    """Checks a fresh offer: the worker must be connected, active, fitting and free."""
    if worker is None:
        return [("S10", f"{attempt.id} was offered to {attempt.worker_id}, which does not exist")]
    problems: list[Problem] = []
    if worker.interruption is not None:
        problems.append(("S10", f"{job.id} was offered to {worker.id}, whose machine is being taken away"))
    if worker.connection is not Connection.CONNECTED or worker.admin is not AdminState.ACTIVE:
        problems.append(("S10", f"{job.id} was offered to {worker.id}: {worker.connection}, {worker.admin}"))
    refusal = why_never(worker, job.requires)
    if refusal is not None:
        problems.append(("S10", f"{job.id} was offered to {worker.id}, which {refusal}"))
    if len(live) > worker.max_jobs:
        problems.append(("S10", f"{worker.id} holds {len(live)} attempts and takes {worker.max_jobs}"))
    if not set(attempt.gpus) <= {gpu.uuid for gpu in worker.gpus} or len(attempt.gpus) != job.requires.gpus:
        problems.append(("S10", f"{job.id} was given {attempt.gpus} of {worker.id}"))
    return problems


# Whole stores


def store_problems(view: View, job_ids: Iterable[str]) -> list[Problem]:
    """Checks every row of these jobs, every worker, and the chain of the audit log."""
    problems: list[Problem] = []
    for job_id in job_ids:
        job = view.job(job_id)
        if job is None:
            problems.append(("S1", f"{job_id} was acknowledged and is not there"))
            continue
        attempts = view.attempts_of_job(job_id)
        problems += job_problems(job, attempts)
        approval = view.approval(job_id) if job.terminal else None
        if approval is not None and approval.state is ApprovalState.PENDING:
            problems.append(("S1", f"{job_id} ended and its approval is still to be decided"))
        for attempt in attempts:
            problems += attempt_problems(attempt)
    for worker in view.workers():
        live = view.live_attempts_of_worker(worker.id)
        problems += worker_problems(worker, live, that_train(view, live))
    return problems


def audit_problems(entries: Iterable[AuditEntry], witnesses: Iterable[Witness] = ()) -> list[Problem]:
    check = ChainCheck(list(witnesses))
    check.feed(entries)
    return [("A2", f"entry {problem.seq}: {problem.what}") for problem in check.finish()]


def index_problems(index: FleetIndex, view: View) -> list[Problem]:
    """Checks that the index beside the store is what a rebuild from the store would make of it."""
    if index.unplaced:
        return []
    index_roster, true_roster = index.roster, _roster_of_rows(view, index.reachable)
    problems: list[Problem] = []
    if set(index_roster.workers) != set(true_roster.workers):
        problems.append(
            ("index", f"knows {sorted(index_roster.workers)}, stored are {sorted(true_roster.workers)}")
        )
        return problems
    if (index_roster.running, index_roster.running_by_owner) != (
        true_roster.running,
        true_roster.running_by_owner,
    ):
        problems.append(("index", f"counts {index_roster.running} running, stored are {true_roster.running}"))
    for worker_id, worker in true_roster.workers.items():
        mine = index_roster.workers[worker_id]
        if (mine.admin, mine.connection, mine.gpus, mine.labels, mine.trainers) != (
            worker.admin,
            worker.connection,
            worker.gpus,
            worker.labels,
            worker.trainers,
        ):
            problems.append(("index", f"has an old picture of {worker_id}"))
        if index_roster.occupancy(worker_id) != true_roster.occupancy(worker_id):
            problems.append(
                (
                    "index",
                    f"{worker_id} holds {true_roster.occupancy(worker_id)}, not {index_roster.occupancy(worker_id)}",
                )
            )
        if index_roster.is_open(worker_id) != true_roster.is_open(worker_id):
            problems.append(("index", f"{worker_id} is open: {true_roster.is_open(worker_id)}"))
    problems += _line_problems(index_roster.lines, true_roster.lines)
    if index.limits not in (None, read_limits(view)):
        problems.append(("index", "has old limits"))
    return problems


def _line_problems(mine: Lines, stored: Lines) -> list[Problem]:
    waiting, known = set(stored.classes_with_jobs()), set(mine.classes_with_jobs())
    if waiting != known:
        return [("index", f"classes {sorted(known)} wait, stored are {sorted(waiting)}")]
    problems: list[Problem] = []
    for class_id in waiting:
        if mine.count(class_id) != stored.count(class_id):
            counts = f"{mine.count(class_id)} wait, stored {stored.count(class_id)}"
            problems.append(("index", f"class {class_id}: {counts}"))
        if mine.fitting(class_id) != stored.fitting(class_id):
            problems.append(("index", f"class {class_id} fits {sorted(mine.fitting(class_id))}"))
        if mine.head(class_id) != stored.head(class_id):
            problems.append(("index", f"class {class_id} has {mine.head(class_id)} at its head"))
    return problems


def _roster_of_rows(view: View, reachable: Container[str]) -> Roster:
    roster = Roster()
    for worker in view.workers():
        roster.put_worker(worker)
        if worker.id not in reachable:
            roster.set_reachable(worker.id, False)
    for job in view.queue_page(None, EVERY_JOB):
        roster.see_job(None, job)
    for attempt in view.live_attempts():
        its_job = view.job(attempt.job_id)
        roster.see_job(None, its_job)
        roster.see_attempt(None, attempt, its_job.owner if its_job else "", its_job.team if its_job else "")
    return roster


def follow_everything(index: FleetIndex, view: View) -> None:
    """Feeds every live row to an index, as a store does after a start."""
    for worker in view.workers():
        index.worker_changed(None, worker)
    for job in view.queue_page(None, EVERY_JOB):
        index.job_changed(None, job)
    for attempt in view.live_attempts():
        its_job = view.job(attempt.job_id)
        index.job_changed(None, its_job)
        index.attempt_changed(None, attempt, its_job)


def that_train(view: View, live: Iterable[Attempt]) -> list[Attempt]:
    """Returns the attempts that occupy a slot and GPUs, whatever their results wait for.

    One whose trainer has ended occupies none, unless its worker leaves after its job.
    """
    training = []
    for attempt in live:
        job, worker = view.job(attempt.job_id), view.worker(attempt.worker_id)
        leaves = worker is not None and worker.worker_type is WorkerType.EPHEMERAL
        if job is None or leaves or not has_left_its_gpus(job):
            training.append(attempt)
    return training


def unplaced_problems(index: FleetIndex, view: View) -> list[Problem]:
    """Checks that no job waits that could be placed, unless the last transaction has left some to the next.

    Every cause is followed in its own transaction but for that.
    """
    problems: list[Problem] = []
    if index.unplaced or index.left_to_place:
        return problems
    roster, limits = index.roster, read_limits(view)
    for class_id in roster.lines.classes_with_jobs():
        head = roster.lines.head(class_id)
        job = view.job(head) if head else None
        if job is None:
            problems.append(("index", f"class {class_id} counts jobs and has none"))
            continue
        if isinstance(place(roster, job, limits), Placement):
            problems.append(("L1", f"{job.id} waits and a worker could take it"))
    return problems


def unrest(view: View, job_ids: Iterable[str]) -> str | None:
    """Returns why the fleet is not at rest: a job holds an attempt, or waits though it could be placed."""
    counts = view.job_counts()
    for state in AT_WORK:
        if counts.get(state):
            return f"{counts[state]} jobs are {state}"
    workers = view.workers()
    for job_id in job_ids:
        job = view.job(job_id)
        if job is None or job.terminal:
            continue
        if job.state is JobState.BLOCKED:
            if in_vain := _in_vain(view, job):
                return f"{job.id} has not been told that {in_vain[0]} ended badly"
            pending = [id for id in job.depends_on if not _ended(view, id)]
            if job.hold is not Hold.APPROVAL and not pending:
                return f"{job.id} is blocked by nothing"
        elif job.hold is not Hold.NONE:
            return f"{job.id} waits for its retry"
        elif any(why_not_now(worker, FREE, job.requires) is None for worker in workers):
            return f"{job.id} waits though a worker could take it"
    return None


def _in_vain(view: View, job: Job) -> list[str]:
    """Returns those of the jobs it depends on that have ended badly."""
    return [id for id in job.depends_on if (other := view.job(id)) is not None and ended_badly(other)]


def _ended(view: View, job_id: str) -> bool:
    job = view.job(job_id)
    return job is not None and job.terminal


def outcome_problems(view: View, job_ids: Iterable[str], truth: Truth, unfenced: set[str]) -> list[Problem]:
    """Checks that what is recorded as done was really done, once; workers in `unfenced` are trusted."""
    problems: list[Problem] = []
    for job_id in job_ids:
        job = view.job(job_id)
        if job is None:
            continue
        for attempt in view.attempts_of_job(job_id):
            if attempt.worker_id in unfenced:
                continue
            if attempt.outcome is Outcome.COMPLETED and not truth.ended(job_id, attempt.epoch, "completed"):
                problems.append(
                    ("S2", f"{job_id} epoch {attempt.epoch} is recorded as completed and was not")
                )
            turn = Turn(job_id, attempt.epoch)
            unasked = turn in truth.runs and turn not in truth.forgotten
            if attempt.outcome is Outcome.EXPIRED_OFFER and unasked:
                problems.append(("S4", f"{job_id} epoch {attempt.epoch} ran and was never accepted"))
    return problems


def result_problems(view: View, job_ids: Iterable[str], truth: Truth) -> list[Problem]:
    """Checks that whatever is recorded as stored is stored; workers that are trusted are not checked."""
    stored = [job for id in job_ids if (job := view.job(id)) and job.results is Results.STORED]
    return [
        ("S2", f"{job.id} has results that nobody has stored")
        for job in stored
        if not truth.is_stored(job.id) and truth.ended(job.id, job.epoch, "completed")
    ]
