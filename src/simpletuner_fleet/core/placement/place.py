"""Decides which job goes to which worker over a snapshot of the fleet, by the same functions for every caller.

Dispatch places what they say, a dry run and `no_wait` ask them whether a job would start, and `explain` tells why it
would not. They change nothing: placing a job changes rows, the roster follows the rows, and the next question is asked
of that.
"""

from collections.abc import Callable, Collection, Iterator
from heapq import heappop, heapreplace
from itertools import chain, islice

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Job, Target
from simpletuner_fleet.core.people.quotas import quota_params
from simpletuner_fleet.core.placement.explain import (
    Ceiling,
    Explanation,
    Survey,
    by_share,
    explain,
    survey_by,
)
from simpletuner_fleet.core.placement.matching import Refusal, why_not_yet
from simpletuner_fleet.core.placement.ordering import limit_reached, may_reserve
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.placement.unreadable import ALL_READABLE
from simpletuner_fleet.core.placement.verdicts import KnownVerdicts, Verdicts
from simpletuner_fleet.core.policy import NO_LIMITS, Limits, Policy
from simpletuner_fleet.core.workers.worker import Gpu, Worker

WORKERS_ASKED = 64
JobOf = Callable[[str], Job]


class Share(Struct, frozen=True):
    """Describes one worker's part in a placement: the GPUs that it gives to the job."""

    worker: Worker
    gpus: tuple[Gpu, ...]


class Placement(Struct, frozen=True, kw_only=True):
    """Says on which workers and GPUs a job is to run.

    Several shares would start together or not at all, and attempts that make room would end first: the type has room for
    both, and `place` makes neither so far.
    """

    job: Job
    shares: tuple[Share, ...]
    ends: tuple[str, ...] = ()
    """Ids of live attempts that make room."""


class Limited(Struct, frozen=True):
    """Reports that a job is not placed because a limit on how many may run is reached."""

    code: str


class BehindOthers(Struct, frozen=True):
    """Reports that a job is not placed because others of its class wait before it."""


class NoRoom(Struct, frozen=True):
    """Reports that a job is not placed because no worker that fits has room for it now."""


Refused = Limited | BehindOthers | NoRoom


class Reservation(Struct, frozen=True):
    """Keeps a worker's GPUs free for a job that has waited long for more of them."""

    worker_id: str
    job: Job


def place(roster: Roster, job: Job, limits: Limits) -> Placement | Refused:
    """Returns where this job would go if it were the first of its class."""
    limit = limit_of(roster, job, limits)
    if limit is not None:
        return Limited(limit.code)
    picked = roster.pick_worker(job)
    return NoRoom() if picked is None else Placement(job=job, shares=(Share(*picked),))


def would_start_now(roster: Roster, job: Job, limits: Limits) -> Placement | Refused:
    """Returns where this job would go now, or why not, if it had to join the queue of its class."""
    ahead = roster.lines.waiting(job.line, job.requires).count
    return BehindOthers() if ahead else place(roster, job, limits)


def place_first_of_class(roster: Roster, class_id: str, job_of: JobOf, limits: Limits) -> Placement | None:
    head = roster.lines.head(class_id)
    if head is None:
        return None
    placement = place(roster, job_of(head), limits)
    return placement if isinstance(placement, Placement) else None


def place_in_order(roster: Roster, job_of: JobOf, limits: Limits) -> Iterator[Placement]:
    """Yields where every job goes for which there is room, in the order of all who wait.

    Each must be offered before the next is asked for: that moves its class back in the line. Nobody moves ahead by what
    others are given, so a class that no longer stands where it stood belongs further back.
    """
    if place_next(roster, job_of, limits) is None:  # much cheaper, where limits keep many waiting
        return
    kept = roster.start_limits(limits)
    open_to = [one.classes for one in roster.with_room() if not (kept and kept.keep_team(one.requires))]
    line = roster.lines.line_of(chain.from_iterable(open_to))
    while line and not _nobody_may_start(roster, limits):
        *_, class_id = line[0]
        present = roster.lines.precedence(class_id)
        if present is not None and present != line[0]:
            heapreplace(line, present)
        elif placement := place_first_of_class(roster, class_id, job_of, limits):
            yield placement
        else:
            heappop(line)


def place_next(roster: Roster, job_of: JobOf, limits: Limits) -> Placement | None:
    """Returns where the first job of all goes for which there is room; None where there is room for nobody.

    It asks nobody whom a limit or a quota keeps waiting, so it costs the same however many they are.
    """
    kept = roster.start_limits(limits)
    if kept and kept.keep_everybody():
        return None
    line = roster.lines.by_precedence(roster.with_room(), kept)
    try:
        for class_id in line:
            if placement := place_first_of_class(roster, class_id, job_of, limits):
                return placement
    finally:
        line.close()
    return None


def _nobody_may_start(roster: Roster, limits: Limits) -> bool:
    kept = roster.start_limits(limits)
    return kept is not None and kept.keep_everybody()


def place_on_worker(
    roster: Roster, worker_id: str, job_of: JobOf, limits: Limits, policy: Policy, now: float
) -> Iterator[Placement | Reservation]:
    """Yields what a worker with room should be given, first come first served among the classes it fits.

    A job that has waited long for more GPUs than are free may keep the worker for itself. A placement is always the
    last item: everything after it would depend on it.
    """
    if not roster.is_open(worker_id):
        return
    kept = roster.start_limits(limits)
    if kept and kept.keep_everybody():
        return
    placement: Placement | None = None
    line = roster.by_precedence(worker_id, kept)
    try:
        for class_id in line:
            head = roster.lines.head(class_id)
            if head is None:
                continue
            job = job_of(head)
            picked = roster.try_worker(job, worker_id)
            if picked is not None and limit_of(roster, job, limits) is None:
                placement = Placement(job=job, shares=(Share(*picked),))
                break
            if picked is None and may_reserve(job, policy, now) and _is_next(roster, worker_id, job, limits):
                yield Reservation(worker_id, job)
    finally:
        line.close()
    if placement:
        yield placement


def _is_next(roster: Roster, worker_id: str, job: Job, limits: Limits) -> bool:
    """Tells whether nothing but others' work on this worker keeps the job from it.

    For a job that would not start all the same, its GPUs would stay idle.
    """
    return roster.lacks_only_time(job, worker_id) and limit_of(roster, job, limits) is None


def reserved_in_vain(roster: Roster, job_of: JobOf, limits: Limits) -> list[str]:
    """Returns the workers that are kept for jobs which by now they do not fit, or which a limit or a quota keeps waiting."""
    held = [(worker_id, job_of(job_id)) for worker_id, job_id in roster.reservations.held()]
    return [
        worker_id
        for worker_id, job in held
        if worker_id not in roster.lines.fitting(job.line) or limit_of(roster, job, limits) is not None
    ]


def limit_of(roster: Roster, job: Job, limits: Limits) -> Ceiling | None:
    """Returns what keeps this job from starting, if something does: a limit, a quota, or one that cannot be read."""
    if roster.unreadable is not ALL_READABLE and (settings := roster.unreadable.concerning(job)):
        return Ceiling(Code.SETTING_UNREADABLE, {"settings": list(settings)})
    if limits is not NO_LIMITS:  # mostly there are none, and none is reached
        of_team = roster.running_by_team.get(job.team, 0) if job.team else None
        code = limit_reached(limits, roster.running, roster.running_by_owner.get(job.owner, 0), of_team)
        if code is not None:
            return Ceiling(code, {})
    book = roster.book
    standing = book.keeps_waiting(job) if book else None
    return Ceiling(Code.QUOTA, quota_params(book, standing)) if book and standing else None


def why_waiting(
    roster: Roster, job: Job, limits: Limits, now: float, held_until: float | None = None
) -> Explanation:
    """Explains why the job waits; while a fitting worker is merely busy, the rest of the fleet is not asked."""
    answer = (None if job.refused_by else _if_merely_busy(roster, job)) or known_survey_of(roster, job)
    ahead = max(0, roster.lines.position(job.rank) - 1)
    return why_waiting_given(roster, job, limits, now, answer, ahead=ahead, held_until=held_until)


def why_waiting_given(
    roster: Roster,
    job: Job,
    limits: Limits,
    now: float,
    answer: Survey,
    *,
    ahead: int,
    held_until: float | None = None,
    ended: Collection[Job] = (),
) -> Explanation:
    limit = limit_of(roster, job, limits)
    explained = explain(job, answer, limit=limit, ahead=ahead, now=now, held_until=held_until, ended=ended)
    return (
        by_share(explained, roster.lines.shares, job.requires.team, roster.lines.teams_waiting)
        if roster.lines.shares
        else explained
    )


def survey_of(roster: Roster, job: Job, known: KnownVerdicts | None = None) -> Survey:
    """Returns what every worker could do for this job."""
    workers = ((worker, roster.occupancy(id)) for id, worker in roster.workers.items())
    asked = Verdicts(job.requires, job.refused_by, roster.allowlists.get(job.requires.team), roster.prices)
    return survey_by(asked if known is None else known.of_line(job.line, asked), workers)


def known_survey_of(roster: Roster, job: Job) -> Survey:
    """Returns the same, without asking every worker again where nothing has changed since a job like this asked."""
    if job.refused_by:
        return survey_of(roster, job)
    return roster.surveys.of(job.line, lambda: survey_of(roster, job))


def _if_merely_busy(roster: Roster, job: Job) -> Survey | None:
    """Returns what a survey would find where a fitting worker is busy; None where one has room, or none is busy."""
    waiting = roster.lines.waiting(job.line, job.requires)
    requires, fitting = waiting.requires, waiting.fitting
    allowlist = roster.allowlists.get(requires.team)
    for worker_id in islice(waiting.open, WORKERS_ASKED):
        if roster.has_room(waiting, worker_id):
            return None
    for worker_id in islice(fitting, WORKERS_ASKED):
        worker, held = roster.workers[worker_id], roster.occupancy(worker_id)
        if why_not_yet(worker, held, requires, allowlist=allowlist) is Refusal.BUSY:
            code = Code.LOCAL_GPU_BUSY if job.requires.target is Target.LOCAL else Code.ALL_MATCHING_BUSY
            return Survey(
                code=code,
                params={"workers": len(fitting)},
                funnel=(),
                workers=(),
                fixes=(),
                possible=len(fitting),
            )
    return None
