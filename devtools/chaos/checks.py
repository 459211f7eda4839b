"""The verdict: what was answered, what is stored and what really ran must be one story."""

import asyncio
from collections.abc import Sequence

from devtools.chaos.faults import Mischief
from devtools.chaos.fleet import Fleet
from devtools.chaos.journal import Run as Seen
from devtools.chaos.journal import Turn, overlaps, read_journal, shared_gpus
from devtools.chaos.workload import Submitted, Workload
from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.job import Attempt, Job, JobState, Outcome
from simpletuner_fleet.ports import AuditFilter, JobFilter, View
from simpletuner_fleet.sim.checkers import Problem, audit_problems, outcome_problems, store_problems, unrest
from simpletuner_fleet.sim.truth import Run, Truth
from simpletuner_fleet.store import open_store

ENDED = {"job.completed", "job.failed", "job.cancelled"}
CANCEL_REQUESTED, DISPATCHED = "job.cancel_requested", "job.dispatched"


def judge(fleet: Fleet, workload: Workload, mischief: Mischief) -> list[Problem]:
    """After the programs have ended: reads their database as it lies there."""
    runs = read_journal(fleet.journal)
    found = journal_problems(runs)

    def look(view: View) -> list[Problem]:
        ids = [job.job_id for job in workload.jobs]
        entries = view.audit_range(0, 1_000_000)
        problems = store_problems(view, ids) + audit_problems(entries)
        problems += outcome_problems(view, ids, truth_of(runs), set())
        restless = unrest(view, ids)
        if restless:
            problems.append(("L1", restless))
        stored = view.jobs_page(JobFilter(), None, 1_000_000)
        if {job.id for job in stored} != set(ids):
            problems.append(("S5", f"{len(ids)} jobs were submitted and {len(stored)} are stored"))
        for job in workload.jobs:
            problems += submitted_problems(job, view, entries, runs, mischief)
        return problems

    return found + asyncio.run(_read(fleet.database_url, look))


async def _read(url: str, look: object) -> list[Problem]:
    store = open_store(url)
    try:
        found: list[Problem] = await store.read(look)  # type: ignore[arg-type]
        return found
    finally:
        await store.close()


def journal_problems(runs: dict[Turn, Seen]) -> list[Problem]:
    found: list[Problem] = []
    for older, newer in overlaps(runs):
        late_ms = (older.last_seen - newer.began) * 1000
        found.append(
            ("S3", f"{older.job}: epoch {older.epoch} was at work {late_ms:.0f} ms after {newer.epoch} began")
        )
    for one, other in shared_gpus(runs):
        found.append(("S10", f"{one.job} and {other.job} were at work on one GPU"))
    found += [
        ("S4", f"{run.job}: epoch {run.epoch} was started {len(run.starts)} times")
        for run in runs.values()
        if len(run.starts) != 1
    ]
    return found


def truth_of(runs: dict[Turn, Seen]) -> Truth:
    """The journal in the words of the simulator's checkers."""
    truth = Truth()
    for turn, seen in runs.items():
        how = "completed" if any(end.code == 0 for end in seen.ends) else "failed" if seen.ends else None
        truth.runs[turn] = [Run(seen.job, seen.epoch, "", fenced=True, since=None, ended=how)]
    return truth


def submitted_problems(
    submitted: Submitted,
    view: View,
    entries: Sequence[AuditEntry],
    runs: dict[Turn, Seen],
    mischief: Mischief,
) -> list[Problem]:
    job = view.job(submitted.job_id)
    if job is None:
        return []  # told already: it was acknowledged and is not there
    found: list[Problem] = []
    if len(submitted.job_ids) != 1:
        found.append(("S5", f"key {submitted.key} was answered with {submitted.job_ids}"))
    told = [one.event_type for one in entries if one.target_id == job.id]
    endings = [event for event in told if event in ENDED]
    if CANCEL_REQUESTED in told and DISPATCHED in told[told.index(CANCEL_REQUESTED) :]:
        found.append(("S7", f"{job.id} was offered again after its cancellation was acknowledged"))
    if not job.terminal or len(endings) != 1:
        found.append(("S1", f"{job.id} is {job.state} and ended {len(endings)} times"))
    attempts = view.attempts_of_job(job.id)
    known = {attempt.epoch for attempt in attempts if attempt.accepted_at is not None}
    found += [
        ("S4", f"{job.id}: epoch {turn[1]} ran and was never accepted")
        for turn in runs
        if turn[0] == job.id and turn[1] not in known
    ]
    return found + ending_problems(job, attempts, submitted, runs, mischief)


def ending_problems(
    job: Job,
    attempts: list[Attempt],
    submitted: Submitted,
    runs: dict[Turn, Seen],
    mischief: Mischief,
) -> list[Problem]:
    """A job fails only for a reason that really was one."""
    found: list[Problem] = []
    if job.state is JobState.CANCELLED and not submitted.cancel_tried:
        found.append(("S7", f"{job.id} was cancelled and nobody asked for it"))
    for attempt in attempts:
        if attempt.outcome is not Outcome.FAILED or submitted.exit_code != 0:
            continue
        run = runs.get((job.id, attempt.epoch))
        pids = {start.pid for start in run.starts} if run else set()
        if not pids & mischief.killed and not (run is None and mischief.done["shim_kill"]):
            found.append(("S9", f"{job.id}: attempt {attempt.number} failed by itself: {attempt.error}"))
    losses = sum(attempt.outcome is Outcome.LOST for attempt in attempts)
    if job.state is JobState.FAILED and job.reason in ("poison", "retries_exhausted"):
        if job.reason == "poison" and len(set(job.lost_workers)) < 2:
            found.append(("S9", f"{job.id} is called poison after {job.lost_workers}"))
        if job.reason == "retries_exhausted" and job.charged <= job.max_retries:
            found.append(("S9", f"{job.id} was given up after {job.charged} charges, {losses} losses"))
    return found


def story_of(fleet: Fleet, job_id: str) -> str:
    """A job by its audit entries, its attempts, its journal, and every log line that names it."""
    lines = [f"--- the story of {job_id}"]

    def look(view: View) -> list[Problem]:
        lines.append(f"  {view.job(job_id)}")
        lines.extend(f"  {attempt}" for attempt in view.attempts_of_job(job_id))
        for one in view.audit_page(AuditFilter(target_id=job_id), 1000, 0, newest_first=False):
            lines.append(f"  audit {one.seq} {one.at:.3f} {one.event_type} by {one.actor_id}: {one.details}")
        return []

    asyncio.run(_read(fleet.database_url, look))
    lines += [
        f"  journal {run.told()}" for turn, run in read_journal(fleet.journal).items() if turn[0] == job_id
    ]
    for log in sorted(fleet.folder.glob("*.log")):
        told = [line for line in log.read_text(errors="replace").splitlines() if job_id in line]
        lines += [f"  {log.stem}: {line}" for line in told[-40:]]
    return "\n".join(lines)
