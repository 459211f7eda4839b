"""Explains why many jobs wait, all against one snapshot of the fleet."""

from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.finding import IN_START_ORDER
from simpletuner_fleet.core.jobs.job import Job, JobState
from simpletuner_fleet.core.placement.explain import Explanation, Survey
from simpletuner_fleet.core.placement.place import survey_of, why_waiting_given
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.provisioning.waiting import with_machines
from simpletuner_fleet.engine.memory.index import held_until, read_limits, roster_of
from simpletuner_fleet.engine.memory.setting_documents import currency_in
from simpletuner_fleet.engine.memory.standing import MOST_SURVEYS, FleetStanding
from simpletuner_fleet.engine.readable import readable_job
from simpletuner_fleet.engine.visibility import unrestricted
from simpletuner_fleet.ports import JobFilter, View, WaitingGroup

MOST_GROUPS = 500
"""The largest of them are told apart by reason; more kinds of waiting jobs than this nobody can take in anyway."""
OTHERS_TRIED = 20
"""Where the first job of a group cannot be read."""


class Explainer:
    """Explains why jobs wait, many against one snapshot; each class of jobs is surveyed once."""

    def __init__(self, view: View, standing: FleetStanding) -> None:
        everything = self._view = unrestricted(view)
        self._dependencies: dict[str, Job | None] = {}
        if standing.roster is None:
            self.roster = roster_of(everything)
            self.roster.book = standing.book
        else:
            self.roster = standing.roster
        self._limits = read_limits(everything)
        self._held_until = held_until(everything)
        self._surveys: dict[str, Survey] = {} if standing.roster is None else standing.surveys
        self._verdicts = None if standing.roster is None else standing.verdicts
        self._pools = everything.pools()
        self._currency = currency_in(everything, [])
        self._machines = everything.machines_since(float("inf")) if self._pools else []

    def explain(self, job: Job, ahead: int, now: float) -> Explanation:
        answer = self._surveys.get(job.line)
        if answer is None:
            answer = self._surveys[job.line] = survey_of(self.roster, job, self._verdicts)
            # Looks may run in several threads: each step is one that is whole by itself.
            for oldest in list(self._surveys)[:-MOST_SURVEYS]:
                self._surveys.pop(oldest, None)
        explanation = why_waiting_given(
            self.roster,
            job,
            self._limits,
            now,
            answer,
            ahead=ahead,
            held_until=self._held_until,
            ended=self._ended_of(job) if job.state is JobState.BLOCKED else (),
        )
        return with_machines(
            explanation, job, self._pools, self._machines, self.roster.allowlists, self._currency
        )

    def _ended_of(self, job: Job) -> list[Job]:
        """Returns those of the jobs it depends on that have ended; many jobs may wait for the same one."""
        for job_id in job.depends_on:
            if job_id not in self._dependencies:
                self._dependencies[job_id] = readable_job(self._view, job_id)
        named = (self._dependencies[job_id] for job_id in job.depends_on)
        return [one for one in named if one is not None and one.terminal]


class ReasonGroup(Struct, frozen=True, kw_only=True):
    """Groups jobs that all wait for one reason, which was determined for the first of them."""

    key: str
    jobs: int
    first: Job
    code: Code


class WaitingReasons(Struct, frozen=True, kw_only=True):
    groups: list[ReasonGroup]
    """The largest first."""
    more: bool
    """There are others that were not asked: what is counted here is the least there is."""

    def counts(self) -> dict[str, int]:
        """Returns the number of jobs by reason."""
        counted: Counter[str] = Counter()
        for group in self.groups:
            counted[str(group.code)] += group.jobs
        return dict(counted)


def reasons_of(
    view: View, where: JobFilter, now: float, standing: FleetStanding, *, known: Explainer | None = None
) -> WaitingReasons:
    """Returns each group of waiting jobs that fit, with its reason and number.

    `known` explains where the same look has asked before.
    """
    explainer = known or Explainer(view, standing)
    waiting = view.waiting_groups(where, MOST_GROUPS + 1)
    first_ones = [(group, _first_of(view, where, group)) for group in waiting[:MOST_GROUPS]]
    return WaitingReasons(
        groups=[
            ReasonGroup(
                key=group.key, jobs=group.jobs, first=first, code=explainer.explain(first, 0, now).code
            )
            for group, first in first_ones
            if first
        ],
        more=len(waiting) > MOST_GROUPS or not all(first for _, first in first_ones),
    )


def _first_of(view: View, where: JobFilter, group: WaitingGroup) -> Job | None:
    """Returns the job that stands for its group: the first one, or where that cannot be read, one of the next few."""
    first = readable_job(view, group.first)
    if first is not None:
        return first
    of_group = replace(where, waiting_groups=(group.key,))
    return next(iter(view.jobs_sorted(of_group, IN_START_ORDER, None, OTHERS_TRIED)), None)
