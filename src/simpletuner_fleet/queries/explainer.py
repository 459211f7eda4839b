"""Why many jobs wait, told against one snapshot of the fleet."""

from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.people.quotas import QuotaBook
from simpletuner_fleet.core.placement.explain import Explanation, Survey
from simpletuner_fleet.core.placement.place import survey_of, why_waiting_given
from simpletuner_fleet.engine.index import held_until, read_limits, roster_of
from simpletuner_fleet.engine.sight import unrestricted
from simpletuner_fleet.ports import View


class Explainer:
    """Explains many jobs against one snapshot; each class of jobs is surveyed once."""

    def __init__(self, view: View, book: QuotaBook | None) -> None:
        everything = unrestricted(view)
        self.roster = roster_of(everything)
        self.roster.book = book
        self._limits = read_limits(everything)
        self._held_until = held_until(everything)
        self._surveys: dict[str, Survey] = {}

    def explain(self, job: Job, ahead: int, now: float) -> Explanation:
        answer = self._surveys.get(job.line)
        if answer is None:
            answer = self._surveys[job.line] = survey_of(self.roster, job)
        return why_waiting_given(
            self.roster, job, self._limits, now, answer, ahead=ahead, held_until=self._held_until
        )
