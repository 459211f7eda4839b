"""The verdict: what was answered, what is stored and what really ran must agree."""

import asyncio
from collections.abc import Callable, Sequence

from devtools.chaos.fleet import ChaosFleet
from devtools.chaos.injector import FaultInjector
from devtools.chaos.journal import ObservedRun, overlaps, read_journal, shared_gpus
from devtools.chaos.workload import RestoreWindow, SubmittedJob, Workload
from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import Attempt, EndReason, Job, JobState, Outcome
from simpletuner_fleet.ports import AuditFilter, JobFilter, View
from simpletuner_fleet.sim.checks.checkers import (
    Problem,
    audit_problems,
    outcome_problems,
    store_problems,
    unrest,
)
from simpletuner_fleet.sim.checks.truth import Run, Truth
from simpletuner_fleet.store import open_store

TOLD_WITHIN_S = 25.0
"""After a restore a worker may begin what it was given before, until it is told that nobody knows of it."""
ENDED = {"job.completed", "job.failed", "job.cancelled"}
CANCEL_REQUESTED, DISPATCHED = "job.cancel_requested", "job.dispatched"


def judge(fleet: ChaosFleet, workload: Workload, injector: FaultInjector) -> list[Problem]:
    """Reads the database as it lies there, after the programs have ended."""
    runs = read_journal(fleet.journal)
    problems = journal_problems(runs)

    def inspect(view: View) -> list[Problem]:
        jobs = [job for job in workload.jobs if view.job(job.job_id) or not workload.may_be_forgotten(job)]
        ids = [job.job_id for job in jobs]
        forget_runs(view, runs, workload.windows)
        entries = view.audit_range(0, 1_000_000)
        problems = store_problems(view, ids) + audit_problems(entries)
        problems += outcome_problems(view, ids, truth_of(runs), set())
        unrest_text = unrest(view, ids)
        if unrest_text:
            problems.append(("L1", unrest_text))
        stored = view.jobs_page(JobFilter(), None, 1_000_000)
        if {job.id for job in stored} != set(ids):
            problems.append(("S5", f"{len(ids)} jobs were submitted and {len(stored)} are stored"))
        for job in jobs:
            problems += submitted_problems(job, view, entries, runs, injector)
        return problems

    return problems + asyncio.run(_read(fleet.database_url, inspect))


def forget_runs(view: View, runs: dict[Turn, ObservedRun], windows: Sequence[RestoreWindow]) -> None:
    """Leaves out attempts of which a restored database knows nothing, or not that they were accepted.

    That they ran beside no other was judged before; what came of them is forgotten by design.
    """
    for turn, run in list(runs.items()):
        attempt = view.attempt_by_epoch(turn.job_id, turn.epoch)
        known = attempt is not None and attempt.accepted_at is not None
        if not known and any(
            window.backup_at <= run.began_at <= window.restored_at + TOLD_WITHIN_S for window in windows
        ):
            del runs[turn]


async def _read(url: str, inspect: Callable[[View], list[Problem]]) -> list[Problem]:
    store = open_store(url)
    try:
        return await store.read(inspect)
    finally:
        await store.close()


def journal_problems(runs: dict[Turn, ObservedRun]) -> list[Problem]:
    problems: list[Problem] = []
    for older, newer in overlaps(runs):
        late_ms = (older.last_active_at - newer.began_at) * 1000
        problems.append(
            ("S3", f"{older.job}: epoch {older.epoch} was at work {late_ms:.0f} ms after {newer.epoch} began")
        )
    for one, other in shared_gpus(runs):
        problems.append(("S10", f"{one.job} and {other.job} were at work on one GPU"))
    problems += [
        ("S4", f"{run.job}: epoch {run.epoch} was started {len(run.starts)} times")
        for run in runs.values()
        if len(run.starts) != 1
    ]
    return problems


def truth_of(runs: dict[Turn, ObservedRun]) -> Truth:
    """Puts the journal into the words of the simulator's checkers."""
    truth = Truth()
    for turn, observed in runs.items():
        truth.runs[turn] = [
            Run(observed.job, observed.epoch, "", fenced=True, since=None, ended=_outcome_of(observed))
        ]
    return truth


def _outcome_of(run: ObservedRun) -> str | None:
    if not run.ends:
        return None
    return "completed" if any(end.code == 0 for end in run.ends) else "failed"


def submitted_problems(
    submitted: SubmittedJob,
    view: View,
    entries: Sequence[AuditEntry],
    runs: dict[Turn, ObservedRun],
    injector: FaultInjector,
) -> list[Problem]:
    job = view.job(submitted.job_id)
    if job is None:
        return []  # reported already: it was acknowledged and is not there
    problems: list[Problem] = []
    if len(submitted.job_ids) != 1:
        problems.append(("S5", f"key {submitted.key} was answered with {submitted.job_ids}"))
    event_types = [entry.event_type for entry in entries if entry.target_id == job.id]
    endings = [event for event in event_types if event in ENDED]
    if CANCEL_REQUESTED in event_types and DISPATCHED in event_types[event_types.index(CANCEL_REQUESTED) :]:
        problems.append(("S7", f"{job.id} was offered again after its cancellation was acknowledged"))
    if not job.terminal or len(endings) != 1:
        problems.append(("S1", f"{job.id} is {job.state} and ended {len(endings)} times"))
    attempts = view.attempts_of_job(job.id)
    accepted_epochs = {attempt.epoch for attempt in attempts if attempt.accepted_at is not None}
    problems += [
        ("S4", f"{job.id}: epoch {turn[1]} ran and was never accepted")
        for turn in runs
        if turn[0] == job.id and turn[1] not in accepted_epochs
    ]
    return problems + ending_problems(job, attempts, submitted, runs, injector)


def ending_problems(
    job: Job,
    attempts: list[Attempt],
    submitted: SubmittedJob,
    runs: dict[Turn, ObservedRun],
    injector: FaultInjector,
) -> list[Problem]:
    """A job fails only for a reason that really was one."""
    problems: list[Problem] = []
    if job.state is JobState.CANCELLED and not submitted.cancel_tried:
        problems.append(("S7", f"{job.id} was cancelled and nobody asked for it"))
    for attempt in attempts:
        if attempt.outcome is not Outcome.FAILED or submitted.exit_code != 0:
            continue
        run = runs.get(Turn(job.id, attempt.epoch))
        pids = {start.pid for start in run.starts} if run else set()
        if not pids & injector.killed_pids and attempt.id not in injector.killed_attempts:
            problems.append(("S9", f"{job.id}: attempt {attempt.number} failed by itself: {attempt.error}"))
    losses = sum(one.outcome is Outcome.LOST and one.reason != EndReason.INTERRUPTED for one in attempts)
    if job.state is JobState.FAILED and job.reason in ("poison", "retries_exhausted"):
        if job.reason == "poison" and len(set(job.lost_workers)) < 2:
            problems.append(("S9", f"{job.id} is called poison after {job.lost_workers}"))
        if job.reason == "retries_exhausted" and job.charged <= job.max_retries:
            problems.append(("S9", f"{job.id} was given up after {job.charged} charges, {losses} losses"))
    return problems


def job_history(fleet: ChaosFleet, job_id: str) -> str:
    """Returns a job's history: its audit entries, its attempts, its journal, and every log line that names it."""
    lines = [f"--- the history of {job_id}"]

    def inspect(view: View) -> list[Problem]:
        lines.append(f"  {view.job(job_id)}")
        lines.extend(f"  {attempt}" for attempt in view.attempts_of_job(job_id))
        for entry in view.audit_page(AuditFilter(target_id=job_id), 1000, 0, newest_first=False):
            lines.append(
                f"  audit {entry.seq} {entry.at:.3f} {entry.event_type} by {entry.actor_id}: {entry.details}"
            )
        return []

    asyncio.run(_read(fleet.database_url, inspect))
    lines += [
        f"  journal {run.text()}" for turn, run in read_journal(fleet.journal).items() if turn[0] == job_id
    ]
    for log in sorted(fleet.folder.glob("*.log")):
        mentions = [line for line in log.read_text(errors="replace").splitlines() if job_id in line]
        lines += [f"  {log.stem}: {line}" for line in mentions[-40:]]
    return "\n".join(lines)
