"""Why many jobs wait, told against one snapshot of the fleet."""

from collections.abc import Sequence

from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.placement.explain import Explanation, Survey
from simpletuner_fleet.core.placement.place import survey_of, why_waiting_given
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.provisioning.waiting import with_machines
from simpletuner_fleet.engine.index import held_until, read_limits, roster_of
from simpletuner_fleet.engine.sight import unrestricted
from simpletuner_fleet.engine.standing import FleetStanding
from simpletuner_fleet.ports import JobFilter, View, WaitingGroup

MOST_GROUPS = 500
"""The largest of them are told apart by reason; more kinds of waiting jobs than this nobody can take in anyway."""


class Explainer:
    """Explains many jobs against one snapshot; each class of jobs is surveyed once."""

    def __init__(self, view: View, standing: FleetStanding) -> None:
        everything = unrestricted(view)
        if standing.roster is None:
            self.roster = roster_of(everything)
            self.roster.book = standing.book
        else:
            self.roster = standing.roster
        self._limits = read_limits(everything)
        self._held_until = held_until(everything)
        self._surveys: dict[str, Survey] = {} if standing.roster is None else standing.surveys
        self._pools = everything.pools()
        self._machines = everything.machines_since(float("inf")) if self._pools else []

    def explain(self, job: Job, ahead: int, now: float) -> Explanation:
        answer = self._surveys.get(job.line)
        if answer is None:
            answer = self._surveys[job.line] = survey_of(self.roster, job)
        explanation = why_waiting_given(
            self.roster, job, self._limits, now, answer, ahead=ahead, held_until=self._held_until
        )
        return with_machines(explanation, job, self._pools, self._machines, self.roster.pools)


def reasons_of(
    view: View, where: JobFilter, now: float, standing: FleetStanding
) -> Sequence[tuple[WaitingGroup, Code, int]]:
    """Returns each group of waiting jobs that fit with its reason and number, the largest first."""
    explainer = Explainer(view, standing)
    explained = [(group, view.job(group.first)) for group in view.waiting_groups(where, MOST_GROUPS)]
    return [(group, explainer.explain(job, 0, now).code, group.jobs) for group, job in explained if job]
