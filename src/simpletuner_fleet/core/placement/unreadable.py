"""Says which settings cannot be read, and which jobs must wait for them."""

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Job

MOST_NAMED = 5


class UnreadableSettings(Struct, frozen=True, kw_only=True):
    """Names the settings without which nobody knows whether a job may start."""

    of_all: tuple[str, ...] = ()
    """Quotas, prices and limits, which any job may reach."""
    of_teams: dict[str, str] = {}
    """By team, the team itself: what its jobs may use is not known."""

    def concerning(self, job: Job) -> tuple[str, ...]:
        """Returns the names of those for which this job waits, of many the first few."""
        own = self.of_teams.get(job.team) if job.team else None
        return ((own,) if own else ()) + self.of_all[:MOST_NAMED]


ALL_READABLE = UnreadableSettings()
