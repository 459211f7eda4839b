"""Finds problems that need a person: workers, jobs and notifications that will not recover by themselves."""

from bisect import bisect_left
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.finding import NEWEST_FIRST
from simpletuner_fleet.core.jobs.job import Hold, Job, JobState, Results
from simpletuner_fleet.core.notices.timing import in_trouble
from simpletuner_fleet.core.placement.matching import gpus_left_idle, in_service
from simpletuner_fleet.core.placement.reasons import IMPOSSIBLE
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.core.provisioning.waiting import machine_text
from simpletuner_fleet.core.workers.worker import Connection, Worker, WorkerType
from simpletuner_fleet.engine.memory.standing import FleetStanding
from simpletuner_fleet.ports import AuditFilter, JobFilter, SetAsideRow, View
from simpletuner_fleet.queries.explainer import WaitingReasons
from simpletuner_fleet.queries.free_now import machines_of
from simpletuner_fleet.queries.machine_use import useless_machines

DAY_S = 86_400.0
MOST_FINISHING = 500
SHOWN_OF_EACH = 5
MACHINES_USELESS = "machines_useless"
POOLS_UNSEEN = "pools_unseen"
UNSEEN_S = 300.0
"""A provider that does not answer for a moment is nobody's business."""
"""The kind of need that even a fleet without a worker may have: a machine that never joined costs, too."""


class Need(Struct, frozen=True, kw_only=True):
    """Describes a problem that needs a person; `kind` names the sentence, `named` what it is about."""

    kind: str
    count: int
    at_least: bool = False
    """There may be more than were counted."""
    named: tuple[tuple[str, str], ...] = ()
    """Pairs of id and name of the first few."""


class WorkerNeeds(Struct, frozen=True, kw_only=True):
    """Holds what all workers need a person for, whatever the time.

    It is counted once as long as no worker changes.
    """

    set_aside: Need
    away: Need
    unusable: Need
    idle: Need
    tokens: list[Worker]
    """Those with a token, the oldest token first."""


def of_fleet(
    view: View,
    roster: Roster,
    standing: FleetStanding,
    unreadable: Sequence[SetAsideRow],
    policy: Policy,
    now: float,
) -> list[Need]:
    """Returns what those who maintain machines need to know; `unreadable` are settings."""
    figures = standing.figures if standing.roster is not None else {}
    if "worker_needs" not in figures:
        figures["worker_needs"] = worker_needs(roster)
    workers: WorkerNeeds = figures["worker_needs"]
    set_aside = [*view.rows_set_aside(), *unreadable]
    refused = view.audit_count(AuditFilter(event_type="worker.registration_failed", since=now - DAY_S))
    old = bisect_left(workers.tokens, now - policy.token_warn_age_s, key=_token_created_at)
    needs = (
        Need(
            kind="rows_unreadable",
            count=len(set_aside),
            named=tuple((one.id, f"{one.table} {one.id}") for one in set_aside[:SHOWN_OF_EACH]),
        ),
        workers.set_aside,
        workers.away,
        workers.unusable,
        workers.idle,
        Need(kind="registrations_refused", count=refused),
        _of_workers("tokens_old", workers.tokens[:old]),
    )
    return [need for need in needs if need.count]


def worker_needs(roster: Roster) -> WorkerNeeds:
    set_aside, away, unusable, idle = [], [], [], []
    workers = machines_of(roster)
    for worker in workers:
        stays = worker.worker_type is WorkerType.PERSISTENT
        if worker.takes_a_pause:
            set_aside.append(worker)
        if worker.connection is Connection.OFFLINE and stays:
            away.append(worker)
        if not in_service(worker):
            continue
        if any(gpu.unusable for gpu in worker.gpus):
            unusable.append(worker)
        if stays and gpus_left_idle(worker, roster.occupancy(worker.id)):
            idle.append(worker)
    return WorkerNeeds(
        set_aside=_of_workers("workers_set_aside", set_aside),
        away=_of_workers("workers_away", away),
        unusable=_of_workers("gpus_unusable", unusable),
        idle=_of_workers("gpus_idle", idle),
        tokens=sorted(workers, key=_token_created_at),
    )


def of_machines(view: View, now: float) -> list[Need]:
    """Returns machines that cost and do nothing, the most expensive first, and pools that cannot be managed."""
    machines = view.machines_since(float("inf"))
    used = {machine.pool for machine in machines}
    unseen = [pool.name for pool in view.pools() if pool.name in used and _is_unseen(pool, now)]
    idlers = useless_machines(view, machines, now)
    dearest = sorted(
        (one for one in machines if one.id in idlers), key=lambda one: (-one.hourly_micros, one.id)
    )
    named = tuple((one.id, f"{one.pool}: {machine_text(one)}") for one in dearest[:SHOWN_OF_EACH])
    needs = (
        Need(
            kind=POOLS_UNSEEN,
            count=len(unseen),
            named=tuple((name, name) for name in unseen[:SHOWN_OF_EACH]),
        ),
        Need(kind=MACHINES_USELESS, count=len(dearest), named=named),
    )
    return [need for need in needs if need.count]


def _is_unseen(pool: MachinePool, now: float) -> bool:
    return pool.unseen_since is not None and now - pool.unseen_since >= UNSEEN_S


def of_jobs(view: View, reasons: WaitingReasons, owner: str | None, now: float) -> list[Need]:
    """Returns what the owners of jobs need to know, and `owner` alone where one is named."""
    failed = JobFilter(states=(JobState.FAILED,), finished_since=now - DAY_S, owner=owner)
    unapproved = JobFilter(states=(JobState.BLOCKED,), hold=Hold.APPROVAL, owner=owner)
    needs = (
        _of_jobs(view, "jobs_failed", failed),
        _without_results(view, owner),
        _hopeless(reasons),
        _of_jobs(view, "jobs_unapproved", unapproved),
    )
    return [need for need in needs if need.count]


def of_notifications(view: View, owner: str | None, now: float) -> list[Need]:
    """Returns the failing endpoints of this person, or, without an owner, of everybody."""
    failing = [one for one in view.endpoints() if owner in (None, one.owner) and in_trouble(one, now)]
    named = tuple((one.id, one.name) for one in failing[:SHOWN_OF_EACH])
    return [Need(kind="endpoints_failing", count=len(failing), named=named)] if failing else []


def _token_created_at(worker: Worker) -> float:
    return worker.token_created_at


def _of_workers(kind: str, workers: Sequence[Worker]) -> Need:
    named = tuple((worker.id, worker.name) for worker in workers[:SHOWN_OF_EACH])
    return Need(kind=kind, count=len(workers), named=named)


def _of_jobs(view: View, kind: str, where: JobFilter) -> Need:
    """Counts all jobs that fit, and names the newest."""
    count = sum(view.jobs_matching(where).values())
    jobs = view.jobs_sorted(where, NEWEST_FIRST, None, SHOWN_OF_EACH) if count else []
    return Need(kind=kind, count=count, named=tuple(map(_named, jobs)))


def _hopeless(reasons: WaitingReasons) -> Need:
    """Names one job of each group: what is wrong with it is wrong with all of its group."""
    groups = [group for group in reasons.groups if group.code in IMPOSSIBLE]
    return Need(
        kind="jobs_hopeless",
        count=sum(group.jobs for group in groups),
        at_least=reasons.more,
        named=tuple(_named(group.first) for group in groups[:SHOWN_OF_EACH]),
    )


def _without_results(view: View, owner: str | None) -> Need:
    """Counts jobs that have ended without results, and those whose results cannot be stored just now."""
    missing = _of_jobs(view, "jobs_without_results", JobFilter(results=(Results.MISSING,), owner=owner))
    finishing = JobFilter(states=(JobState.RUNNING,), results=(Results.PENDING,), owner=owner)
    read = view.jobs_page(finishing, None, MOST_FINISHING)
    late = [_named(job) for job in read if job.progress and "waiting_for" in job.progress.more]
    return replace(
        missing,
        count=missing.count + len(late),
        at_least=len(read) >= MOST_FINISHING,
        named=(*missing.named, *late)[:SHOWN_OF_EACH],
    )


def _named(job: Job) -> tuple[str, str]:
    return job.id, job.name or job.config_name
